// Statistics of batches of contiguous images, to the last bit as ATen's kernel computes them: every channel's numbers are
// added up in order, in double precision. Channels are independent of each other, so that lanes are channels here, where
// ATen has one chain of additions after the other. What is made of the sums follows it step by step.
#pragma once
#include "vec_math.h"

// `add(value)` for every number of channels first..first+n, which are the lanes, in the order in which they are in memory
template <class F> INLINE void in_order(const float *x, int64_t batch, int64_t channels, int64_t size, int64_t first, int n, F add) {
    for (int64_t image = 0; image < batch; ++image) {
        const float *p = x + (image * channels + first) * size;
        vf32 tile[LANES];
        for (int64_t at = 0; at < size; at += LANES) {
            const int m = size - at < LANES ? (int)(size - at) : LANES;
            load_tile(tile, p + at, size, n, m);
            for (int i = 0; i < m; ++i) add(tile[i]);
        }
    }
}

// pointers: x, running mean and variance, weight, bias, {batch, channels, size}, {momentum, epsilon}; mean, inverse
// deviation, new running mean and variance, and with which factor and offset a channel is normalised
INLINE void batch_statistics(void *const *pointers) {
    const float *x = (const float *)pointers[0], *running_mean = (const float *)pointers[1];
    const float *running_var = (const float *)pointers[2];
    const float *weight = (const float *)pointers[3], *bias = (const float *)pointers[4];
    const int64_t *sizes = (const int64_t *)pointers[5];
    const float momentum = (float)((const double *)pointers[6])[0], rest = 1 - momentum;
    const double epsilon = ((const double *)pointers[6])[1];
    float *mean = (float *)pointers[7], *inverse = (float *)pointers[8], *new_mean = (float *)pointers[9];
    float *new_var = (float *)pointers[10], *factor = (float *)pointers[11], *offset = (float *)pointers[12];
    const int64_t batch = sizes[0], channels = sizes[1], size = sizes[2], count = batch * size;
#pragma omp parallel for schedule(static) num_threads(threads_for(2 * count * channels))
    for (int64_t first = 0; first < channels; first += LANES) {
        const int n = channels - first < LANES ? (int)(channels - first) : LANES;
        vf64 total = splat(0.0), squares = splat(0.0);
        in_order(x, batch, channels, size, first, n, [&](vf32 value) { total = total + convert_f64(value); });
        vf32 center{};
        for (int i = 0; i < n; ++i) center[i] = (float)(lane(total, i) / count);
        in_order(x, batch, channels, size, first, n, [&](vf32 value) {
            const vf32 deviation = value - center;
            squares = squares + convert_f64(deviation * deviation);
        });
        for (int i = 0; i < n; ++i) {
            const int64_t c = first + i;
            const float middle = center[i], spread = (float)lane(squares, i);
            const double variance = spread / (float)count, unbiased = spread / (float)(count - 1);
            mean[c] = middle;
            inverse[c] = variance != 0 || epsilon != 0 ? (float)(1 / __builtin_sqrt(variance + epsilon)) : 0;
            new_mean[c] = momentum * middle + rest * running_mean[c];
            new_var[c] = (float)(momentum * unbiased + rest * running_var[c]);  // only the first product is in double
            factor[c] = inverse[c] * weight[c];
            offset[c] = __builtin_fmaf(-middle, factor[c], bias[c]);
        }
    }
}
