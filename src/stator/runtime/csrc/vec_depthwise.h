// Convolutions of contiguous images with one kernel for each channel, and their gradients, to the last bit as oneDNN
// computes them, without bringing images into its layouts. Every number is a sum of products in a fixed order, each added in
// one rounding. What lies outside of the image is left out, not multiplied by zero, but where it is said otherwise.
#pragma once
#include "vec.h"

constexpr int64_t CHAIN = 256;  // products over channels that are added up, in one rounding each, before sums are

struct Sides {
    int64_t batch, channels, height, width, top, left, out_height, out_width, results;  // results: their channels
};
INLINE Sides sides_of(const void *numbers) { return *(const Sides *)numbers; }

struct Scratch {  // floats of one thread, zeros: what is computed in vain is never slow for being tiny
    float *memory;
    explicit Scratch(int64_t floats) : memory((float *)__builtin_calloc(floats, 4)) {}
    ~Scratch() { __builtin_free(memory); }
};

INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t rounded_up(int64_t a, int64_t b) { return (a + b - 1) / b; }  // of a / b, for a >= 0

#if LANES > 4 && __GNUC__ >= 12 && !defined(__clang__)
#define PAIRS 1
#if LANES == 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#else
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#define ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#endif
#endif

// row[i] to parts[(i + offset) % S * pitch + (i + offset) / S]
template <int S> INLINE void split_row(float *parts, const float *row, int64_t size, int64_t offset, int64_t pitch) {
    int64_t i = 0;
    if constexpr (S == 1) {
        for (; i + LANES <= size; i += LANES) store(parts + offset + i, load(row + i));
        if (i < size) store(parts + offset + i, load(row + i, (int)(size - i)), (int)(size - i));
        return;
    }
#ifdef PAIRS
    if constexpr (S == 2) {
        float *even = parts + offset % 2 * pitch + offset / 2, *odd = parts + (offset + 1) % 2 * pitch + (offset + 1) / 2;
        for (; i + 2 * LANES <= size; i += 2 * LANES) {
            const vf32 a = load(row + i), b = load(row + i + LANES);
            store(even + i / 2, __builtin_shufflevector(a, b, EVEN));
            store(odd + i / 2, __builtin_shufflevector(a, b, ODD));
        }
    }
#endif
    for (; i < size; ++i) parts[(i + offset) % S * pitch + (i + offset) / S] = row[i];
}

// the reverse: parts[i % S * pitch + i / S] to row[i]
template <int S> INLINE void join_row(float *row, const float *parts, int64_t size, int64_t pitch) {
    int64_t i = 0;
#ifdef PAIRS
    if constexpr (S == 2) {
        for (; i + 2 * LANES <= size; i += 2 * LANES) {
            const vf32 a = load(parts + i / 2), b = load(parts + pitch + i / 2);
            store(row + i, __builtin_shufflevector(a, b, ZIP_LOW));
            store(row + i + LANES, __builtin_shufflevector(a, b, ZIP_HIGH));
        }
    }
#endif
    for (; i < size; ++i) row[i] = parts[i % S * pitch + i / S];
}

// which of the lanes first, first + 1, ... are in begin..end, noted down
INLINE void note_lanes(int32_t *to, int64_t first, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < LANES; ++i) to[i] = -(int32_t)(first + i >= begin && first + i < end);
}
INLINE mask noted_lanes(const int32_t *from) { return {load(from)}; }

// pointers: x, weight, Sides; result. A number is a chain over the kernel, row by row.
template <int KH, int KW, int SH, int SW> INLINE void depthwise_forward(void *const *pointers) {
    const float *x = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    const int64_t planes = s.batch * s.channels, pitch = (s.width + s.left) / SW + s.out_width + KW + 2 * LANES;
    Scratch noted(rounded_up(s.out_width, LANES) * LANES * KW);
    int32_t *inside = (int32_t *)noted.memory;  // for vectors of positions, where a column of the kernel meets the image
    int64_t begin = 0, end = s.out_width;       // where all of them do
    for (int j = 0; j < KW; ++j) {
        const int64_t first = j < s.left ? rounded_up(s.left - j, SW) : 0;
        const int64_t last = s.width + s.left > j ? rounded_up(s.width + s.left - j, SW) : 0;
        begin = at_least(begin, first), end = at_most(end, last);
        for (int64_t b = 0; b < s.out_width; b += LANES) note_lanes(inside + b * KW + j * LANES, b, first, last);
    }
#pragma omp parallel num_threads(threads_for(planes * s.out_height * s.out_width * KH * KW / 4))
    {
        Scratch scratch(s.height * SW * pitch);
        float *rows = scratch.memory;
#pragma omp for schedule(static)
        for (int64_t plane = 0; plane < planes; ++plane) {
            const float *taps = weight + plane % s.channels * (KH * KW);
            for (int64_t h = 0; h < s.height; ++h)
                split_row<SW>(rows + h * SW * pitch, x + (plane * s.height + h) * s.width, s.width, s.left, pitch);
            for (int64_t a = 0; a < s.out_height; ++a) {
                const int64_t top = a * SH - s.top;
                float *to = out + (plane * s.out_height + a) * s.out_width;
                for (int64_t b = 0; b < s.out_width; b += LANES) {
                    const int n = (int)at_most(s.out_width - b, LANES);
                    const bool whole = b >= begin && b + n <= end;
                    const float *row = rows + top * SW * pitch + b;
                    const int32_t *lanes = inside + b * KW;
                    vf32 sum = splat(0.0f);
                    for (int i = 0; i < KH; ++i, row += SW * pitch) {
                        if (top + i < 0 || top + i >= s.height) continue;
                        if (whole) {
#pragma GCC unroll 16
                            for (int j = 0; j < KW; ++j)
                                sum = fmadd(load(row + j % SW * pitch + j / SW), taps[i * KW + j], sum);
                        } else {
#pragma GCC unroll 16
                            for (int j = 0; j < KW; ++j) {
                                const vf32 more = fmadd(load(row + j % SW * pitch + j / SW), taps[i * KW + j], sum);
                                sum = select(noted_lanes(lanes + j * LANES), more, sum);
                            }
                        }
                    }
                    if (n == LANES) store(to + b, sum);
                    else store(to + b, sum, n);
                }
            }
        }
    }
}

// pointers: grad, weight, Sides; the gradient of x. A number is a chain over the kernel, row by row.
template <int KH, int KW, int SH, int SW> INLINE void depthwise_data_gradient(void *const *pointers) {
    const float *grad = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    constexpr int met = (KW + SW - 1) / SW;  // columns of the kernel, at most, that a number meets
    const int64_t planes = s.batch * s.channels, most = rounded_up(s.width, LANES * SW) * LANES;
    const int64_t before = KW + s.width, pitch = before + s.out_width + most + s.left + KW + LANES;
    Scratch noted(SW * most * met);
    int32_t *inside = (int32_t *)noted.memory;  // for vectors of numbers of one remainder, where they meet the gradient
    int64_t shift[SW], begin[SW], end[SW];
    int column[SW];
    for (int part = 0; part < SW; ++part) {
        column[part] = (int)((part + s.left) % SW);
        shift[part] = (part + s.left) / SW;
        begin[part] = -s.width, end[part] = most;
        for (int q = 0; q < met && column[part] + q * SW < KW; ++q) {
            const int64_t first = q - shift[part], last = s.out_width + first;
            begin[part] = at_least(begin[part], first), end[part] = at_most(end[part], last);
            for (int64_t t = 0; t < most; t += LANES)
                note_lanes(inside + (part * most + t) * met + q * LANES, t, first, last);
        }
    }
#pragma omp parallel num_threads(threads_for(planes * s.height * s.width * (KH * KW / (SH * SW) + 1) / 4))
    {
        Scratch scratch(s.out_height * pitch + SW * most);
        float *rows = scratch.memory, *parts = rows + s.out_height * pitch;
#pragma omp for schedule(static)
        for (int64_t plane = 0; plane < planes; ++plane) {
            const float *taps = weight + plane % s.channels * (KH * KW);
            for (int64_t a = 0; a < s.out_height; ++a)
                split_row<1>(rows + a * pitch, grad + (plane * s.out_height + a) * s.out_width, s.out_width, before, 0);
            for (int64_t h = 0; h < s.height; ++h) {
                float *to = out + (plane * s.height + h) * s.width;
#pragma GCC unroll 4
                for (int part = 0; part < SW; ++part) {
                    const int64_t count = part < s.width ? rounded_up(s.width - part, SW) : 0;
                    float *target = SW == 1 ? to : parts + part * most;
                    const bool all_met = column[part] + (met - 1) * SW < KW;
                    for (int64_t t = 0; t < count; t += LANES) {
                        const int n = (int)at_most(count - t, LANES);
                        const bool whole = t >= begin[part] && t + n <= end[part];
                        const int32_t *lanes = inside + (part * most + t) * met;
                        vf32 sum = splat(0.0f);
                        for (int i = (int)((h + s.top) % SH); i < KH; i += SH) {
                            const int64_t below = h + s.top - i, a = below / SH;
                            if (below < 0 || a >= s.out_height) continue;
                            const float *row = rows + a * pitch + before + t + shift[part];
                            const float *by = taps + i * KW + column[part];
                            if (whole) {
#pragma GCC unroll 16
                                for (int q = 0; q < met; ++q)
                                    if (q < met - 1 || all_met) sum = fmadd(load(row - q), by[q * SW], sum);
                            } else {
#pragma GCC unroll 16
                                for (int q = 0; q < met; ++q)
                                    if (q < met - 1 || all_met) {
                                        const vf32 more = fmadd(load(row - q), by[q * SW], sum);
                                        sum = select(noted_lanes(lanes + q * LANES), more, sum);
                                    }
                            }
                        }
                        if (n == LANES) store(target + t, sum);
                        else store(target + t, sum, n);
                    }
                }
                if (SW > 1) join_row<SW>(to, parts, s.width, most);
            }
        }
    }
}

typedef float eight_f32 __attribute__((vector_size(32), may_alias));
typedef float mem_eight __attribute__((vector_size(32), may_alias, aligned(4)));
INLINE eight_f32 fma_eight(eight_f32 a, eight_f32 b, eight_f32 c) {
#if defined(SIMD_AVX512) || defined(SIMD_AVX2)
    return __builtin_ia32_vfmaddps256(a, b, c);
#else
    for (int i = 0; i < 8; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

// How a product of a matrix and a vector adds up `size` products: eight chains, then what is left, four, two and one.
INLINE void add_dot(float &total, eight_f32 lanes, const float *x, const float *y, int64_t size) {
    const eight_f32 l = lanes;
    total += ((l[0] + l[1]) + (l[4] + l[5])) + ((l[2] + l[3]) + (l[6] + l[7]));
    int64_t k = size / 8 * 8;
    if (size & 4) {
        total += (x[k] * y[k] + x[k + 1] * y[k + 1]) + (x[k + 2] * y[k + 2] + x[k + 3] * y[k + 3]);
        k += 4;
    }
    if (size & 2) {
        total += x[k] * y[k] + x[k + 1] * y[k + 1];
        k += 2;
    }
    if (size & 1) total += x[k] * y[k];
}

// pointers: grad, x, Sides; the gradient of the weight, by products of matrices and vectors for each channel and image, in
// which what is outside of the image counts as zero.
template <int KH, int KW, int SH, int SW> INLINE void depthwise_weight_gradient_dots(void *const *pointers) {
    const float *grad = (const float *)pointers[0], *x = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    // for each column of the kernel, the image as that column meets it; rows of one remainder by SH lie one after the other
    const int64_t positions = s.out_height * s.out_width, some = s.out_height + (KH - 1) / SH, block = some * s.out_width;
#pragma omp parallel num_threads(threads_for(s.batch * s.channels * positions * KH * KW / 4))
    {
        Scratch scratch(KW * SH * block);
        float *columns = scratch.memory;
#pragma omp for schedule(static)
        for (int64_t c = 0; c < s.channels; ++c) {
            float total[KH][KW] = {};
            for (int64_t image = 0; image < s.batch; ++image) {
                const float *plane = x + (image * s.channels + c) * s.height * s.width;
                const float *g = grad + (image * s.channels + c) * positions;
                for (int j = 0; j < KW; ++j) {
                    const int64_t begin = j < s.left ? at_most(rounded_up(s.left - j, SW), s.out_width) : 0;
                    int64_t end = s.width + s.left > j ? at_most(rounded_up(s.width + s.left - j, SW), s.out_width) : 0;
                    end = at_least(begin, end);
                    for (int64_t r = 0; r < SH * some; ++r) {
                        float *to = columns + (j * SH + r % SH) * block + r / SH * s.out_width;
                        const int64_t h = r - s.top;
                        if (h < 0 || h >= s.height) {
                            for (int64_t b = 0; b < s.out_width; ++b) to[b] = 0;
                            continue;
                        }
                        const float *from = plane + h * s.width + j - s.left;
                        for (int64_t b = 0; b < begin; ++b) to[b] = 0;
                        int64_t b = begin;
                        for (; b < end; b += LANES) {
                            const int n = (int)at_most(end - b, LANES);
                            store(to + b, SW == 1 ? load(from + b, n) : load_strided(from + b * SW, SW, n), n);
                        }
                        for (b = end; b < s.out_width; ++b) to[b] = 0;
                    }
                }
                for (int j = 0; j < KW; ++j) {
                    eight_f32 lanes[KH] = {};
                    const float *column = columns + j * SH * block;
                    for (int64_t k = 0; k + 8 <= positions; k += 8) {
                        const eight_f32 given = *(const mem_eight *)(g + k);
#pragma GCC unroll 16
                        for (int i = 0; i < KH; ++i) {
                            const float *from = column + i % SH * block + i / SH * s.out_width + k;
                            lanes[i] = fma_eight(*(const mem_eight *)from, given, lanes[i]);
                        }
                    }
                    for (int i = 0; i < KH; ++i)
                        add_dot(total[i][j], lanes[i], column + i % SH * block + i / SH * s.out_width, g, positions);
                }
            }
            __builtin_memcpy(out + c * KH * KW, total, sizeof total);
        }
    }
}

// `count` numbers of `n` channels, which are `stride` apart, to one vector of channels for each position
INLINE void transposed(float *to, const float *from, int64_t stride, int64_t count, int n) {
    vf32 tile[LANES];
    for (int64_t at = 0; at < count; at += LANES) {
        const int m = (int)at_most(count - at, LANES);
        load_tile(tile, from + at, stride, n, m);
        for (int i = 0; i < m; ++i) store(to + (at + i) * LANES, tile[i]);
    }
}

// The same by one chain for each number: over images, and in an image row by row; over squares of
// 15 by 15 positions where rows are longer than 30. A last column of its own belongs to the square before.
template <int KH, int KW, int SH, int SW> INLINE void depthwise_weight_gradient_chain(void *const *pointers) {
    const float *grad = (const float *)pointers[0], *x = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    const int64_t positions = s.out_height * s.out_width, pixels = s.height * s.width;
    const int64_t square = s.out_width > 30 ? 15 : s.out_height + s.out_width;
#pragma omp parallel num_threads(threads_for(s.batch * s.channels * positions * KH * KW / 4))
    {
        Scratch scratch((positions + pixels + 1) * LANES);
        float *given = (float *)(((__UINTPTR_TYPE__)scratch.memory + 4 * LANES - 1) / (4 * LANES) * (4 * LANES));
        float *seen = given + positions * LANES;
#pragma omp for schedule(static)
        for (int64_t c = 0; c < s.channels; c += LANES) {
            const int n = (int)at_most(s.channels - c, LANES);
            vf32 sums[KH][KW] = {};
            for (int64_t image = 0; image < s.batch; ++image) {
                transposed(given, grad + (image * s.channels + c) * positions, positions, positions, n);
                transposed(seen, x + (image * s.channels + c) * pixels, pixels, pixels, n);
                for (int64_t rows = 0; rows < s.out_height; rows += square)
                    for (int64_t across = 0, high; across < s.out_width; across = high) {
                        high = s.out_width - across <= square + 1 ? s.out_width : across + square;
                        for (int64_t a = rows; a < at_most(rows + square, s.out_height); ++a) {
                            const int64_t low = rounded_up(s.left, SW);
                            const int64_t whole = s.width + s.left >= KW ? (s.width + s.left - KW) / SW + 1 : 0;
                            for (int64_t b = across; b < high; ++b) {
                                const vf32 g = load(given + (a * s.out_width + b) * LANES);
                                const bool inner = b >= low && b < whole;
#pragma GCC unroll 16
                                for (int i = 0; i < KH; ++i) {
                                    const int64_t h = a * SH + i - s.top, v = b * SW - s.left;
                                    if (h < 0 || h >= s.height) continue;
                                    const float *p = seen + (h * s.width + v) * LANES;
#pragma GCC unroll 16
                                    for (int j = 0; j < KW; ++j)
                                        if (inner || (v + j >= 0 && v + j < s.width))
                                            sums[i][j] = fmadd(load(p + j * LANES), g, sums[i][j]);
                                }
                            }
                        }
                    }
            }
            for (int lane_of = 0; lane_of < n; ++lane_of)
                for (int i = 0; i < KH; ++i)
                    for (int j = 0; j < KW; ++j) out[((c + lane_of) * KH + i) * KW + j] = lane(sums[i][j], lane_of);
        }
    }
}
