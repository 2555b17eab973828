// Elementary functions on the types of vec.h, for vectors and for scalars, under the names of the loop vocabulary:
// op_exp(x), op_maximum(a, b), ... Error bounds of the float versions are in docs/math.md and tested.
//
// vec_elementary.h has the formulas and their sources. The tables here were fitted by Lawson's iteratively reweighted
// least squares on Chebyshev nodes in 50 digits (near-minimax), then rounded.
#pragma once
#include "vec.h"

#define LANEWISE(name, function, T, V) \
    INLINE V name(V x) { \
        V r = x; \
        for (int i = 0; i < LANES; ++i) set_lane(r, i, (T)function(lane(x, i))); \
        return r; \
    }
#define LANEWISE2(name, function, T, V) \
    INLINE V name(V x, V y) { \
        V r = x; \
        for (int i = 0; i < LANES; ++i) set_lane(r, i, (T)function(lane(x, i), lane(y, i))); \
        return r; \
    }
// from libm, for scalars
#define LIBM_SCALAR(name, function) \
    INLINE float name(float x) { return __builtin_##function##f(x); } \
    INLINE double name(double x) { return __builtin_##function(x); }

// ---- fused multiply-add, square root, rounding -----------------------------------------------------------------------------
#ifdef SIMD_AVX512
INLINE vf32 fmadd(vf32 a, vf32 b, vf32 c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, (uint16_t)-1, 4); }
INLINE vf32 op_sqrt(vf32 x) { return __builtin_ia32_sqrtps512_mask(x, vf32{}, (short)-1, 4); }
INLINE vf32 op_floor(vf32 x) { return __builtin_ia32_rndscaleps_mask(x, 1, x, (short)-1, 4); }
INLINE vf32 op_ceil(vf32 x) { return __builtin_ia32_rndscaleps_mask(x, 2, x, (short)-1, 4); }
INLINE vf32 op_trunc(vf32 x) { return __builtin_ia32_rndscaleps_mask(x, 3, x, (short)-1, 4); }
INLINE vf32 op_round(vf32 x) { return __builtin_ia32_rndscaleps_mask(x, 0, x, (short)-1, 4); }
#elif defined(SIMD_AVX2)
INLINE vf32 fmadd(vf32 a, vf32 b, vf32 c) {
    return (vf32)__builtin_ia32_vfmaddps256((x86_f32x8)a, (x86_f32x8)b, (x86_f32x8)c);
}
INLINE vf32 op_sqrt(vf32 x) { return (vf32)__builtin_ia32_sqrtps256((x86_f32x8)x); }
INLINE vf32 op_floor(vf32 x) { return (vf32)__builtin_ia32_roundps256((x86_f32x8)x, 1); }
INLINE vf32 op_ceil(vf32 x) { return (vf32)__builtin_ia32_roundps256((x86_f32x8)x, 2); }
INLINE vf32 op_trunc(vf32 x) { return (vf32)__builtin_ia32_roundps256((x86_f32x8)x, 3); }
INLINE vf32 op_round(vf32 x) { return (vf32)__builtin_ia32_roundps256((x86_f32x8)x, 0); }
#else
INLINE vf32 fmadd(vf32 a, vf32 b, vf32 c) {
    vf32 r{};
    for (int i = 0; i < LANES; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
}
LANEWISE(op_sqrt, __builtin_sqrtf, float, vf32)
LANEWISE(op_floor, __builtin_floorf, float, vf32)
LANEWISE(op_ceil, __builtin_ceilf, float, vf32)
LANEWISE(op_trunc, __builtin_truncf, float, vf32)
LANEWISE(op_round, __builtin_rintf, float, vf32)
#endif
// returns the second operand if either is a NaN, as the instructions do
#ifdef SIMD_AVX512
INLINE vf32 minimum_or_second(vf32 a, vf32 b) { return __builtin_ia32_minps512_mask(a, b, b, (short)-1, 4); }
INLINE vf32 maximum_or_second(vf32 a, vf32 b) { return __builtin_ia32_maxps512_mask(a, b, b, (short)-1, 4); }
#elif defined(SIMD_AVX2)
INLINE vf32 minimum_or_second(vf32 a, vf32 b) { return (vf32)__builtin_ia32_minps256((x86_f32x8)a, (x86_f32x8)b); }
INLINE vf32 maximum_or_second(vf32 a, vf32 b) { return (vf32)__builtin_ia32_maxps256((x86_f32x8)a, (x86_f32x8)b); }
#else
INLINE vf32 minimum_or_second(vf32 a, vf32 b) { return a < b ? a : b; }
INLINE vf32 maximum_or_second(vf32 a, vf32 b) { return a > b ? a : b; }
#endif
LIBM_SCALAR(op_sqrt, sqrt)
LIBM_SCALAR(op_floor, floor)
LIBM_SCALAR(op_ceil, ceil)
LIBM_SCALAR(op_trunc, trunc)
LIBM_SCALAR(op_round, rint)
#ifdef SIMD_AVX512
INLINE half_f64 minimum_or_second(half_f64 a, half_f64 b) { return __builtin_ia32_minpd512_mask(a, b, b, (uint8_t)-1, 4); }
INLINE half_f64 maximum_or_second(half_f64 a, half_f64 b) { return __builtin_ia32_maxpd512_mask(a, b, b, (uint8_t)-1, 4); }
INLINE half_f64 op_sqrt(half_f64 x) { return __builtin_ia32_sqrtpd512_mask(x, x, (uint8_t)-1, 4); }
#define ROUND_HALF(x, mode) __builtin_ia32_rndscalepd_mask(x, mode, x, (uint8_t)-1, 4)
#elif defined(SIMD_AVX2)
INLINE half_f64 minimum_or_second(half_f64 a, half_f64 b) { return (half_f64)__builtin_ia32_minpd256(a, b); }
INLINE half_f64 maximum_or_second(half_f64 a, half_f64 b) { return (half_f64)__builtin_ia32_maxpd256(a, b); }
INLINE half_f64 op_sqrt(half_f64 x) { return (half_f64)__builtin_ia32_sqrtpd256(x); }
#define ROUND_HALF(x, mode) (half_f64)__builtin_ia32_roundpd256(x, mode)
#else
INLINE half_f64 minimum_or_second(half_f64 a, half_f64 b) { return a < b ? a : b; }
INLINE half_f64 maximum_or_second(half_f64 a, half_f64 b) { return a > b ? a : b; }
INLINE half_f64 op_sqrt(half_f64 x) {
    for (int i = 0; i < HALF; ++i) x[i] = __builtin_sqrt(x[i]);
    return x;
}
LANEWISE(op_floor, __builtin_floor, double, vf64)
LANEWISE(op_ceil, __builtin_ceil, double, vf64)
LANEWISE(op_trunc, __builtin_trunc, double, vf64)
LANEWISE(op_round, __builtin_rint, double, vf64)
#endif
#ifdef ROUND_HALF
INLINE vf64 op_floor(vf64 x) { return {ROUND_HALF(x.lo, 1), ROUND_HALF(x.hi, 1)}; }
INLINE vf64 op_ceil(vf64 x) { return {ROUND_HALF(x.lo, 2), ROUND_HALF(x.hi, 2)}; }
INLINE vf64 op_trunc(vf64 x) { return {ROUND_HALF(x.lo, 3), ROUND_HALF(x.hi, 3)}; }
INLINE vf64 op_round(vf64 x) { return {ROUND_HALF(x.lo, 0), ROUND_HALF(x.hi, 0)}; }
#endif
INLINE vf64 op_sqrt(vf64 x) { return {op_sqrt(x.lo), op_sqrt(x.hi)}; }
INLINE float op_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double op_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
INLINE vf32 op_fma(vf32 a, vf32 b, vf32 c) { return fmadd(a, b, c); }
#ifdef SIMD_AVX512
INLINE half_f64 fmadd(half_f64 a, half_f64 b, half_f64 c) {
    return __builtin_ia32_vfmaddpd512_mask(a, b, c, (uint8_t)-1, 4);
}
#elif defined(SIMD_AVX2)
INLINE half_f64 fmadd(half_f64 a, half_f64 b, half_f64 c) { return (half_f64)__builtin_ia32_vfmaddpd256(a, b, c); }
#else
INLINE half_f64 fmadd(half_f64 a, half_f64 b, half_f64 c) {
    for (int i = 0; i < HALF; ++i) a[i] = __builtin_fma(a[i], b[i], c[i]);
    return a;
}
#endif
INLINE vf64 op_fma(vf64 a, vf64 b, vf64 c) { return {fmadd(a.lo, b.lo, c.lo), fmadd(a.hi, b.hi, c.hi)}; }

INLINE vf32 op_rsqrt(vf32 x) { return 1.0f / op_sqrt(x); }
INLINE float op_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
INLINE vf64 op_rsqrt(vf64 x) { return splat(1.0) / op_sqrt(x); }
INLINE double op_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
INLINE vf32 op_reciprocal(vf32 x) { return 1.0f / x; }
INLINE float op_reciprocal(float x) { return 1.0f / x; }
INLINE vf64 op_reciprocal(vf64 x) { return splat(1.0) / x; }
INLINE double op_reciprocal(double x) { return 1.0 / x; }

INLINE vf32 op_abs(vf32 x) { return (vf32)((vi32)x & 0x7fffffff); }
INLINE float op_abs(float x) { return __builtin_fabsf(x); }
INLINE double op_abs(double x) { return __builtin_fabs(x); }
INLINE half_f64 op_abs(half_f64 x) { return (half_f64)((half_i64)x & 0x7fffffffffffffffll); }
INLINE vf64 op_abs(vf64 x) { return {op_abs(x.lo), op_abs(x.hi)}; }
INLINE int32_t op_abs(int32_t x) { return x < 0 ? (int32_t)(0u - (uint32_t)x) : x; }
INLINE int64_t op_abs(int64_t x) { return x < 0 ? (int64_t)(0ull - (uint64_t)x) : x; }
INLINE vi32 op_abs(vi32 x) {
    x = x < 0 ? -x : x;
#ifdef SIMD_AVX512
    asm("" : "+v"(x));  // gcc takes the bytes of |widened unsigned bytes| for |signed bytes|; it cannot see through this
#endif
    return x;
}
INLINE half_i64 op_abs(half_i64 x) { return x < 0 ? -x : x; }
INLINE vi64 op_abs(vi64 x) { return {op_abs(x.lo), op_abs(x.hi)}; }
INLINE vf32 op_copysign(vf32 magnitude, vf32 sign) {
    return (vf32)(((vi32)magnitude & 0x7fffffff) | ((vi32)sign & (int32_t)0x80000000));
}

INLINE half_f64 op_copysign(half_f64 magnitude, half_f64 sign) {
    half_i64 m = half_i64{} + 0x7fffffffffffffffll;
    return (half_f64)(((half_i64)magnitude & m) | ((half_i64)sign & ~m));
}
INLINE vf64 op_copysign(vf64 magnitude, vf64 sign) {
    return {op_copysign(magnitude.lo, sign.lo), op_copysign(magnitude.hi, sign.hi)};
}

#include "vec_elementary.h"

// ---- tables picked by a permutation ---------------------------------------------------------------------------------------------
#ifdef SIMD_AVX512
// tanh(x) / x on [0, 1/16) and on two intervals per octave from there to 9.02, found by the leading bits of the float; a
// polynomial of degree 7 around each middle (the last row). It is 1 to the last bit beyond.
static const float tanh_table[9][16] __attribute__((aligned(64))) = {
    {0x1.ffd55ap-1f, 0x1.fef5fcp-1f, 0x1.fdf7d2p-1f, 0x1.fbdfa6p-1f, 0x1.f7fc96p-1f, 0x1.eff5aap-1f, 0x1.e1a792p-1f,
     0x1.c653fep-1f, 0x1.9be2a6p-1f, 0x1.5b74fcp-1f, 0x1.136b6ap-1f, 0x1.941e02p-2f, 0x1.2409d0p-2f, 0x1.999014p-3f,
     0x1.24922ap-3f, 0x1.e150e8p-4f},
    {-0x1.55111cp-6f, -0x1.a8974ep-5f, -0x1.27d436p-4f, -0x1.a2748cp-4f, -0x1.1f8ea0p-3f, -0x1.8b35dap-3f,
     -0x1.01bf46p-2f, -0x1.3f63eep-2f, -0x1.5f05f6p-2f, -0x1.46371ep-2f, -0x1.f0567ap-3f, -0x1.2d826ap-3f,
     -0x1.497f4ap-4f, -0x1.475a4ep-5f, -0x1.4e5be8p-6f, -0x1.c4786ap-7f},
    {-0x1.5488bcp-2f, -0x1.505d34p-2f, -0x1.4ba6a2p-2f, -0x1.41d186p-2f, -0x1.2ff6fep-2f, -0x1.0cb0a2p-2f,
     -0x1.a5feeep-3f, -0x1.d895e2p-4f, -0x1.cdfa04p-7f, 0x1.086ec8p-4f, 0x1.3c7980p-4f, 0x1.8c711ap-5f,
     0x1.678e36p-6f, 0x1.04b190p-7f, 0x1.7e1022p-9f, 0x1.a9595cp-10f},
    {0x1.108710p-6f, 0x1.512568p-5f, 0x1.d273e0p-5f, 0x1.44ecfcp-4f, 0x1.b2002ep-4f, 0x1.18c1d4p-3f, 0x1.471dc6p-3f,
     0x1.3fa358p-3f, 0x1.c0f2c6p-4f, 0x1.1ebbf0p-5f, -0x1.0c901ep-7f, -0x1.9b36a6p-7f, -0x1.6db81ep-8f,
     -0x1.9ac286p-10f, -0x1.b44fa0p-12f, -0x1.8fd4d8p-13f},
    {0x1.0f7358p-3f, 0x1.071044p-3f, 0x1.fb59e4p-4f, 0x1.d4cf58p-4f, 0x1.9106a0p-4f, 0x1.13a2dep-4f, 0x1.80a8bep-6f,
     -0x1.dc7dbcp-6f, -0x1.c9016ep-5f, -0x1.37f97ap-5f, -0x1.1ef522p-7f, 0x1.d9751ap-10f, 0x1.4850c2p-10f,
     0x1.3bb552p-12f, 0x1.f11408p-15f, 0x1.77c1d2p-16f},
    {-0x1.4a5bb8p-7f, -0x1.950392p-6f, -0x1.1549cap-5f, -0x1.79db56p-5f, -0x1.e3e1b4p-5f, -0x1.1d92e6p-4f,
     -0x1.1510a6p-4f, -0x1.559318p-5f, -0x1.cb072cp-9f, 0x1.eede4cp-7f, 0x1.d26d3ep-8f, 0x1.baa488p-12f,
     -0x1.d3950ep-13f, -0x1.d10be4p-15f, -0x1.19f22ap-17f, -0x1.60e5aap-19f},
    {-0x1.b4e152p-5f, -0x1.9bf97cp-5f, -0x1.802a3ap-5f, -0x1.482240p-5f, -0x1.d42842p-6f, -0x1.2df746p-7f,
     0x1.b6b3a8p-7f, 0x1.cc89f0p-6f, 0x1.39860ap-6f, 0x1.7abbbap-12f, -0x1.7dba78p-9f, -0x1.020b3ep-11f,
     0x1.2a9e00p-16f, 0x1.492e56p-17f, 0x1.48920ap-20f, 0x1.4d2e26p-22f},
    {0x1.63c3bep-8f, 0x1.af690ap-7f, 0x1.2359bep-6f, 0x1.81247ap-6f, 0x1.d1a776p-6f, 0x1.e03086p-6f, 0x1.574314p-6f,
     0x1.285fbcp-9f, -0x1.2c9788p-7f, -0x1.f73924p-9f, 0x1.1a7f22p-11f, 0x1.ced2e8p-13f, 0x1.cd4e64p-18f,
     -0x1.81e376p-20f, -0x1.6899c8p-23f, -0x1.370c74p-25f},
    {0x1.000000p-5f, 0x1.400000p-4f, 0x1.c00000p-4f, 0x1.400000p-3f, 0x1.c00000p-3f, 0x1.400000p-2f, 0x1.c00000p-2f,
     0x1.400000p-1f, 0x1.c00000p-1f, 0x1.400000p+0f, 0x1.c00000p+0f, 0x1.400000p+1f, 0x1.c00000p+1f, 0x1.400000p+2f,
     0x1.c00000p+2f, 0x1.1051ecp+3f}};
INLINE vf32 tanh_of(vf32 x) {
    vf32 a = minimum_or_second(splat(9.02f), op_abs(x));
    vi32 k = ((vi32)a >> 22) - ((0x3d800000 >> 22) - 1);
    k = k < 0 ? vi32{} : k;
#define TANH_COEFFICIENT(i) __builtin_shuffle(*(const vf32 *)tanh_table[i], k)
    vf32 t = a - TANH_COEFFICIENT(8);
    vf32 p = fmadd(TANH_COEFFICIENT(7), t, TANH_COEFFICIENT(6));
    p = fmadd(p, t, TANH_COEFFICIENT(5));
    p = fmadd(p, t, TANH_COEFFICIENT(4));
    p = fmadd(p, t, TANH_COEFFICIENT(3));
    p = fmadd(p, t, TANH_COEFFICIENT(2));
    p = fmadd(p, t, TANH_COEFFICIENT(1));
    p = fmadd(p, t, TANH_COEFFICIENT(0));
#undef TANH_COEFFICIENT
    return p * op_copysign(a, x);
}
// erf(x) / x on sixteen intervals of [0, 4], a polynomial of degree 5 around each middle; the coefficients are picked by
// a permutation, which costs no more than a multiplication. It is 1 to the last bit from 4 on.
static const float erf_table[6][16] __attribute__((aligned(64))) = {
    {0x1.1f5e1ap+0f, 0x1.13e08cp+0f, 0x1.fe8f16p-1f, 0x1.cacbc2p-1f, 0x1.9450bcp-1f, 0x1.611066p-1f, 0x1.3448f8p-1f,
     0x1.0ee122p-1f, 0x1.e09a7ap-2f, 0x1.aed200p-2f, 0x1.8603e0p-2f, 0x1.642828p-2f, 0x1.47ad40p-2f, 0x1.2f6828p-2f,
     0x1.1a7b90p-2f, 0x1.084210p-2f},
    {-0x1.7d900ap-4f, -0x1.09ac3cp-2f, -0x1.7edef6p-2f, -0x1.b29324p-2f, -0x1.ad1534p-2f, -0x1.82ad18p-2f,
     -0x1.48b7c4p-2f, -0x1.0e9e18p-2f, -0x1.b87062p-3f, -0x1.67575ap-3f, -0x1.284242p-3f, -0x1.ef1beep-4f,
     -0x1.a35764p-4f, -0x1.6793eep-4f, -0x1.37b3d8p-4f, -0x1.10c83ap-4f},
    {-0x1.766af0p-2f, -0x1.276b4ep-2f, -0x1.527662p-3f, -0x1.4579d6p-5f, 0x1.bbf076p-5f, 0x1.ab144ep-4f,
     0x1.df89c0p-4f, 0x1.b7ea86p-4f, 0x1.6bfc1ep-4f, 0x1.1e3198p-4f, 0x1.ba0a1ap-5f, 0x1.560bdap-5f, 0x1.0bd90cp-5f,
     0x1.a9f504p-6f, 0x1.57e93cp-6f, 0x1.19936ap-6f},
    {0x1.c5a682p-5f, 0x1.24d548p-3f, 0x1.671ac6p-3f, 0x1.367a82p-3f, 0x1.8a2858p-4f, 0x1.3fc2eep-5f,
     -0x1.68205ap-10f, -0x1.5d2a96p-6f, -0x1.ae6becp-6f, -0x1.834a4ep-6f, -0x1.3244fap-6f, -0x1.cac458p-7f,
     -0x1.52a6ccp-7f, -0x1.f70a74p-8f, -0x1.7b2690p-8f, -0x1.229a76p-8f},
    {0x1.b26622p-4f, 0x1.00cffcp-4f, 0x1.039196p-9f, -0x1.6bb9dap-5f, -0x1.ee48e8p-5f, -0x1.9d322cp-5f,
     -0x1.e80682p-6f, -0x1.715754p-7f, -0x1.0b1870p-13f, 0x1.1ec982p-8f, 0x1.4a631cp-8f, 0x1.14193ep-8f,
     0x1.9a7116p-9f, 0x1.2502f4p-9f, 0x1.a0c6a0p-10f, 0x1.2c06d4p-10f},
    {-0x1.3e951ep-6f, -0x1.7a7f3ep-5f, -0x1.7c4858p-5f, -0x1.a1dd74p-6f, -0x1.54a1eep-11f, 0x1.d75fa2p-7f,
     0x1.14e29cp-6f, 0x1.8aa846p-7f, 0x1.838144p-8f, 0x1.b7d730p-10f, -0x1.408574p-12f, -0x1.c4d8dep-11f,
     -0x1.ab2bbep-11f, -0x1.41552cp-11f, -0x1.c0261ap-12f, -0x1.3369c4p-12f}};
INLINE vf32 erf_of(vf32 x) {
    vf32 a = op_abs(x);
    vf32 b = minimum_or_second(splat(0x1.fffffep+1f), a);
    vi32 k = __builtin_convertvector(b * 4.0f, vi32);
    vf32 t = b - (__builtin_convertvector(k, vf32) * 0.25f + 0.125f);
#define ERF_COEFFICIENT(i) __builtin_shuffle(*(const vf32 *)erf_table[i], k)
    vf32 p = fmadd(ERF_COEFFICIENT(5), t, ERF_COEFFICIENT(4));
    p = fmadd(p, t, ERF_COEFFICIENT(3));
    p = fmadd(p, t, ERF_COEFFICIENT(2));
    p = fmadd(p, t, ERF_COEFFICIENT(1));
    p = fmadd(p, t, ERF_COEFFICIENT(0));
#undef ERF_COEFFICIENT
    return p * op_copysign(minimum_or_second(splat(4.0f), a), x);
}
#endif

// Floats and doubles by their vectors: a lane has the bits of a scalar, whatever its neighbours. Values recomputed in a
// backward, in other loops, must equal those of the forward. Templates, because kernels then compile what they use.
template <class X> struct form { typedef X V; static constexpr int kind = 0; };
template <> struct form<vf64> { typedef half_f64 V; static constexpr int kind = 1; };
template <> struct form<float> { typedef vf32 V; static constexpr int kind = 2; };
template <> struct form<double> { typedef half_f64 V; static constexpr int kind = 2; };
#define ELEMENTARY(name) \
    template <class X> INLINE X op_##name(X x) { \
        if constexpr (form<X>::kind == 0) return name##_of(x); \
        else if constexpr (form<X>::kind == 1) return {name##_of(x.lo), name##_of(x.hi)}; \
        else return name##_of(broadcast<typename form<X>::V>(x))[0]; \
    }
#define ELEMENTARY2(name) \
    template <class X> INLINE X op_##name(X x, X y) { \
        if constexpr (form<X>::kind == 0) return name##_of(x, y); \
        else if constexpr (form<X>::kind == 1) return {name##_of(x.lo, y.lo), name##_of(x.hi, y.hi)}; \
        else return name##_of(broadcast<typename form<X>::V>(x), broadcast<typename form<X>::V>(y))[0]; \
    }
ELEMENTARY(exp) ELEMENTARY(exp2) ELEMENTARY(expm1) ELEMENTARY(log) ELEMENTARY(log2) ELEMENTARY(log10) ELEMENTARY(log1p)
ELEMENTARY(sigmoid) ELEMENTARY(tanh) ELEMENTARY(sinh) ELEMENTARY(cosh) ELEMENTARY(asinh) ELEMENTARY(acosh) ELEMENTARY(atanh)
ELEMENTARY(erf) ELEMENTARY(erfc) ELEMENTARY(sin) ELEMENTARY(cos) ELEMENTARY(tan) ELEMENTARY(asin) ELEMENTARY(acos)
ELEMENTARY(atan) ELEMENTARY2(atan2) ELEMENTARY2(hypot) ELEMENTARY2(nextafter)

// log |gamma(x)| of floats, in double: Stirling's series from 8 on, shifted there by a product; below 1/2 by reflection
INLINE half_f64 lgamma_half(half_f64 x) {
    static constexpr double stirling[] = {1.0 / 156, -691.0 / 360360, 1.0 / 1188, -1.0 / 1680, 1.0 / 1260, -1.0 / 360, 1.0 / 12};
    half_f64 z = x < 0.5 ? 1 - x : x, w = z < 8 ? z + 8 : z, inverse = 1 / w;
    half_f64 product = z * (z + 1) * (z + 2) * (z + 3) * (z + 4) * (z + 5) * (z + 6) * (z + 7);
    half_f64 r = polynomial(inverse * inverse, stirling) * inverse + ((w - 0.5) * log_of(w) - w + 0.91893853320467274178);
    r = z < 8 ? r - log_of(product) : r;
    half_i64 n, below = (x < 0.5) & (x > -0x1p50);
    if (any(join(below, below))) {
        half_f64 sine = sin_near((x - nearest_integer(x, n)) * 3.14159265358979323846);
        r = below ? log_of(3.14159265358979323846 / op_abs(sine)) - r : r;
    }
    half_f64 infinity = broadcast<half_f64>(__builtin_inf());
    r = (x == 1) | (x == 2) ? half_f64{} : r;
    return (x <= -0x1p50) | (x == infinity) ? infinity : r;
}
INLINE vf32 op_lgamma(vf32 x) {
    vf64 wide = convert_f64(x);
    return convert_f32(vf64{lgamma_half(wide.lo), lgamma_half(wide.hi)});
}
INLINE float op_lgamma(float x) { return op_lgamma(splat(x))[0]; }
INLINE double op_lgamma(double x) { return __builtin_lgamma(x); }
LANEWISE(op_lgamma, __builtin_lgamma, double, vf64)

#define LIBM_SCALAR2(name, function) \
    INLINE float name(float x, float y) { return __builtin_##function##f(x, y); } \
    INLINE double name(double x, double y) { return __builtin_##function(x, y); }
#define LIBM2(name, function) \
    LIBM_SCALAR2(name, function) \
    LANEWISE2(name, __builtin_##function##f, float, vf32) \
    LANEWISE2(name, __builtin_##function, double, vf64)
LIBM_SCALAR2(op_copysign, copysign)

#include "vec_power.h"

// ---- arithmetic that C++ and torch define differently, or that mixes types ---------------------------------------------------------
#define ARITHMETIC(name, op) \
    INLINE vf32 name(vf32 a, vf32 b) { return a op b; } \
    INLINE vi32 name(vi32 a, vi32 b) { return (vi32)((vu32)a op(vu32) b); } \
    INLINE vi64 name(vi64 a, vi64 b) { return a op b; } \
    INLINE vf64 name(vf64 a, vf64 b) { return a op b; } \
    INLINE float name(float a, float b) { return a op b; } \
    INLINE double name(double a, double b) { return a op b; } \
    INLINE int32_t name(int32_t a, int32_t b) { return (int32_t)((uint32_t)a op(uint32_t) b); } \
    INLINE int64_t name(int64_t a, int64_t b) { return (int64_t)((uint64_t)a op(uint64_t) b); }
ARITHMETIC(op_add, +) ARITHMETIC(op_sub, -) ARITHMETIC(op_mul, *)
INLINE mask op_add(mask a, mask b) { return a | b; }
INLINE mask op_mul(mask a, mask b) { return a & b; }
INLINE bool op_add(bool a, bool b) { return a | b; }
INLINE bool op_mul(bool a, bool b) { return a & b; }

#define UNARY_ALL(name, expression_i, expression_f) \
    INLINE int32_t name(int32_t x) { return expression_i; } \
    INLINE int64_t name(int64_t x) { return expression_i; } \
    INLINE float name(float x) { return expression_f; } \
    INLINE double name(double x) { return expression_f; }
INLINE vf32 op_neg(vf32 x) { return -x; }
INLINE vi32 op_neg(vi32 x) { return (vi32)(0 - (vu32)x); }
INLINE vi64 op_neg(vi64 x) { return -x; }
INLINE vf64 op_neg(vf64 x) { return -x; }
INLINE float op_neg(float x) { return -x; }
INLINE double op_neg(double x) { return -x; }
INLINE int32_t op_neg(int32_t x) { return (int32_t)(0u - (uint32_t)x); }
INLINE int64_t op_neg(int64_t x) { return (int64_t)(0ull - (uint64_t)x); }

INLINE vf32 op_div(vf32 a, vf32 b) { return a / b; }
INLINE vf64 op_div(vf64 a, vf64 b) { return a / b; }
INLINE float op_div(float a, float b) { return a / b; }
INLINE double op_div(double a, double b) { return a / b; }

// a NaN on either side is the result
INLINE vf32 op_maximum(vf32 a, vf32 b) { return a != a ? a : maximum_or_second(a, b); }
INLINE vf32 op_minimum(vf32 a, vf32 b) { return a != a ? a : minimum_or_second(a, b); }
INLINE half_f64 op_maximum(half_f64 a, half_f64 b) { return a != a ? a : maximum_or_second(a, b); }
INLINE half_f64 op_minimum(half_f64 a, half_f64 b) { return a != a ? a : minimum_or_second(a, b); }
INLINE half_i64 op_maximum(half_i64 a, half_i64 b) { return a > b ? a : b; }
INLINE half_i64 op_minimum(half_i64 a, half_i64 b) { return a < b ? a : b; }
INLINE vi32 op_maximum(vi32 a, vi32 b) { return a > b ? a : b; }
INLINE vi32 op_minimum(vi32 a, vi32 b) { return a < b ? a : b; }
#define HALVES2(name, T) \
    INLINE T name(T a, T b) { return {name(a.lo, b.lo), name(a.hi, b.hi)}; }
HALVES2(op_maximum, vi64) HALVES2(op_minimum, vi64) HALVES2(op_maximum, vf64) HALVES2(op_minimum, vf64)
INLINE mask op_maximum(mask a, mask b) { return a | b; }
INLINE mask op_minimum(mask a, mask b) { return a & b; }
template <class T> INLINE T op_maximum(T a, T b) { return a != a ? a : a > b ? a : b; }
template <class T> INLINE T op_minimum(T a, T b) { return a != a ? a : a < b ? a : b; }

// a NaN on one side is ignored
INLINE vf32 op_fmax(vf32 a, vf32 b) { return b != b ? a : a > b ? a : b; }
INLINE vf32 op_fmin(vf32 a, vf32 b) { return b != b ? a : a < b ? a : b; }
INLINE half_f64 op_fmax(half_f64 a, half_f64 b) { return b != b ? a : a > b ? a : b; }
INLINE half_f64 op_fmin(half_f64 a, half_f64 b) { return b != b ? a : a < b ? a : b; }
HALVES2(op_fmax, vf64) HALVES2(op_fmin, vf64)
template <class T> INLINE T op_fmax(T a, T b) { return b != b ? a : a > b ? a : b; }
template <class T> INLINE T op_fmin(T a, T b) { return b != b ? a : a < b ? a : b; }

INLINE mask op_isnan(vf32 x) { return {x != x}; }
INLINE mask op_isnan(vf64 x) { return x != x; }
template <class T> INLINE bool op_isnan(T x) { return x != x; }
INLINE mask op_isinf(vf32 x) { return {op_abs(x) == __builtin_inff()}; }
INLINE mask op_isinf(vf64 x) { return op_abs(x) == splat(__builtin_inf()); }
INLINE bool op_isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
INLINE bool op_isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }
template <class T> INLINE T op_sign(T x) { return (T)((x > 0) - (x < 0)); }
INLINE vf32 op_sign(vf32 x) { return x > 0.0f ? splat(1.0f) : x < 0.0f ? splat(-1.0f) : vf32{}; }
INLINE vi32 op_sign(vi32 x) { return (x < 0) - (x > 0); }
INLINE vf64 op_sign(vf64 x) { return select(x > vf64{}, splat(1.0), select(x < vf64{}, splat(-1.0), vf64{})); }
INLINE vi64 op_sign(vi64 x) { return select(x > vi64{}, splat((int64_t)1), select(x < vi64{}, splat((int64_t)-1), vi64{})); }
INLINE mask op_signbit(vf32 x) { return {(vi32)x < 0}; }
INLINE bool op_signbit(float x) { return __builtin_signbit(x); }
INLINE bool op_signbit(double x) { return __builtin_signbit(x); }
INLINE vf32 op_relu(vf32 x) { return x < 0.0f ? vf32{} : x; }
INLINE vf64 op_relu(vf64 x) { return {x.lo < 0 ? half_f64{} : x.lo, x.hi < 0 ? half_f64{} : x.hi}; }
INLINE vi32 op_relu(vi32 x) { return x < 0 ? vi32{} : x; }
INLINE vi64 op_relu(vi64 x) { return {x.lo < 0 ? half_i64{} : x.lo, x.hi < 0 ? half_i64{} : x.hi}; }
template <class T> INLINE T op_relu(T x) { return x < 0 ? (T)0 : x; }

INLINE mask op_logical_not(mask a) { return !a; }
INLINE mask op_logical_not(vf32 a) { return {a == 0.0f}; }
INLINE mask op_logical_not(vi32 a) { return {a == 0}; }
INLINE mask op_logical_not(vf64 a) { return a == vf64{}; }
INLINE mask op_logical_not(vi64 a) { return a == vi64{}; }
template <class T> INLINE bool op_logical_not(T a) { return a == 0; }
INLINE mask op_bitwise_not(mask a) { return !a; }
INLINE bool op_bitwise_not(bool a) { return !a; }
INLINE vi32 op_bitwise_not(vi32 a) { return ~a; }
INLINE vi64 op_bitwise_not(vi64 a) { return ~a; }
INLINE int32_t op_bitwise_not(int32_t a) { return ~a; }
INLINE int64_t op_bitwise_not(int64_t a) { return ~a; }
#define BITWISE(name, op) \
    template <class T> INLINE T name(T a, T b) { return a op b; }
BITWISE(op_bitwise_and, &) BITWISE(op_bitwise_or, |) BITWISE(op_bitwise_xor, ^)

INLINE float bitcast_f32(int32_t x) { return bits_to_float((uint32_t)x); }
INLINE int32_t bitcast_i32(float x) { return (int32_t)float_to_bits(x); }
INLINE vf32 bitcast_f32(vi32 x) { return (vf32)x; }
INLINE vi32 bitcast_i32(vf32 x) { return (vi32)x; }
INLINE double bitcast_f64(int64_t x) {
    double r;
    __builtin_memcpy(&r, &x, 8);
    return r;
}
INLINE int64_t bitcast_i64(double x) {
    int64_t r;
    __builtin_memcpy(&r, &x, 8);
    return r;
}
INLINE vf64 bitcast_f64(vi64 x) { return {(half_f64)x.lo, (half_f64)x.hi}; }
INLINE vi64 bitcast_i64(vf64 x) { return {(half_i64)x.lo, (half_i64)x.hi}; }
// a shift by less than 0 or by the width or more: as ATen, zero (left) or the sign (right)
INLINE int32_t op_lshift(int32_t a, int32_t n) { return n < 0 || n >= 32 ? 0 : (int32_t)((uint32_t)a << n); }
INLINE int64_t op_lshift(int64_t a, int64_t n) { return n < 0 || n >= 64 ? 0 : (int64_t)((uint64_t)a << n); }
INLINE int32_t op_rshift(int32_t a, int32_t n) { return a >> (n < 0 || n >= 32 ? 31 : n); }
INLINE int64_t op_rshift(int64_t a, int64_t n) { return a >> (n < 0 || n >= 64 ? 63 : n); }
INLINE vi32 op_lshift(vi32 a, vi32 n) { return (vu32)n < 32u ? (vi32)((vu32)a << ((vu32)n & 31u)) : vi32{}; }
INLINE vi32 op_rshift(vi32 a, vi32 n) { return a >> ((vu32)n < 32u ? n : vi32{} + 31); }
INLINE half_i64 shift_half_left(half_i64 a, half_i64 n) { return (n >= 0) & (n < 64) ? a << (n & 63) : half_i64{}; }
INLINE half_i64 shift_half_right(half_i64 a, half_i64 n) { return a >> ((n >= 0) & (n < 64) ? n : half_i64{} + 63); }
INLINE vi64 op_lshift(vi64 a, vi64 n) { return {shift_half_left(a.lo, n.lo), shift_half_left(a.hi, n.hi)}; }
INLINE vi64 op_rshift(vi64 a, vi64 n) { return {shift_half_right(a.lo, n.lo), shift_half_right(a.hi, n.hi)}; }

// ---- horizontal reductions, in pairs -----------------------------------------------------------------------------------------------
#ifdef __clang__
template <class V> INLINE V swap_lanes(V x, int distance) {
    V r = x;
    for (int i = 0; i < sizeof x / sizeof x[0]; ++i) r[i] = x[i ^ distance];
    return r;
}
#else
template <class V> INLINE V swap_lanes(V x, int distance) { return __builtin_shuffle(x, vi32{IOTA} ^ distance); }
INLINE half_f64 swap_lanes(half_f64 x, int distance) { return __builtin_shuffle(x, half_i64{IOTA_LO} ^ distance); }
INLINE half_i64 swap_lanes(half_i64 x, int distance) { return __builtin_shuffle(x, half_i64{IOTA_LO} ^ distance); }
#endif
#define HORIZONTAL(name, combine, T, V) \
    INLINE T name(V x) { \
        if (LANES >= 16) x = combine(x, swap_lanes(x, 8)); \
        if (LANES >= 8) x = combine(x, swap_lanes(x, 4)); \
        x = combine(x, swap_lanes(x, 2)); \
        return combine(x, swap_lanes(x, 1))[0]; \
    }
#define HORIZONTAL_PAIR(name, combine, T, V) \
    INLINE T name(V x) { \
        x = combine(x, V{x.hi, x.hi}); \
        if (HALF >= 8) x = combine(x, V{swap_lanes(x.lo, 4), x.hi}); \
        if (HALF >= 4) x = combine(x, V{swap_lanes(x.lo, 2), x.hi}); \
        return combine(x, V{swap_lanes(x.lo, 1), x.hi}).lo[0]; \
    }
#define HORIZONTAL_NUMBERS(name, combine) \
    HORIZONTAL(name, combine, float, vf32) HORIZONTAL_PAIR(name, combine, double, vf64) \
    HORIZONTAL(name, combine, int32_t, vi32) HORIZONTAL_PAIR(name, combine, int64_t, vi64)
HORIZONTAL_NUMBERS(reduce_sum, op_add)
HORIZONTAL_NUMBERS(reduce_prod, op_mul)
HORIZONTAL_NUMBERS(reduce_max, op_maximum)
HORIZONTAL_NUMBERS(reduce_min, op_minimum)
HORIZONTAL(reduce_xor_sum, op_bitwise_xor, int32_t, vi32)
HORIZONTAL_PAIR(reduce_xor_sum, op_bitwise_xor, int64_t, vi64)
INLINE bool reduce_any(mask m) { return any(m); }
INLINE bool reduce_all(mask m) { return all(m); }
INLINE bool reduce_max(mask m) { return any(m); }
INLINE bool reduce_min(mask m) { return all(m); }

// ---- position of the largest or smallest; a NaN counts as that, the first wins ------------------------------------------------------
// A position begins as that of the lane's first element, and its value as the worst. Lanes without elements never tell.
#define ARG_REDUCTION(kind, op, not_op, reduce) \
    INLINE mask better_##kind(vf32 value, vf32 best) { return {~(value not_op best) & (best == best)}; } \
    INLINE mask better_##kind(vi32 value, vi32 best) { return {value op best}; } \
    INLINE mask better_##kind(vf64 value, vf64 best) { return !(value not_op best) & (best == best); } \
    INLINE mask better_##kind(vi64 value, vi64 best) { return value op best; } \
    template <class T> INLINE void update_##kind(T &best, int64_t &position, T value, int64_t at) { \
        if (value op best || (value != value && best == best)) best = value, position = at; \
    } \
    template <class V, class P> INLINE void update_##kind(V &best, P &position, V value, P at) { \
        mask m = better_##kind(value, best); \
        best = select(m, value, best); \
        position = select(m, at, position); \
    } \
    template <class V, class P> INLINE void merge_##kind(V &best, P &position, V value, P at) { \
        mask equal = op_eq(value, best) | (op_ne(value, value) & op_ne(best, best)); \
        mask m = better_##kind(value, best) | (equal & op_lt(at, position)); \
        best = select(m, value, best); \
        position = select(m, at, position); \
    } \
    template <class V, class P> INLINE int64_t reduce_##kind(V best, P position) { \
        V found = splat(reduce(best)); \
        mask equal = op_eq(best, found) | (op_ne(best, best) & op_ne(found, found)); \
        const auto none = ~((decltype(lane(position, 0)))1 << (8 * sizeof lane(position, 0) - 1)); \
        return reduce_min(select(equal, position, splat(none))); \
    }
ARG_REDUCTION(argmax, >, <=, reduce_max)
ARG_REDUCTION(argmin, <, >=, reduce_min)
