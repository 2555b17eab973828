// Products of few rows with the rows of a matrix that is read from memory once: y[m][n] = bias[n] + sum of x[m][k] w[n][k].
// Lanes run along k. Kernels of runtime/few_rows.py include this file after vec.h.
#pragma once

// Rows of w that are multiplied at once: as many accumulators as fit into registers
template <int M> constexpr int columns_at_once() {
#ifdef SIMD_AVX512
    return M > 6 ? 3 : 4;
#else
    return M > 6 ? 1 : M > 4 ? 2 : M > 3 ? 3 : 4;
#endif
}

// Elements of a row of x that M rows keep in the first-level cache
template <int M> constexpr int64_t depth_at_once() { return 8192 / (M < 8 ? 8 : M) / LANES * LANES; }

// Cores fetch a row of w ahead of its use only once they have met its beginning: so ask for the rows after the next.
#define ROWS_AHEAD 2

template <int M, int N, class LOAD>
INLINE void add_products(vf32 (&sums)[M][N], const float *x, int64_t row, const float *w, int64_t column, const LOAD &read) {
    vf32 right[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) right[n] = read(w + n * column);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const vf32 left = read(x + m * row);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[m][n] = op_fma(left, right[n], sums[m][n]);
    }
}

// start: what the sums are added to, with a distance between rows; null for zeros
template <int M, int N>
INLINE void product_block(
    const float *x, int64_t row, const float *w, int64_t column, int64_t depth, const float *start, int64_t start_row, float *y, int64_t out_row
) {
    vf32 sums[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[m][n] = vf32{};
    int64_t k = 0;
    for (; k + LANES <= depth; k += LANES) {
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) __builtin_prefetch(w + (n + ROWS_AHEAD * N) * column + k, 0, 2);
        add_products(sums, x + k, row, w + k, column, [](const float *p) __attribute__((always_inline)) { return load(p); });
    }
    if (const int n = (int)(depth - k))
        add_products(sums, x + k, row, w + k, column, [n](const float *p) __attribute__((always_inline)) { return load(p, n); });
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n)
            y[m * out_row + n] = (start ? start[m * start_row + n] : 0.0f) + reduce_sum(sums[m][n]);
}

// M rows of x times some rows of w
template <int M>
static __attribute__((noinline)) void product_rows(
    const float *x, const float *w, const float *bias, float *y, int64_t inner, int64_t count, int64_t out_row
) {
    constexpr int N = columns_at_once<M>();
    constexpr int64_t most = depth_at_once<M>();
    const int64_t parts = (inner + most - 1) / most, step = (inner + parts * LANES - 1) / (parts * LANES) * LANES;
    for (int64_t k = 0; k < inner; k += step) {
        const int64_t depth = inner - k < step ? inner - k : step;
        const float *start = k ? y : bias;
        const int64_t start_row = k ? out_row : 0;
        int64_t n = 0;
        for (; n + N <= count; n += N)
            product_block<M, N>(x + k, inner, w + n * inner + k, inner, depth, start ? start + n : start, start_row, y + n, out_row);
        for (; n < count; ++n)
            product_block<M, 1>(x + k, inner, w + n * inner + k, inner, depth, start ? start + n : start, start_row, y + n, out_row);
    }
}

// w has `columns` rows of `inner` elements. Each thread multiplies all rows of x by some rows of w, which stay in its cache.
static inline void multiply_few_rows(
    const float *x, const float *w, const float *bias, float *y, int64_t rows, int64_t inner, int64_t columns
) {
    constexpr int64_t share = 24;
    in_parallel(threads_for(rows * inner * columns / 8), [=] {
        #pragma omp for schedule(static) nowait
        for (int64_t n = 0; n < columns; n += share) {
            const int64_t count = columns - n < share ? columns - n : share;
            const float *some = w + n * inner, *added = bias ? bias + n : bias;
            for (int64_t m = 0; m < rows;) {
                const int64_t left = rows - m;
                const float *given = x + m * inner;
                float *out = y + m * columns + n;
                if (left >= 8) product_rows<8>(given, some, added, out, inner, count, columns), m += 8;
                else if (left >= 6) product_rows<6>(given, some, added, out, inner, count, columns), m += 6;
                else if (left >= 4) product_rows<4>(given, some, added, out, inner, count, columns), m += 4;
                else if (left >= 2) product_rows<2>(given, some, added, out, inner, count, columns), m += 2;
                else product_rows<1>(given, some, added, out, inner, count, columns), m += 1;
            }
        }
    });
}
