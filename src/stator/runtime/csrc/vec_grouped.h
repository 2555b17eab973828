// Convolutions of contiguous images in groups of C channels, which give as many, and their gradients, to the last bit as
// oneDNN computes them, without bringing images into its layouts. Every number is one chain of products, each added in one
// rounding; what lies outside of the image is left out. Lanes are the channels of a group.
#pragma once
#include "vec_depthwise.h"

template <int C> struct Group {
    typedef float vector __attribute__((vector_size(4 * C), may_alias));
    typedef float in_memory __attribute__((vector_size(4 * C), may_alias, aligned(4)));
};
template <int C> using group_f32 = typename Group<C>::vector;

template <int C> INLINE group_f32<C> load_group(const float *p) { return *(const typename Group<C>::in_memory *)p; }
template <int C> INLINE void store_group(float *p, group_f32<C> v) { *(typename Group<C>::in_memory *)p = v; }

template <int C> INLINE group_f32<C> fma_group(group_f32<C> a, float b, group_f32<C> c) {
    const group_f32<C> all = b - group_f32<C>{};  // b - 0.0 is b, and NaN stays NaN
#if defined(SIMD_AVX512)
    if constexpr (C == 16) return __builtin_ia32_vfmaddps512_mask(a, all, c, (unsigned short)-1, 4);
#endif
#if defined(SIMD_AVX512) || defined(SIMD_AVX2)
    if constexpr (C == 8) return __builtin_ia32_vfmaddps256(a, all, c);
#endif
    for (int i = 0; i < C; ++i) c[i] = __builtin_fmaf(a[i], b, c[i]);
    return c;
}

// `count` numbers of C channels, which are `plane` apart, to one vector of channels after the other
template <int C> INLINE void to_lanes(float *to, const float *from, int64_t plane, int64_t count) {
    if constexpr (C <= LANES) {
        vf32 tile[LANES];
        for (int64_t at = 0; at < count; at += LANES) {
            const int n = (int)at_most(count - at, LANES);
            load_tile(tile, from + at, plane, C, n);
            for (int i = 0; i < n; ++i) store(to + (at + i) * C, tile[i], C);
        }
    } else {
        for (int64_t at = 0; at < count; ++at)
            for (int c = 0; c < C; ++c) to[at * C + c] = from[c * plane + at];
    }
}

// and back
template <int C> INLINE void from_lanes(float *to, const float *from, int64_t plane, int64_t count) {
    if constexpr (C <= LANES) {
        vf32 tile[LANES];
        for (int64_t at = 0; at < count; at += LANES) {
            const int n = (int)at_most(count - at, LANES);
            load_tile(tile, from + at * C, C, n, C);
            for (int c = 0; c < C; ++c) store(to + c * plane + at, tile[c], n);
        }
    } else {
        for (int64_t at = 0; at < count; ++at)
            for (int c = 0; c < C; ++c) to[c * plane + at] = from[at * C + c];
    }
}

// weights of one group to taps[row][column][a][b], of a and b the one that is summed over and the one that is a lane
template <int C, int KH, int KW, bool OUT_IS_LANE> INLINE void pack_taps(float *taps, const float *weight) {
    for (int o = 0; o < C; ++o)
        for (int c = 0; c < C; ++c)
            for (int k = 0; k < KH * KW; ++k)
                taps[k * C * C + (OUT_IS_LANE ? c * C + o : o * C + c)] = weight[(o * C + c) * KH * KW + k];
}

constexpr int BLOCK = 14;  // positions at once: enough chains that none waits for another one

// What one place of the kernel adds to positions FIRST, FIRST + STEP, ... of a block, of which those in begin..end meet the
// image: at `x` and every BY vectors of channels from there.
template <int C, int FIRST, int STEP, int BY>
INLINE void add_place(group_f32<C> *sums, const float *taps, const float *x, int64_t begin, int64_t end) {
    group_f32<C> by[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) by[c] = load_group<C>(taps + c * C);
#pragma GCC unroll 16
    for (int p = FIRST; p < BLOCK; p += STEP) {
        if (p < begin || p >= end) continue;
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) sums[p] = fma_group<C>(by[c], x[(p - FIRST) / STEP * BY * C + c], sums[p]);
    }
}

template <int C> INLINE void store_block(float *to, const group_f32<C> *sums, int64_t count) {
#pragma GCC unroll 16
    for (int p = 0; p < BLOCK; ++p)
        if (p < count) store_group<C>(to + p * C, sums[p]);
}

// pointers: x, weight, Sides; result. A chain over the kernel, row by row, and at each place over the channels.
template <int C, int KH, int KW, int SH, int SW> INLINE void grouped_forward(void *const *pointers) {
    const float *x = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    const int64_t groups = s.channels / C, plane = s.height * s.width, positions = s.out_height * s.out_width;
#pragma omp parallel num_threads(threads_for(s.batch * s.channels * positions * C * KH * KW / 8))
    {
        Scratch scratch((plane + positions) * C + KH * KW * C * C);
        float *seen = scratch.memory, *found = seen + plane * C, *taps = found + positions * C;
        int64_t packed = -1;
#pragma omp for schedule(static)
        for (int64_t part = 0; part < groups * s.batch; ++part) {
            const int64_t group = part / s.batch, at = part % s.batch * groups + group;
            if (group != packed) pack_taps<C, KH, KW, true>(taps, weight + group * (KH * KW * C * C)), packed = group;
            to_lanes<C>(seen, x + at * C * plane, plane, plane);
            for (int64_t a = 0; a < s.out_height; ++a)
                for (int64_t b = 0; b < s.out_width; b += BLOCK) {
                    const int64_t n = at_most(s.out_width - b, BLOCK);
                    group_f32<C> sums[BLOCK] = {};
                    for (int i = 0; i < KH; ++i) {
                        const int64_t h = a * SH + i - s.top;
                        if (h < 0 || h >= s.height) continue;
                        for (int j = 0; j < KW; ++j) {
                            const int64_t v = b * SW + j - s.left;
                            const int64_t begin = v < 0 ? rounded_up(-v, SW) : 0;
                            const int64_t end = v < s.width ? at_most(rounded_up(s.width - v, SW), n) : 0;
                            add_place<C, 0, 1, SW>(sums, taps + (i * KW + j) * C * C, seen + (h * s.width + v) * C, begin, end);
                        }
                    }
                    store_block<C>(found + (a * s.out_width + b) * C, sums, n);
                }
            from_lanes<C>(out + at * C * positions, found, positions, positions);
        }
    }
}

// pointers: grad, weight, Sides; the gradient of x. A chain over the kernel, row by row, and at each place over the channels.
template <int C, int KH, int KW, int SH, int SW> INLINE void grouped_data_gradient(void *const *pointers) {
    static_assert(SW <= 2, "positions that meet a place of the kernel are all, or every other one");
    const float *grad = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    const int64_t groups = s.channels / C, plane = s.height * s.width, positions = s.out_height * s.out_width;
#pragma omp parallel num_threads(threads_for(s.batch * s.channels * positions * C * KH * KW / 8))
    {
        Scratch scratch((plane + positions) * C + KH * KW * C * C);
        float *found = scratch.memory, *given = found + plane * C, *taps = given + positions * C;
        int64_t packed = -1;
#pragma omp for schedule(static)
        for (int64_t part = 0; part < groups * s.batch; ++part) {
            const int64_t group = part / s.batch, at = part % s.batch * groups + group;
            if (group != packed) pack_taps<C, KH, KW, false>(taps, weight + group * (KH * KW * C * C)), packed = group;
            to_lanes<C>(given, grad + at * C * positions, positions, positions);
            for (int64_t h = 0; h < s.height; ++h)
                for (int64_t b = 0; b < s.width; b += BLOCK) {
                    const int64_t n = at_most(s.width - b, BLOCK);
                    group_f32<C> sums[BLOCK] = {};
                    for (int i = 0; i < KH; ++i) {
                        const int64_t below = h + s.top - i, a = below / SH;
                        if (below < 0 || below % SH || a >= s.out_height) continue;
                        for (int j = 0; j < KW; ++j) {
                            const int64_t right = b + s.left - j, odd = right & (SW - 1);  // of the block's first position
                            const float *from = given + (a * s.out_width + (right + odd) / SW) * C;
                            const float *by = taps + (i * KW + j) * C * C;
                            const int64_t begin = at_least(-right, 0), end = at_most((s.out_width - 1) * SW - right + 1, n);
                            if (SW == 1) add_place<C, 0, 1, 1>(sums, by, from, begin, end);
                            else if (odd) add_place<C, 1, 2, 1>(sums, by, from, begin, end);
                            else add_place<C, 0, 2, 1>(sums, by, from, begin, end);
                        }
                    }
                    store_block<C>(found + (h * s.width + b) * C, sums, n);
                }
            from_lanes<C>(out + at * C * plane, found, plane, plane);
        }
    }
}

// pointers: grad, x, Sides; the gradient of the weight. A chain over images, and in an image row by row.
template <int C, int KH, int KW, int SH, int SW> INLINE void grouped_weight_gradient(void *const *pointers) {
    const float *grad = (const float *)pointers[0], *x = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    const int64_t groups = s.channels / C, plane = s.height * s.width, positions = s.out_height * s.out_width;
#pragma omp parallel num_threads(threads_for(s.batch * s.channels * positions * C * KH * KW / 8))
    {
        Scratch scratch(positions * C);
        float *given = scratch.memory;
#pragma omp for schedule(static)
        for (int64_t group = 0; group < groups; ++group) {
            group_f32<C> sums[KH * KW][C] = {};
            for (int64_t image = 0; image < s.batch; ++image) {
                const int64_t at = (image * groups + group) * C;
                to_lanes<C>(given, grad + at * positions, positions, positions);
                for (int k = 0; k < KH * KW; ++k) {
                    const int i = k / KW, j = k % KW;
                    group_f32<C> some[C];
#pragma GCC unroll 16
                    for (int c = 0; c < C; ++c) some[c] = sums[k][c];
                    const int64_t begin = j < s.left ? rounded_up(s.left - j, SW) : 0;
                    const int64_t end =
                        s.width + s.left > j ? at_most(rounded_up(s.width + s.left - j, SW), s.out_width) : 0;
                    for (int64_t a = 0; a < s.out_height; ++a) {
                        const int64_t h = a * SH + i - s.top;
                        if (h < 0 || h >= s.height) continue;
                        const float *from = x + at * plane + h * s.width + j - s.left;
                        for (int64_t b = begin; b < end; ++b) {
                            const group_f32<C> v = load_group<C>(given + (a * s.out_width + b) * C);
#pragma GCC unroll 16
                            for (int c = 0; c < C; ++c) some[c] = fma_group<C>(v, from[b * SW + c * plane], some[c]);
                        }
                    }
#pragma GCC unroll 16
                    for (int c = 0; c < C; ++c) sums[k][c] = some[c];
                }
            }
            for (int o = 0; o < C; ++o)
                for (int c = 0; c < C; ++c)
                    for (int k = 0; k < KH * KW; ++k) out[((group * C + o) * C + c) * KH * KW + k] = sums[k][c][o];
        }
    }
}
