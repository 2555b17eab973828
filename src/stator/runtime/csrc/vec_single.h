// Convolutions of images of one position, and their gradients, to the last bit as oneDNN computes them: products of small
// matrices, for which it prepares ten times as long as they take.
#pragma once
#include "vec_depthwise.h"

// parts: of the batch, whose sums are added up; zero: whether sums of chains begin with zero, so that none is -0.0
struct Counts {
    int64_t batch, channels, results, parts, zero;
};
INLINE Counts counts_of(const void *numbers) { return *(const Counts *)numbers; }

constexpr int IMAGES = 4;  // at a time

INLINE int single_threads(const Counts &s) { return threads_for(s.batch * s.channels * s.results / 8); }

// The sum so far and that of one more chain; first: there is none so far.
INLINE vf32 with_chain(vf32 total, vf32 chain, bool first) { return first ? chain : total + chain; }

// Chains of products, as of convolutions of points; the first begins with the bias, if there is one.
INLINE void single_products(const float *x, const float *weight, const float *bias, const Counts &s, float *out) {
#pragma omp parallel for num_threads(single_threads(s)) schedule(static)
    for (int64_t o = 0; o < s.results; o += LANES) {
        const int n = (int)at_most(s.results - o, LANES);
        for (int64_t image = 0; image < s.batch; image += IMAGES) {
            const int images = (int)at_most(s.batch - image, IMAGES);
            vf32 totals[IMAGES] = {};
            for (int64_t begin = 0; begin < s.channels; begin += CHAIN) {
                const int64_t end = at_most(begin + CHAIN, s.channels);
                vf32 sums[IMAGES], tile[LANES];
                for (int i = 0; i < IMAGES; ++i) sums[i] = bias && begin == 0 ? load(bias + o, n) : splat(0.0f);
                for (int64_t k = begin; k < end; k += LANES) {
                    const int m = (int)at_most(end - k, LANES);
                    load_tile(tile, weight + o * s.channels + k, s.channels, n, m);
                    for (int j = 0; j < m; ++j)
                        for (int i = 0; i < images; ++i)
                            sums[i] = fmadd(tile[j], x[(image + i) * s.channels + k + j], sums[i]);
                }
                for (int i = 0; i < images; ++i) totals[i] = with_chain(totals[i], sums[i], !s.zero && begin == 0);
            }
            for (int i = 0; i < images; ++i) store(out + (image + i) * s.results + o, totals[i], n);
        }
    }
}

// pointers: x, weight, Counts; result
INLINE void single_forward(void *const *pointers) {
    const float *x = (const float *)pointers[0], *weight = (const float *)pointers[1];
    single_products(x, weight, nullptr, counts_of(pointers[2]), (float *)pointers[3]);
}

// pointers: x, weight, bias, Counts; result
INLINE void single_biased(void *const *pointers) {
    const float *x = (const float *)pointers[0], *weight = (const float *)pointers[1];
    single_products(x, weight, (const float *)pointers[2], counts_of(pointers[3]), (float *)pointers[4]);
}

// pointers: grad, weight, Counts; the gradient of x
INLINE void single_data(void *const *pointers) {
    const float *grad = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Counts s = counts_of(pointers[2]);
    float *out = (float *)pointers[3];
#pragma omp parallel for num_threads(single_threads(s)) schedule(static)
    for (int64_t c = 0; c < s.channels; c += LANES) {
        const int n = (int)at_most(s.channels - c, LANES);
        for (int64_t image = 0; image < s.batch; image += IMAGES) {
            const int images = (int)at_most(s.batch - image, IMAGES);
            vf32 totals[IMAGES] = {};
            for (int64_t begin = 0; begin < s.results; begin += CHAIN) {
                const int64_t end = at_most(begin + CHAIN, s.results);
                vf32 sums[IMAGES] = {};
                for (int64_t o = begin; o < end; ++o) {
                    const vf32 weights = load(weight + o * s.channels + c, n);
                    for (int i = 0; i < images; ++i)
                        sums[i] = fmadd(weights, grad[(image + i) * s.results + o], sums[i]);
                }
                for (int i = 0; i < images; ++i) totals[i] = with_chain(totals[i], sums[i], !s.zero && begin == 0);
            }
            for (int i = 0; i < images; ++i) store(out + (image + i) * s.channels + c, totals[i], n);
        }
    }
}

// Adds up over the images of each part, and then the parts. The first parts are the larger ones where they differ. `add`
// is told which image is the first of a part.
template <class Add> INLINE vf32 over_parts(const Counts &s, Add add) {
    vf32 total = splat(0.0f);
    int64_t image = 0;
    for (int64_t part = 0; part < s.parts; ++part) {
        const int64_t end = image + s.batch / s.parts + (part < s.batch % s.parts);
        vf32 sum = splat(0.0f);
        for (const int64_t first = image; image < end; ++image) sum = add(sum, image, image == first);
        total = with_chain(total, sum, part == 0);
    }
    return total;
}

template <bool FUSED> INLINE void single_weights(void *const *pointers) {
    const float *grad = (const float *)pointers[0], *x = (const float *)pointers[1];
    const Counts s = counts_of(pointers[2]);
    float *out = (float *)pointers[3];
#pragma omp parallel for num_threads(single_threads(s)) schedule(static)
    for (int64_t o = 0; o < s.results; ++o)
        for (int64_t c = 0; c < s.channels; c += LANES) {
            const int n = (int)at_most(s.channels - c, LANES);
            const vf32 sum = over_parts(s, [&](vf32 sum, int64_t image, bool first) {
                const vf32 seen = load(x + image * s.channels + c, n), given = splat(grad[image * s.results + o]);
                return FUSED ? fmadd(seen, given, sum) : with_chain(sum, seen * given, first);
            });
            store(out + o * s.channels + c, sum, n);
        }
}

// pointers: grad, x, Counts; the gradient of the weight, each product added in one rounding
INLINE void single_weight_chain(void *const *pointers) { single_weights<true>(pointers); }

// the same, each product rounded before it is added
INLINE void single_weight_sums(void *const *pointers) { single_weights<false>(pointers); }

// pointers: grad, Counts; the gradient of the bias
INLINE void single_bias(void *const *pointers) {
    const float *grad = (const float *)pointers[0];
    const Counts s = counts_of(pointers[1]);
    float *out = (float *)pointers[2];
    for (int64_t o = 0; o < s.results; o += LANES) {
        const int n = (int)at_most(s.results - o, LANES);
        store(out + o, over_parts(s, [&](vf32 sum, int64_t image, bool) {
            return sum + load(grad + image * s.results + o, n);
        }), n);
    }
}
