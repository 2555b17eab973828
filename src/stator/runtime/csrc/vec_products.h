// Products of few rows with the rows of a matrix that is read from memory once: y[m][n] = bias[n] + sum of x[m][k] w[n][k].
// Lanes run along k. Kernels of runtime/few_rows.py, and those that multiply by a matrix, include this file after vec.h.
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

template <bool PART> INLINE vf32 read(const float *p, int n) { return PART ? load(p, n) : load(p); }
template <bool PART, int M, int N>
INLINE void add_products(vf32 (&sums)[M][N], const float *x, int64_t row, const float *w, int64_t column, int count) {
    vf32 right[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) right[n] = read<PART>(w + n * column, count);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const vf32 left = read<PART>(x + m * row, count);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[m][n] = op_fma(left, right[n], sums[m][n]);
    }
}

// start: what the sums are added to, with a distance between rows. DEPTH: a factor of depth
template <int M, int N, int DEPTH>
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
        add_products<false>(sums, x + k, row, w + k, column, LANES);
    }
    if (const int n = DEPTH % LANES ? (int)(depth - k) : 0)
        add_products<true>(sums, x + k, row, w + k, column, n);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n)
            y[m * out_row + n] = start[m * start_row + n] + reduce_sum(sums[m][n]);
}

// M rows of x times `count` rows of w. row, column, out_row: distances between rows of x, of w, and of y. INNER, COUNT: factors
// of inner and of count, without whose remainders there is half as much to compile
template <int M, int INNER, int COUNT>
static __attribute__((noinline)) void product_rows(
    const float *x, int64_t row, const float *w, int64_t column, const float *bias, float *y, int64_t out_row, int64_t inner, int64_t count
) {
    constexpr int N = columns_at_once<M>();
    constexpr int64_t most = depth_at_once<M>();
    static const float zeros[N] = {};
    const int64_t parts = (inner + most - 1) / most, step = (inner + parts * LANES - 1) / (parts * LANES) * LANES;
    for (int64_t k = 0; k < inner; k += step) {
        const int64_t depth = inner - k < step ? inner - k : step;
        const float *start = k ? y : bias ? bias : zeros;
        const int64_t start_row = k ? out_row : 0, start_step = k || bias ? 1 : 0;
        int64_t n = 0;
        for (; n + N <= count; n += N)
            product_block<M, N, INNER>(x + k, row, w + n * column + k, column, depth, start + n * start_step, start_row, y + n, out_row);
        for (; COUNT % N && n < count; ++n)
            product_block<M, 1, INNER>(x + k, row, w + n * column + k, column, depth, start + n * start_step, start_row, y + n, out_row);
    }
}

// `rows` of x times `count` rows of w. MOST: at least as many as `rows`, or 8; fewer are less to compile
template <int INNER = 1, int COUNT = 1, int MOST = 8>
static inline void multiply_rows(
    const float *x, int64_t row, const float *w, int64_t column, const float *bias, float *y, int64_t out_row, int64_t rows, int64_t inner,
    int64_t count
) {
    for (int64_t m = 0, some; m < rows; m += some, x += some * row, y += some * out_row) {
        const int64_t left = rows - m < MOST ? rows - m : MOST;
        some = left >= 8 ? 8 : left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        if (some == 8) if constexpr (MOST >= 8) product_rows<8, INNER, COUNT>(x, row, w, column, bias, y, out_row, inner, count);
        if (some == 6) if constexpr (MOST >= 6) product_rows<6, INNER, COUNT>(x, row, w, column, bias, y, out_row, inner, count);
        if (some == 4) if constexpr (MOST >= 4) product_rows<4, INNER, COUNT>(x, row, w, column, bias, y, out_row, inner, count);
        if (some == 2) if constexpr (MOST >= 2) product_rows<2, INNER, COUNT>(x, row, w, column, bias, y, out_row, inner, count);
        if (some == 1) product_rows<1, INNER, COUNT>(x, row, w, column, bias, y, out_row, inner, count);
    }
}

// Add the products of M rows of x and K rows of a matrix to M rows of y. `apart`: the distance of the rows of the matrix.
template <int M, int K>
INLINE void add_rows(const float *x, int64_t row, const float *w, int64_t apart, float *y, int64_t out_row, int64_t count) {
    vf32 left[M][K];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
        for (int k = 0; k < K; ++k) left[m][k] = splat(x[m * row + k]);
    for (int64_t n = 0; n < count; n += LANES) {
        vf32 right[K];
#pragma GCC unroll 16
        for (int k = 0; k < K; ++k) right[k] = load(w + k * apart + n), __builtin_prefetch(w + (K + k) * apart + n, 0, 2);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            vf32 sum = left[m][0] * right[0];
#pragma GCC unroll 16
            for (int k = 1; k < K; ++k) sum = op_fma(left[m][k], right[k], sum);
            store(y + m * out_row + n, load(y + m * out_row + n) + sum);
        }
    }
}

template <int M, int INNER>
static __attribute__((noinline)) void add_depth(
    const float *x, int64_t row, const float *w, int64_t apart, float *y, int64_t out_row, int64_t depth, int64_t count
) {
    constexpr int K = 8 / M;  // as many factors as fit into registers
    int64_t k = 0;
    for (; k + K <= depth; k += K) add_rows<M, K>(x + k, row, w + k * apart, apart, y, out_row, count);
    for (; INNER % K && k < depth; ++k) add_rows<M, 1>(x + k, row, w + k * apart, apart, y, out_row, count);
}

// Few rows of x times `count` columns of a matrix that lies by rows, which is read once, in order. y: [rows, count], near;
// count: a multiple of LANES. INNER: a factor of inner. MOST: at least as many as `rows`, or 4.
template <int INNER = 1, int MOST = 4>
static inline void multiply_by_rows(
    const float *x, int64_t row, const float *w, int64_t apart, float *y, int64_t rows, int64_t inner, int64_t count
) {
    constexpr int64_t most = 32;  // rows of the matrix that stay in a cache for all rows of x
    for (int64_t at = 0; at < rows * count; at += LANES) store(y + at, vf32{});
    for (int64_t k = 0; k < inner; k += most) {
        const int64_t depth = inner - k < most ? inner - k : most;
        const float *some = w + k * apart;
        int64_t m = 0;
        if constexpr (MOST >= 4)
            for (; m + 4 <= rows; m += 4) add_depth<4, INNER>(x + m * row + k, row, some, apart, y + m * count, count, depth, count);
        if constexpr (MOST >= 2)
            for (; m + 2 <= rows; m += 2) add_depth<2, INNER>(x + m * row + k, row, some, apart, y + m * count, count, depth, count);
        for (; m < rows; ++m) add_depth<1, INNER>(x + m * row + k, row, some, apart, y + m * count, count, depth, count);
    }
}

// w has `columns` rows of `inner` elements. Each thread multiplies all rows of x by some rows of w, which stay in its cache.
// MOST: see multiply_rows
template <int MOST>
static inline void multiply_few_rows(
    const float *x, const float *w, const float *bias, float *y, int64_t rows, int64_t inner, int64_t columns
) {
    constexpr int64_t share = 24;
    in_parallel(threads_for(rows * inner * columns / 8), [=] {
        #pragma omp for schedule(static) nowait
        for (int64_t n = 0; n < columns; n += share) {
            const int64_t count = columns - n < share ? columns - n : share;
            multiply_rows<1, 1, MOST>(x, inner, w + n * inner, inner, bias ? bias + n : bias, y + n, columns, rows, inner, count);
        }
    });
}
