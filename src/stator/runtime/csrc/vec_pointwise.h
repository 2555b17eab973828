// Convolutions of contiguous images with kernels of one row and column and without padding, and the gradients of the images, to
// the last bit as oneDNN computes them, without bringing images into its layouts: every number is a sum of chains of products
// over the channels, each added in one rounding. ZERO: whether these sums begin with zero, so that none is -0.0.
#pragma once
#include "vec_depthwise.h"

constexpr int VECTORS = 4, ROWS = 4, POSITIONS = VECTORS * LANES;

// Sums of `count` products for ROWS results at a block of positions: the weight of result r and product k is
// by[r * of_result + k * of_product], numbers are at columns[k * POSITIONS].
INLINE void mix_block(vf32 (*sums)[VECTORS], const float *by, int64_t of_result, int64_t of_product, const float *columns,
                      int64_t count) {
    for (int64_t k = 0; k < count; ++k) {
        vf32 x[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) x[v] = load(columns + k * POSITIONS + v * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
            const float weight = by[r * of_result + k * of_product];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = fmadd(x[v], weight, sums[r][v]);
        }
    }
}

// Adds to totals what mix_block gives for chains of `count` products.
template <bool ZERO>
INLINE void mix_chains(vf32 (*totals)[VECTORS], const float *by, int64_t of_result, int64_t of_product, const float *columns,
                       int64_t count) {
    for (int64_t begin = 0; begin < count; begin += CHAIN) {
        vf32 sums[ROWS][VECTORS] = {};
        mix_block(sums, by + begin * of_product, of_result, of_product, columns + begin * POSITIONS,
                  at_most(count - begin, CHAIN));
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) totals[r][v] = ZERO || begin > 0 ? totals[r][v] + sums[r][v] : sums[r][v];
    }
}

// where in a plane of the image the kernel meets positions first..first+n
template <int SH, int SW> INLINE void note_places(int64_t *places, const Sides &s, int64_t first, int64_t n) {
    int64_t row = first / s.out_width, column = first % s.out_width;
    for (int64_t p = 0; p < n; ++p) {
        places[p] = row * SH * s.width + column * SW;
        if (++column == s.out_width) column = 0, ++row;
    }
}

// pointers: x, weight, Sides; result
template <int KH, int KW, int SH, int SW, bool ZERO = false> INLINE void pointwise_forward(void *const *pointers) {
    static_assert(KH == 1 && KW == 1, "one product for each channel");
    const float *x = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    const int64_t plane = s.height * s.width, positions = s.out_height * s.out_width;
    const int64_t blocks = rounded_up(positions, POSITIONS), whole = s.results / ROWS * ROWS;
    Scratch last(ROWS * s.channels);  // weights of the results that are left, with zeros for what are none
    __builtin_memcpy(last.memory, weight + whole * s.channels, (s.results - whole) * s.channels * 4);
#pragma omp parallel num_threads(threads_for(s.batch * positions * s.results * s.channels / 8))
    {
        Scratch scratch(s.channels * POSITIONS);
        float *columns = scratch.memory;
#pragma omp for schedule(static)
        for (int64_t part = 0; part < s.batch * blocks; ++part) {
            const int64_t image = part / blocks, first = part % blocks * POSITIONS;
            const int64_t n = at_most(positions - first, POSITIONS);
            int64_t places[POSITIONS];
            note_places<SH, SW>(places, s, first, n);
            for (int64_t c = 0; c < s.channels; ++c) {
                const float *from = x + (image * s.channels + c) * plane;
                for (int64_t p = 0; p < n; ++p) columns[c * POSITIONS + p] = from[places[p]];
            }
            for (int64_t o = 0; o < s.results; o += ROWS) {
                vf32 sums[ROWS][VECTORS] = {};
                mix_chains<ZERO>(sums, o < whole ? weight + o * s.channels : last.memory, s.channels, 1, columns, s.channels);
                for (int r = 0; r < ROWS && o + r < s.results; ++r)
                    for (int v = 0; v < VECTORS && v * LANES < n; ++v)
                        store(out + (image * s.results + o + r) * positions + first + v * LANES, sums[r][v],
                              (int)at_most(n - v * LANES, LANES));
            }
        }
    }
}

// pointers: grad, weight, Sides; the gradient of x
template <int KH, int KW, int SH, int SW, bool ZERO = false> INLINE void pointwise_data_gradient(void *const *pointers) {
    static_assert(KH == 1 && KW == 1, "one product for each channel of the result");
    const float *grad = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Sides s = sides_of(pointers[2]);
    float *out = (float *)pointers[3];
    const int64_t plane = s.height * s.width, positions = s.out_height * s.out_width;
    const int64_t blocks = rounded_up(positions, POSITIONS), channels = rounded_up(s.channels, ROWS) * ROWS;
    Scratch packed(channels * s.results);  // [result][channel]
    for (int64_t o = 0; o < s.results; ++o)
        __builtin_memcpy(packed.memory + o * channels, weight + o * s.channels, s.channels * 4);
#pragma omp parallel num_threads(threads_for(s.batch * positions * s.results * s.channels / 8))
    {
        Scratch scratch(s.results * POSITIONS);
        float *columns = scratch.memory;
#pragma omp for schedule(static)
        for (int64_t part = 0; part < s.batch * s.channels; ++part) __builtin_memset(out + part * plane, 0, plane * 4);
#pragma omp for schedule(static)
        for (int64_t part = 0; part < s.batch * blocks; ++part) {
            const int64_t image = part / blocks, first = part % blocks * POSITIONS;
            const int64_t n = at_most(positions - first, POSITIONS);
            int64_t places[POSITIONS];
            note_places<SH, SW>(places, s, first, n);
            for (int64_t o = 0; o < s.results; ++o)
                __builtin_memcpy(columns + o * POSITIONS, grad + (image * s.results + o) * positions + first, n * 4);
            for (int64_t c = 0; c < s.channels; c += ROWS) {
                vf32 sums[ROWS][VECTORS] = {};
                mix_chains<ZERO>(sums, packed.memory + c, 1, channels, columns, s.results);
                float found[POSITIONS];
                for (int r = 0; r < ROWS && c + r < s.channels; ++r) {
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; ++v) store(found + v * LANES, sums[r][v]);
                    float *to = out + (image * s.channels + c + r) * plane;
                    for (int64_t p = 0; p < n; ++p) to[places[p]] = found[p];
                }
            }
        }
    }
}

template <int KH, int KW, int SH, int SW> INLINE void pointwise_forward_to_zero(void *const *pointers) {
    pointwise_forward<KH, KW, SH, SW, true>(pointers);
}
template <int KH, int KW, int SH, int SW> INLINE void pointwise_data_gradient_to_zero(void *const *pointers) {
    pointwise_data_gradient<KH, KW, SH, SW, true>(pointers);
}
