// Values in memory that do not follow one another: strided and reversed vectors, and tiles of two dimensions. vec.h includes
// this file after its loads and stores.
#pragma once

// ---- strided vectors -------------------------------------------------------------------------------------------------------
// the lanes in the other order
INLINE vf32 reversed(vf32 x) { return __builtin_shuffle(x, LANES - 1 - vi32{IOTA}); }
INLINE vi32 reversed(vi32 x) { return __builtin_shuffle(x, LANES - 1 - vi32{IOTA}); }
INLINE half_f64 reversed(half_f64 x) { return __builtin_shuffle(x, LANES / 2 - 1 - half_i64{IOTA_LO}); }
INLINE half_i64 reversed(half_i64 x) { return __builtin_shuffle(x, LANES / 2 - 1 - half_i64{IOTA_LO}); }
INLINE vf64 reversed(vf64 x) { return {reversed(x.hi), reversed(x.lo)}; }
INLINE vi64 reversed(vi64 x) { return {reversed(x.hi), reversed(x.lo)}; }
INLINE mask reversed(mask x) { return {reversed(x.bits)}; }

// LANES values that are `stride` elements apart
template <class P> INLINE auto load_strided(const P *p, int64_t stride, int n) {
    if (stride == -1 && n == LANES) return reversed(load(p - (LANES - 1)));
    decltype(load(p)) r{};
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) set_lane(r, i, load_one(p + i * stride));
    return r;
}
#ifdef SIMD_AVX512
INLINE vf32 load_strided(const float *p, int64_t stride, int n) {
    if (stride == -1 && n == LANES) return reversed(load(p - (LANES - 1)));
    if (stride == 2) {
        vf32 second = 2 * n - 1 > LANES ? load(p + LANES, 2 * n - 1 - LANES) : vf32{};
        return __builtin_shuffle(2 * n - 1 > LANES ? load(p) : load(p, 2 * n - 1), second, 2 * vi32{IOTA});
    }
    if (stride > 0x7ffffff || stride < -0x7ffffff) return load_strided<float>(p, stride, n);
    return __builtin_ia32_gathersiv16sf(vf32{}, p, arange_i32(0, (int32_t)stride), bitmask(n), 4);
}
#endif
#if LANES == 16
// listed elements meet in registers; those of a vector that a loop fills meet in memory, and are waited for
template <class H, class P> INLINE H strided_half(const P *p, int64_t step) {
    return H{p[0], p[step], p[2 * step], p[3 * step], p[4 * step], p[5 * step], p[6 * step], p[7 * step]};
}
INLINE vi64 load_strided(const int64_t *p, int64_t stride, int n) {
    if (n != LANES || stride == -1) return load_strided<int64_t>(p, stride, n);
    return {strided_half<half_i64>(p, stride), strided_half<half_i64>(p + HALF * stride, stride)};
}
INLINE vf64 load_strided(const double *p, int64_t stride, int n) {
    if (n != LANES || stride == -1) return load_strided<double>(p, stride, n);
    return {strided_half<half_f64>(p, stride), strided_half<half_f64>(p + HALF * stride, stride)};
}
#endif
// only lanes of the mask are read; usually all of them
template <class P> INLINE auto load_strided(const P *p, int64_t stride, mask m, int n) {
    if (all(m)) return load_strided(p, stride, n);
    return gather(p, arange_i64(0, stride), m, n);
}
#ifdef SIMD_AVX512
INLINE vf32 load_strided(const float *p, int64_t stride, mask m, int n) {
    if (all(m) || stride > 0x7ffffff || stride < -0x7ffffff) return load_strided<float>(p, stride, m, n);
    return gather(p, arange_i32(0, (int32_t)stride), m, n);
}
#endif
template <class P, class V> INLINE void store_strided(P *p, int64_t stride, V v, int n) {
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) store_one(p + i * stride, lane(v, i));
}
// ---- tiles ---------------------------------------------------------------------------------------------------------------------
// Exchanges rows and columns of LANES vectors: blocks of 1, 2, 4, ... lanes trade places.
template <class V, int STEP> INLINE void transpose_blocks(V *r) {
#ifdef __clang__
    for (int i = 0; i < LANES; ++i)
        if (!(i & STEP))
            for (int j = 0; j < LANES; ++j)
                if (!(j & STEP)) {
                    auto moved = r[i][j + STEP];
                    r[i][j + STEP] = r[i + STEP][j];
                    r[i + STEP][j] = moved;
                }
#else
    const vi32 at = {IOTA};
    const vi32 first = (at & STEP) != 0 ? LANES + at - STEP : at, second = (at & STEP) != 0 ? LANES + at : at + STEP;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i)
        if (!(i & STEP)) {
            V a = r[i], b = r[i + STEP];
            r[i] = __builtin_shuffle(a, b, first);
            r[i + STEP] = __builtin_shuffle(a, b, second);
        }
#endif
}
// tile[j] = lanes p[j + stride * lane]: n lanes, contiguous along j for m elements
template <class V, class P> static __attribute__((noinline)) void load_tile(V *tile, const P *p, int64_t stride, int n, int m) {
    V r[LANES];
    if (m == LANES && n == LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) r[i] = load(p + i * stride);
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) r[i] = i < n ? load(p + i * stride, m) : V{};
    }
    transpose_blocks<V, 1>(r);
    transpose_blocks<V, 2>(r);
    if (LANES >= 8) transpose_blocks<V, 4 % LANES>(r);
    if (LANES >= 16) transpose_blocks<V, 8 % LANES>(r);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) tile[i] = r[i];
}
INLINE void load_tile(mask *tile, const bool *p, int64_t stride, int n, int m) {
    vi32 bytes[LANES];
    load_tile(bytes, (const uint8_t *)p, stride, n, m);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) tile[i] = {bytes[i] != 0};
}
// The same for 64-bit numbers: halves of vectors are transposed, each of as many rows.
template <class H, int STEP> INLINE void transpose_halves(H *r) {
    const half_i64 at = {IOTA_LO};
    const half_i64 first = (at & STEP) != 0 ? HALF + at - STEP : at, second = (at & STEP) != 0 ? HALF + at : at + STEP;
#pragma GCC unroll 8
    for (int i = 0; i < HALF; ++i)
        if (!(i & STEP)) {
            H a = r[i], b = r[i + STEP];
#ifdef __clang__
            for (int j = 0; j < HALF; ++j) {
                r[i][j] = first[j] < HALF ? a[first[j]] : b[first[j] - HALF];
                r[i + STEP][j] = second[j] < HALF ? a[second[j]] : b[second[j] - HALF];
            }
#else
            r[i] = __builtin_shuffle(a, b, first);
            r[i + STEP] = __builtin_shuffle(a, b, second);
#endif
        }
}
template <class V, class H, class P>
static __attribute__((noinline)) void load_wide_tile(V *tile, const P *p, int64_t stride, int n, int m) {
    if (m != LANES || n != LANES) {
        for (int j = 0; j < m; ++j) tile[j] = load_strided(p + j, stride, n);
        return;
    }
    for (int part = 0; part < LANES; part += HALF)
        for (int side = 0; side < 2; ++side) {
            H r[HALF];
#pragma GCC unroll 8
            for (int i = 0; i < HALF; ++i) __builtin_memcpy(&r[i], p + (side * HALF + i) * stride + part, sizeof(H));
            transpose_halves<H, 1>(r);
            if (HALF >= 4) transpose_halves<H, 2 % HALF>(r);
            if (HALF >= 8) transpose_halves<H, 4 % HALF>(r);
#pragma GCC unroll 8
            for (int j = 0; j < HALF; ++j) (side ? tile[part + j].hi : tile[part + j].lo) = r[j];
        }
}
INLINE void load_tile(vi64 *tile, const int64_t *p, int64_t stride, int n, int m) {
    load_wide_tile<vi64, half_i64>(tile, p, stride, n, m);
}
INLINE void load_tile(vf64 *tile, const double *p, int64_t stride, int n, int m) {
    load_wide_tile<vf64, half_f64>(tile, p, stride, n, m);
}
