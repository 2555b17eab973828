// SIMD values for generated kernels: types, memory, selection and indices. No header of the system, of C++ or of
// torch is included, which keeps compilation quick. vec_convert.h holds conversions, vec_strided.h strided memory and
// tiles, vec_math.h elementary functions and horizontal reductions, vec_divide.h division.
//
// A vector has LANES float lanes. int64 and double vectors have LANES lanes in two registers. The register type of a
// value follows from its dtype: float, half and bfloat16 -> vf32; bool -> mask; int8..int32, uint8 -> vi32; int64 ->
// vi64; double -> vf64; scalars correspondingly float, bool, int32_t, int64_t, double.
#pragma once

typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

extern "C" int omp_get_max_threads();
extern "C" int omp_get_num_threads();
extern "C" int omp_get_thread_num();

#define INLINE static inline __attribute__((always_inline))

// The condition of the innermost of many loops. GCC takes all loops of a deep nest for equally frequent, and would keep
// in registers what the outer ones need.
#if __has_builtin(__builtin_expect_with_probability)
#define OFTEN(condition) __builtin_expect_with_probability(condition, 1, 0.998)
#else
#define OFTEN(condition) (condition)
#endif

// Builtins of instructions differ between compilers and versions; without any of them, portable code is used.
#define BUILTINS_AVX512 \
    (__has_builtin(__builtin_ia32_cmppd512_mask) && __has_builtin(__builtin_ia32_cmpq512_mask) && \
    __has_builtin(__builtin_ia32_cvtmask2d512) && __has_builtin(__builtin_ia32_kunpckhi) && \
    __has_builtin(__builtin_ia32_cvtd2mask512) && __has_builtin(__builtin_ia32_cvtdq2pd512_mask) && \
    __has_builtin(__builtin_ia32_cvtps2pd512_mask) && __has_builtin(__builtin_ia32_cvtq2mask512) && \
    __has_builtin(__builtin_ia32_cvttpd2dq512_mask) && \
    __has_builtin(__builtin_ia32_cvttpd2qq512_mask) && __has_builtin(__builtin_ia32_cvttps2dq512_mask) && \
    __has_builtin(__builtin_ia32_cvttps2qq512_mask) && \
    __has_builtin(__builtin_ia32_gatherdiv16sf) && \
    __has_builtin(__builtin_ia32_gathersiv16sf) && __has_builtin(__builtin_ia32_loaddqudi512_mask) && \
    __has_builtin(__builtin_ia32_loaddquhi256_mask) && __has_builtin(__builtin_ia32_loaddquqi128_mask) && \
    __has_builtin(__builtin_ia32_loaddqusi512_mask) && __has_builtin(__builtin_ia32_loadups512_mask) && \
    __has_builtin(__builtin_ia32_maxpd512_mask) && __has_builtin(__builtin_ia32_maxps512_mask) && \
    __has_builtin(__builtin_ia32_minpd512_mask) && __has_builtin(__builtin_ia32_minps512_mask) && \
    __has_builtin(__builtin_ia32_pmovdb512_mask) && __has_builtin(__builtin_ia32_pmovdw512_mask) && \
    __has_builtin(__builtin_ia32_pmovqd512_mask) && __has_builtin(__builtin_ia32_pmovsxbd512_mask) && \
    __has_builtin(__builtin_ia32_pmovsxdq512_mask) && __has_builtin(__builtin_ia32_pmovsxwd512_mask) && \
    __has_builtin(__builtin_ia32_pmovzxbd512_mask) && __has_builtin(__builtin_ia32_pmovzxwd512_mask) && \
    __has_builtin(__builtin_ia32_rndscalepd_mask) && __has_builtin(__builtin_ia32_rndscaleps_mask) && __has_builtin(__builtin_ia32_scalefpd512_mask) && \
    __has_builtin(__builtin_ia32_scalefps512_mask) && \
    __has_builtin(__builtin_ia32_sqrtpd512_mask) && \
    __has_builtin(__builtin_ia32_sqrtps512_mask) && __has_builtin(__builtin_ia32_storedqudi512_mask) && \
    __has_builtin(__builtin_ia32_storedquhi256_mask) && __has_builtin(__builtin_ia32_storedquqi128_mask) && \
    __has_builtin(__builtin_ia32_storedqusi512_mask) && __has_builtin(__builtin_ia32_storeups512_mask) && \
    __has_builtin(__builtin_ia32_vcvtph2ps512_mask) && __has_builtin(__builtin_ia32_vcvtps2ph512_mask) && \
    __has_builtin(__builtin_ia32_vfmaddps512_mask))
#define BUILTINS_AVX2 \
    (__has_builtin(__builtin_ia32_cvttpd2dq256) && __has_builtin(__builtin_ia32_cvttsd2si64) && __has_builtin(__builtin_ia32_cvttps2dq256) && \
    __has_builtin(__builtin_ia32_permvarsi256) && __has_builtin(__builtin_ia32_pmovsxbd256) && \
    __has_builtin(__builtin_ia32_pmovsxwd256) && __has_builtin(__builtin_ia32_pmovzxwd256) && \
    __has_builtin(__builtin_ia32_pmovsxdq256) && __has_builtin(__builtin_ia32_pmovzxbd256) && __has_builtin(__builtin_ia32_pshufb256) && \
    __has_builtin(__builtin_ia32_maxpd256) && __has_builtin(__builtin_ia32_maxps256) && \
    __has_builtin(__builtin_ia32_minpd256) && __has_builtin(__builtin_ia32_minps256) && \
    __has_builtin(__builtin_ia32_movmskps256) && __has_builtin(__builtin_ia32_roundpd256) && \
    __has_builtin(__builtin_ia32_roundps256) && __has_builtin(__builtin_ia32_sqrtpd256) && \
    __has_builtin(__builtin_ia32_sqrtps256) && __has_builtin(__builtin_ia32_vcvtph2ps256) && \
    __has_builtin(__builtin_ia32_vcvtps2ph256) && __has_builtin(__builtin_ia32_vfmaddps256))
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && BUILTINS_AVX512
#define SIMD_AVX512 1
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && BUILTINS_AVX2
#define SIMD_AVX2 1
#define LANES 8
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define HALF (LANES / 2)

typedef float vf32 __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t vi32 __attribute__((vector_size(4 * LANES), may_alias));
typedef uint32_t vu32 __attribute__((vector_size(4 * LANES), may_alias));
typedef int16_t vi16 __attribute__((vector_size(2 * LANES), may_alias));
typedef uint16_t vu16 __attribute__((vector_size(2 * LANES), may_alias));
typedef int8_t vi8 __attribute__((vector_size(LANES), may_alias));
typedef uint8_t vu8 __attribute__((vector_size(LANES), may_alias));
typedef double half_f64 __attribute__((vector_size(4 * LANES), may_alias));
typedef int64_t half_i64 __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t half_i32 __attribute__((vector_size(2 * LANES), may_alias));
typedef float half_f32 __attribute__((vector_size(2 * LANES), may_alias));

// the vector types without an alignment requirement, for memory
typedef float mem_f32 __attribute__((vector_size(4 * LANES), may_alias, aligned(4)));
typedef int32_t mem_i32 __attribute__((vector_size(4 * LANES), may_alias, aligned(4)));
typedef int16_t mem_i16 __attribute__((vector_size(2 * LANES), may_alias, aligned(2)));
typedef uint16_t mem_u16 __attribute__((vector_size(2 * LANES), may_alias, aligned(2)));
typedef int8_t mem_i8 __attribute__((vector_size(LANES), may_alias, aligned(1)));
typedef uint8_t mem_u8 __attribute__((vector_size(LANES), may_alias, aligned(1)));
typedef double mem_f64 __attribute__((vector_size(4 * LANES), may_alias, aligned(8)));
typedef int64_t mem_i64 __attribute__((vector_size(4 * LANES), may_alias, aligned(8)));

struct bfloat16 {
    uint16_t bits;
};
struct float16 {
    uint16_t bits;
};

// A lane is all ones (true) or zero; gcc keeps it in a mask register where the processor has them.
struct mask {
    vi32 bits;
};
struct vi64 {
    half_i64 lo, hi;
};
struct vf64 {
    half_f64 lo, hi;
};

// ---- broadcasting ----------------------------------------------------------------------------------------------------
INLINE vf32 splat(float x) { return x - vf32{}; }  // -0.0 - 0.0 is -0.0: exact for every x
INLINE vi32 splat(int32_t x) { return x + vi32{}; }
INLINE vi64 splat(int64_t x) {
    half_i64 v = x + half_i64{};
    return {v, v};
}
INLINE vf64 splat(double x) {
    half_f64 v = x - half_f64{};
    return {v, v};
}
INLINE mask splat(bool x) { return {splat(-(int32_t)x)}; }
INLINE vf32 splat(vf32 x) { return x; }
INLINE vi32 splat(vi32 x) { return x; }
INLINE vi64 splat(vi64 x) { return x; }
INLINE vf64 splat(vf64 x) { return x; }
INLINE mask splat(mask x) { return x; }

#if LANES == 16
#define IOTA 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define IOTA_LO 0, 1, 2, 3, 4, 5, 6, 7
#define IOTA_HI 8, 9, 10, 11, 12, 13, 14, 15
#elif LANES == 8
#define IOTA 0, 1, 2, 3, 4, 5, 6, 7
#define IOTA_LO 0, 1, 2, 3
#define IOTA_HI 4, 5, 6, 7
#else
#define IOTA 0, 1, 2, 3
#define IOTA_LO 0, 1
#define IOTA_HI 2, 3
#endif
// first + step * lane
INLINE vi32 arange_i32(int32_t first, int32_t step) { return first + step * vi32{IOTA}; }
INLINE vi64 arange_i64(int64_t first, int64_t step) {
    return {first + step * half_i64{IOTA_LO}, first + step * half_i64{IOTA_HI}};
}

// ---- lanes, one by one (what has no vector instruction) -----------------------------------------------------------------
INLINE float lane(vf32 x, int i) { return x[i]; }
INLINE int32_t lane(vi32 x, int i) { return x[i]; }
INLINE int64_t lane(vi64 x, int i) { return i < HALF ? x.lo[i] : x.hi[i - HALF]; }
INLINE double lane(vf64 x, int i) { return i < HALF ? x.lo[i] : x.hi[i - HALF]; }
INLINE bool lane(mask x, int i) { return x.bits[i] != 0; }
INLINE void set_lane(vf32 &x, int i, float v) { x[i] = v; }
INLINE void set_lane(vi32 &x, int i, int32_t v) { x[i] = v; }
INLINE void set_lane(vi64 &x, int i, int64_t v) {
    if (i < HALF) x.lo[i] = v;
    else x.hi[i - HALF] = v;
}
INLINE void set_lane(vf64 &x, int i, double v) {
    if (i < HALF) x.lo[i] = v;
    else x.hi[i - HALF] = v;
}
INLINE void set_lane(mask &x, int i, bool v) { x.bits[i] = -(int32_t)v; }

// ---- masks -----------------------------------------------------------------------------------------------------------
INLINE mask operator&(mask a, mask b) { return {a.bits & b.bits}; }
INLINE mask operator|(mask a, mask b) { return {a.bits | b.bits}; }
INLINE mask operator^(mask a, mask b) { return {a.bits ^ b.bits}; }
INLINE mask operator!(mask a) { return {~a.bits}; }
INLINE mask operator==(mask a, mask b) { return {~(a.bits ^ b.bits)}; }
INLINE mask operator!=(mask a, mask b) { return {a.bits ^ b.bits}; }
INLINE half_i32 low_half(vi32 x) {
    half_i32 r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}
INLINE half_f32 low_half(vf32 x) {
    half_f32 r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}
#if LANES >= 8 && __GNUC__ >= 12
// shuffles keep the halves in registers; a copy through memory would wait for the stores
INLINE half_i32 high_half(vi32 x) { return __builtin_shufflevector(x, x, IOTA_HI); }
INLINE half_f32 high_half(vf32 x) { return __builtin_shufflevector(x, x, IOTA_HI); }
INLINE vi32 join_i32(half_i32 a, half_i32 b) { return __builtin_shufflevector(a, b, IOTA); }
INLINE vf32 join_f32(half_f32 a, half_f32 b) { return __builtin_shufflevector(a, b, IOTA); }
#else
INLINE half_i32 high_half(vi32 x) {
    half_i32 r;
    __builtin_memcpy(&r, (char *)&x + sizeof r, sizeof r);
    return r;
}
INLINE half_f32 high_half(vf32 x) {
    half_f32 r;
    __builtin_memcpy(&r, (char *)&x + sizeof r, sizeof r);
    return r;
}
INLINE vi32 join_i32(half_i32 a, half_i32 b) {
    vi32 r;
    __builtin_memcpy(&r, &a, sizeof a);
    __builtin_memcpy((char *)&r + sizeof a, &b, sizeof b);
    return r;
}
INLINE vf32 join_f32(half_f32 a, half_f32 b) {
    vf32 r;
    __builtin_memcpy(&r, &a, sizeof a);
    __builtin_memcpy((char *)&r + sizeof a, &b, sizeof b);
    return r;
}
#endif
#ifdef SIMD_AVX512
typedef long long x86_i64x8 __attribute__((vector_size(64)));
INLINE half_i32 narrow_half(half_i64 x) {
    return (half_i32)__builtin_ia32_pmovqd512_mask((x86_i64x8)x, half_i32{}, (uint8_t)-1);
}
INLINE half_i64 widen_half(half_i32 x) {
    return (half_i64)__builtin_ia32_pmovsxdq512_mask(x, x86_i64x8{}, (uint8_t)-1);
}
#elif defined(SIMD_AVX2)
INLINE half_i32 narrow_half(half_i64 x) {
    return low_half(__builtin_ia32_permvarsi256((vi32)x, vi32{0, 2, 4, 6, 1, 3, 5, 7}));
}
INLINE half_i64 widen_half(half_i32 x) { return (half_i64)__builtin_ia32_pmovsxdq256(x); }
#else
INLINE half_i32 narrow_half(half_i64 x) { return __builtin_convertvector(x, half_i32); }
INLINE half_i64 widen_half(half_i32 x) { return __builtin_convertvector(x, half_i64); }
#endif
// Narrow integers to and from 32-bit lanes. Compilers convert bytes lane by lane unless shorts are in between.
#ifdef SIMD_AVX512
typedef char x86_i8x16 __attribute__((vector_size(16)));
typedef short x86_i16x16 __attribute__((vector_size(32)));
INLINE vi32 widen(vi16 x) { return __builtin_ia32_pmovsxwd512_mask((x86_i16x16)x, vi32{}, (uint16_t)-1); }
INLINE vi32 widen(vu16 x) { return __builtin_ia32_pmovzxwd512_mask((x86_i16x16)x, vi32{}, (uint16_t)-1); }
INLINE vi32 widen(vi8 x) { return __builtin_ia32_pmovsxbd512_mask((x86_i8x16)x, vi32{}, (uint16_t)-1); }
INLINE vi32 widen(vu8 x) { return __builtin_ia32_pmovzxbd512_mask((x86_i8x16)x, vi32{}, (uint16_t)-1); }
INLINE vi16 narrow_i16(vi32 x) { return (vi16)__builtin_ia32_pmovdw512_mask(x, x86_i16x16{}, (uint16_t)-1); }
INLINE vi8 narrow_i8(vi32 x) { return (vi8)__builtin_ia32_pmovdb512_mask(x, x86_i8x16{}, (uint16_t)-1); }
#elif defined(SIMD_AVX2)
typedef char x86_i8x16 __attribute__((vector_size(16)));
typedef char x86_i8x32 __attribute__((vector_size(32)));
template <class V> INLINE x86_i8x16 padded(V x) {
    typedef long long x86_i64x2 __attribute__((vector_size(16)));
    return (x86_i8x16)x86_i64x2{(long long)x, 0};
}
template <class V> INLINE V first_bytes(vi32 x) {
    V r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}
typedef short x86_i16x8 __attribute__((vector_size(16)));
INLINE vi32 widen(vi16 x) { return __builtin_ia32_pmovsxwd256((x86_i16x8)x); }
INLINE vi32 widen(vu16 x) { return __builtin_ia32_pmovzxwd256((x86_i16x8)x); }
INLINE vi32 widen(vi8 x) { return __builtin_ia32_pmovsxbd256(padded(x)); }
INLINE vi32 widen(vu8 x) { return __builtin_ia32_pmovzxbd256(padded(x)); }
INLINE vi16 narrow_i16(vi32 x) {
    const x86_i8x32 low = {0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,
                           0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1};
    vi32 packed = (vi32)__builtin_ia32_pshufb256((x86_i8x32)x, low);
    return first_bytes<vi16>(__builtin_ia32_permvarsi256(packed, vi32{0, 1, 4, 5, 2, 3, 6, 7}));
}
INLINE vi8 narrow_i8(vi32 x) {
    const x86_i8x32 low = {0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                           0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    vi32 packed = (vi32)__builtin_ia32_pshufb256((x86_i8x32)x, low);
    return first_bytes<vi8>(__builtin_ia32_permvarsi256(packed, vi32{0, 4, 1, 2, 3, 5, 6, 7}));
}
#else
INLINE vi32 widen(vi16 x) { return __builtin_convertvector(x, vi32); }
INLINE vi32 widen(vu16 x) { return __builtin_convertvector(x, vi32); }
INLINE vi32 widen(vi8 x) { return widen(__builtin_convertvector(x, vi16)); }
INLINE vi32 widen(vu8 x) { return widen(__builtin_convertvector(x, vu16)); }
INLINE vi16 narrow_i16(vi32 x) { return __builtin_convertvector(x, vi16); }
INLINE vi8 narrow_i8(vi32 x) { return __builtin_convertvector(narrow_i16(x), vi8); }
#endif
INLINE mask join(half_i64 lo, half_i64 hi) { return {join_i32(narrow_half(lo), narrow_half(hi))}; }
INLINE mask first_lanes(int n) { return {vi32{IOTA} < n}; }
#ifdef SIMD_AVX512
INLINE uint16_t bitmask(mask m) { return (uint16_t)__builtin_ia32_cvtd2mask512(m.bits); }
INLINE uint16_t bitmask(int n) { return (uint16_t)((1u << n) - 1); }
INLINE bool any(mask m) { return bitmask(m) != 0; }
INLINE bool all(mask m) { return bitmask(m) == 0xffff; }
#elif defined(SIMD_AVX2)
typedef float x86_f32x8 __attribute__((vector_size(32)));
INLINE bool any(mask m) { return __builtin_ia32_movmskps256((x86_f32x8)m.bits) != 0; }
INLINE bool all(mask m) { return __builtin_ia32_movmskps256((x86_f32x8)m.bits) == 0xff; }
#else
INLINE bool any(mask m) {
    int32_t r = 0;
    for (int i = 0; i < LANES; ++i) r |= m.bits[i];
    return r != 0;
}
INLINE bool all(mask m) {
    int32_t r = -1;
    for (int i = 0; i < LANES; ++i) r &= m.bits[i];
    return r != 0;
}
#endif

// ---- 64-bit arithmetic, half by half -------------------------------------------------------------------------------------
#define PAIRWISE(T, op) \
    INLINE T operator op(T a, T b) { return {a.lo op b.lo, a.hi op b.hi}; }
#ifdef SIMD_AVX512
// Registers of masks need no exchange of lanes. Immediates: those of vpcmpq, and of vcmppd with its signals as in C.
typedef double x86_f64x8 __attribute__((vector_size(64)));
INLINE mask join_bits(uint8_t lo, uint8_t hi) {
    return {(vi32)__builtin_ia32_cvtmask2d512((uint16_t)__builtin_ia32_kunpckhi(hi, lo))};
}
#define COMPARED_I64(a, b, i) (uint8_t)__builtin_ia32_cmpq512_mask((x86_i64x8)a, (x86_i64x8)b, i, (uint8_t)-1)
#define COMPARED_F64(a, b, i) (uint8_t)__builtin_ia32_cmppd512_mask((x86_f64x8)a, (x86_f64x8)b, i, (uint8_t)-1, 4)
#define PAIRWISE_COMPARE(op, i, f) \
    INLINE mask operator op(vi64 a, vi64 b) { return join_bits(COMPARED_I64(a.lo, b.lo, i), COMPARED_I64(a.hi, b.hi, i)); } \
    INLINE mask operator op(vf64 a, vf64 b) { return join_bits(COMPARED_F64(a.lo, b.lo, f), COMPARED_F64(a.hi, b.hi, f)); }
#else
#define PAIRWISE_COMPARE(op, i, f) \
    INLINE mask operator op(vi64 a, vi64 b) { return join(a.lo op b.lo, a.hi op b.hi); } \
    INLINE mask operator op(vf64 a, vf64 b) { return join(a.lo op b.lo, a.hi op b.hi); }
#endif
PAIRWISE(vi64, +) PAIRWISE(vi64, -) PAIRWISE(vi64, *) PAIRWISE(vi64, &) PAIRWISE(vi64, |) PAIRWISE(vi64, ^)
PAIRWISE(vf64, +) PAIRWISE(vf64, -) PAIRWISE(vf64, *) PAIRWISE(vf64, /)
PAIRWISE_COMPARE(<, 1, 1) PAIRWISE_COMPARE(<=, 2, 2) PAIRWISE_COMPARE(>, 6, 14) PAIRWISE_COMPARE(>=, 5, 13)
PAIRWISE_COMPARE(==, 0, 0) PAIRWISE_COMPARE(!=, 4, 4)
INLINE vi64 operator-(vi64 a) { return {-a.lo, -a.hi}; }
INLINE vi64 operator~(vi64 a) { return {~a.lo, ~a.hi}; }
INLINE vf64 operator-(vf64 a) { return {-a.lo, -a.hi}; }

// Comparisons give a mask (vectors) or a bool (scalars).
#define COMPARE(name, op) \
    INLINE mask name(vf32 a, vf32 b) { return {a op b}; } \
    INLINE mask name(vi32 a, vi32 b) { return {a op b}; } \
    INLINE mask name(vi64 a, vi64 b) { return a op b; } \
    INLINE mask name(vf64 a, vf64 b) { return a op b; } \
    template <class T> INLINE bool name(T a, T b) { return a op b; }
COMPARE(op_lt, <) COMPARE(op_le, <=) COMPARE(op_gt, >) COMPARE(op_ge, >=)
COMPARE(op_eq, ==) COMPARE(op_ne, !=)
INLINE mask op_lt(mask a, mask b) { return !a & b; }
INLINE mask op_le(mask a, mask b) { return !a | b; }
INLINE mask op_gt(mask a, mask b) { return a & !b; }
INLINE mask op_ge(mask a, mask b) { return a | !b; }
INLINE mask op_eq(mask a, mask b) { return a == b; }
INLINE mask op_ne(mask a, mask b) { return a ^ b; }

INLINE vf32 select(mask m, vf32 a, vf32 b) { return m.bits ? a : b; }
INLINE vi32 select(mask m, vi32 a, vi32 b) { return m.bits ? a : b; }
INLINE mask select(mask m, mask a, mask b) { return {(m.bits & a.bits) | (~m.bits & b.bits)}; }
INLINE vi64 select(mask m, vi64 a, vi64 b) {
    half_i64 lo = widen_half(low_half(m.bits));
    half_i64 hi = widen_half(high_half(m.bits));
    return {lo ? a.lo : b.lo, hi ? a.hi : b.hi};
}
INLINE vf64 select(mask m, vf64 a, vf64 b) {
    half_i64 lo = widen_half(low_half(m.bits));
    half_i64 hi = widen_half(high_half(m.bits));
    return {lo ? a.lo : b.lo, hi ? a.hi : b.hi};
}
template <class T> INLINE T select(bool m, T a, T b) { return m ? a : b; }

// ---- reduced-precision floats ------------------------------------------------------------------------------------------------
INLINE float bits_to_float(uint32_t x) {
    float r;
    __builtin_memcpy(&r, &x, 4);
    return r;
}
INLINE uint32_t float_to_bits(float x) {
    uint32_t r;
    __builtin_memcpy(&r, &x, 4);
    return r;
}
INLINE float widen(bfloat16 x) { return bits_to_float((uint32_t)x.bits << 16); }
INLINE uint16_t bfloat16_bits(float x) {  // to nearest, ties to even; a NaN stays a NaN
    uint32_t b = float_to_bits(x);
    return x != x ? 0x7fc0 : (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
// IEEE half from and to float by exponent arithmetic on the bits; denormals through a float addition that rounds for us.
INLINE float widen(float16 x) {
    uint32_t shifted = (uint32_t)(x.bits & 0x7fff) << 13, sign = (uint32_t)(x.bits & 0x8000) << 16;
    uint32_t exponent = shifted & 0x0f800000;
    if (exponent == 0x0f800000) return bits_to_float(sign | (shifted + 0x70000000));
    if (exponent == 0) return bits_to_float(sign | float_to_bits(bits_to_float(shifted + 0x38800000) - 6.103515625e-05f));
    return bits_to_float(sign | (shifted + 0x38000000));
}
INLINE uint16_t float16_bits(float x) {
    uint32_t b = float_to_bits(x), sign = (b >> 16) & 0x8000, a = b & 0x7fffffff;
    if (a > 0x7f800000) return sign | 0x7e00;
    if (a >= 0x47800000) return sign | 0x7c00;                                                          // overflow
    if (a < 0x38800000) return sign | (uint16_t)(float_to_bits(bits_to_float(a) + 0.5f) - 0x3f000000);  // denormal
    return sign | (uint16_t)((a - 0x38000000 + 0x0fff + ((a >> 13) & 1)) >> 13);
}
INLINE vf32 widen_bf16(vu16 x) { return (vf32)(widen(x) << 16); }
INLINE vu16 narrow_bf16(vf32 x) {
    vu32 b = (vu32)x;
    vu32 r = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    return (vu16)narrow_i16((vi32)(x == x ? r : (vu32{} + 0x7fc0)));
}
#ifdef SIMD_AVX512
INLINE vf32 widen_f16(vu16 x) { return (vf32)__builtin_ia32_vcvtph2ps512_mask((vi16)x, vf32{}, (short)-1, 4); }
INLINE vu16 narrow_f16(vf32 x) { return (vu16)__builtin_ia32_vcvtps2ph512_mask(x, 0, vi16{}, (short)-1); }
#elif defined(SIMD_AVX2)
INLINE vf32 widen_f16(vu16 x) { return (vf32)__builtin_ia32_vcvtph2ps256((vi16)x); }
INLINE vu16 narrow_f16(vf32 x) { return (vu16)__builtin_ia32_vcvtps2ph256((x86_f32x8)x, 0); }
#else
INLINE vf32 widen_f16(vu16 x) {
    vf32 r;
    for (int i = 0; i < LANES; ++i) r[i] = widen(float16{x[i]});
    return r;
}
INLINE vu16 narrow_f16(vf32 x) {
    vu16 r;
    for (int i = 0; i < LANES; ++i) r[i] = float16_bits(x[i]);
    return r;
}
#endif
// the value after rounding to that dtype
INLINE float round_bf16(float x) { return bits_to_float((uint32_t)bfloat16_bits(x) << 16); }
INLINE vf32 round_bf16(vf32 x) {  // in lanes of 32 bits: exchanges of lanes take longer than this arithmetic
    vu32 b = (vu32)x;
    vu32 r = (b + 0x7fff + ((b >> 16) & 1)) & 0xffff0000;
    return (vf32)(x == x ? r : (vu32{} + 0x7fc00000));
}
INLINE float round_f16(float x) { return widen(float16{float16_bits(x)}); }
INLINE vf32 round_f16(vf32 x) { return widen_f16(narrow_f16(x)); }
INLINE int32_t wrap_i8(int32_t x) { return (int8_t)x; }
INLINE int32_t wrap_u8(int32_t x) { return (uint8_t)x; }
INLINE int32_t wrap_i16(int32_t x) { return (int16_t)x; }
INLINE vi32 wrap_i8(vi32 x) { return (x << 24) >> 24; }
INLINE vi32 wrap_u8(vi32 x) { return x & 0xff; }
INLINE vi32 wrap_i16(vi32 x) { return (x << 16) >> 16; }

#include "vec_convert.h"

// ---- memory ----------------------------------------------------------------------------------------------------------------
// load(p), load(p, n): n lanes are read, the others are zero. store(p, v), store(p, v, n): n lanes are written.
INLINE vf32 load(const float *p) { return *(const mem_f32 *)p; }
INLINE vi32 load(const int32_t *p) { return *(const mem_i32 *)p; }
INLINE vi32 load(const int16_t *p) { return widen((vi16)*(const mem_i16 *)p); }
INLINE vi32 load(const int8_t *p) { return widen((vi8)*(const mem_i8 *)p); }
INLINE vi32 load(const uint8_t *p) { return widen((vu8)*(const mem_u8 *)p); }
INLINE mask load(const bool *p) { return {widen((vu8)*(const mem_u8 *)p) != 0}; }
INLINE vf32 load(const bfloat16 *p) { return widen_bf16(*(const mem_u16 *)p); }
INLINE vf32 load(const float16 *p) { return widen_f16(*(const mem_u16 *)p); }
INLINE vi64 load(const int64_t *p) { return {*(const mem_i64 *)p, *(const mem_i64 *)(p + HALF)}; }
INLINE vf64 load(const double *p) { return {*(const mem_f64 *)p, *(const mem_f64 *)(p + HALF)}; }

INLINE void store(float *p, vf32 v) { *(mem_f32 *)p = v; }
INLINE void store(int32_t *p, vi32 v) { *(mem_i32 *)p = v; }
INLINE void store(int16_t *p, vi32 v) { *(mem_i16 *)p = narrow_i16(v); }
INLINE void store(int8_t *p, vi32 v) { *(mem_i8 *)p = narrow_i8(v); }
INLINE void store(uint8_t *p, vi32 v) { *(mem_i8 *)p = narrow_i8(v); }
INLINE void store(bool *p, mask v) { *(mem_i8 *)p = narrow_i8(-v.bits); }
INLINE void store(bfloat16 *p, vf32 v) { *(mem_u16 *)p = narrow_bf16(v); }
INLINE void store(float16 *p, vf32 v) { *(mem_u16 *)p = narrow_f16(v); }
INLINE void store(int64_t *p, vi64 v) {
    *(mem_i64 *)p = v.lo;
    *(mem_i64 *)(p + HALF) = v.hi;
}
INLINE void store(double *p, vf64 v) {
    *(mem_f64 *)p = v.lo;
    *(mem_f64 *)(p + HALF) = v.hi;
}
#ifdef SIMD_AVX512
INLINE vf32 load(const float *p, int n) { return __builtin_ia32_loadups512_mask(p, vf32{}, bitmask(n)); }
INLINE vi32 load(const int32_t *p, int n) { return __builtin_ia32_loaddqusi512_mask(p, vi32{}, bitmask(n)); }
INLINE void store(float *p, vf32 v, int n) { __builtin_ia32_storeups512_mask(p, v, bitmask(n)); }
INLINE void store(int32_t *p, vi32 v, int n) { __builtin_ia32_storedqusi512_mask(p, v, bitmask(n)); }
INLINE half_i64 load_half(const int64_t *p, uint8_t m) {
    return (half_i64)__builtin_ia32_loaddqudi512_mask((const long long *)p, x86_i64x8{}, m);
}
INLINE void store_half(int64_t *p, half_i64 v, uint8_t m) {
    __builtin_ia32_storedqudi512_mask((long long *)p, (x86_i64x8)v, m);
}
INLINE vi64 load(const int64_t *p, int n) {
    return {load_half(p, (uint8_t)bitmask(n)), load_half(p + HALF, (uint8_t)(bitmask(n) >> 8))};
}
INLINE vf64 load(const double *p, int n) {
    return {(half_f64)load_half((const int64_t *)p, (uint8_t)bitmask(n)),
            (half_f64)load_half((const int64_t *)p + HALF, (uint8_t)(bitmask(n) >> 8))};
}
INLINE void store(int64_t *p, vi64 v, int n) {
    store_half(p, v.lo, (uint8_t)bitmask(n));
    store_half(p + HALF, v.hi, (uint8_t)(bitmask(n) >> 8));
}
INLINE void store(double *p, vf64 v, int n) {
    store_half((int64_t *)p, (half_i64)v.lo, (uint8_t)bitmask(n));
    store_half((int64_t *)p + HALF, (half_i64)v.hi, (uint8_t)(bitmask(n) >> 8));
}
INLINE vu8 load_bytes(const void *p, uint16_t lanes) {
    return (vu8)__builtin_ia32_loaddquqi128_mask((const char *)p, x86_i8x16{}, lanes);
}
INLINE vu16 load_shorts(const void *p, uint16_t lanes) {
    return (vu16)__builtin_ia32_loaddquhi256_mask((const short *)p, x86_i16x16{}, lanes);
}
INLINE void store_bytes(void *p, vi8 v, int n) { __builtin_ia32_storedquqi128_mask((char *)p, (x86_i8x16)v, bitmask(n)); }
INLINE void store_shorts(void *p, vu16 v, int n) {
    __builtin_ia32_storedquhi256_mask((short *)p, (x86_i16x16)v, bitmask(n));
}
INLINE vi32 load(const int16_t *p, int n) { return widen((vi16)load_shorts(p, bitmask(n))); }
INLINE vi32 load(const int8_t *p, int n) { return widen((vi8)load_bytes(p, bitmask(n))); }
INLINE vi32 load(const uint8_t *p, int n) { return widen(load_bytes(p, bitmask(n))); }
INLINE mask load(const bool *p, int n) { return {widen(load_bytes(p, bitmask(n))) != 0}; }
INLINE vf32 load(const bfloat16 *p, int n) { return widen_bf16(load_shorts(p, bitmask(n))); }
INLINE vf32 load(const float16 *p, int n) { return widen_f16(load_shorts(p, bitmask(n))); }
INLINE void store(int16_t *p, vi32 v, int n) { store_shorts(p, (vu16)narrow_i16(v), n); }
INLINE void store(int8_t *p, vi32 v, int n) { store_bytes(p, narrow_i8(v), n); }
INLINE void store(uint8_t *p, vi32 v, int n) { store_bytes(p, narrow_i8(v), n); }
INLINE void store(bool *p, mask v, int n) { store_bytes(p, narrow_i8(-v.bits), n); }
INLINE void store(bfloat16 *p, vf32 v, int n) { store_shorts(p, narrow_bf16(v), n); }
INLINE void store(float16 *p, vf32 v, int n) { store_shorts(p, narrow_f16(v), n); }
#else
INLINE vf32 load(const float *p, int n) {
    vf32 r{};
    __builtin_memcpy(&r, p, 4 * n);
    return r;
}
INLINE vi32 load(const int32_t *p, int n) {
    vi32 r{};
    __builtin_memcpy(&r, p, 4 * n);
    return r;
}
INLINE void store(float *p, vf32 v, int n) { __builtin_memcpy(p, &v, 4 * n); }
INLINE void store(int32_t *p, vi32 v, int n) { __builtin_memcpy(p, &v, 4 * n); }
#endif
// without an instruction for partial vectors, a full vector on the stack serves
template <class P> INLINE auto load(const P *p, int n) {
    P whole[LANES] = {};
    __builtin_memcpy(whole, p, sizeof(P) * n);
    return load((const P *)whole);
}
template <class P, class V> INLINE void store(P *p, V v, int n) {
    P whole[LANES];
    store((P *)whole, v);
    __builtin_memcpy(p, whole, sizeof(P) * n);
}

// scalars: equal names, so that one kernel text serves both
INLINE float load_one(const float *p) { return *p; }
INLINE int32_t load_one(const int32_t *p) { return *p; }
INLINE int32_t load_one(const int16_t *p) { return *p; }
INLINE int32_t load_one(const int8_t *p) { return *p; }
INLINE int32_t load_one(const uint8_t *p) { return *p; }
INLINE bool load_one(const bool *p) { return *p; }
INLINE float load_one(const bfloat16 *p) { return widen(*p); }
INLINE float load_one(const float16 *p) { return widen(*p); }
INLINE int64_t load_one(const int64_t *p) { return *p; }
INLINE double load_one(const double *p) { return *p; }
INLINE void store_one(float *p, float v) { *p = v; }
INLINE void store_one(int32_t *p, int32_t v) { *p = v; }
INLINE void store_one(int16_t *p, int32_t v) { *p = (int16_t)v; }
INLINE void store_one(int8_t *p, int32_t v) { *p = (int8_t)v; }
INLINE void store_one(uint8_t *p, int32_t v) { *p = (uint8_t)v; }
INLINE void store_one(bool *p, bool v) { *p = v; }
INLINE void store_one(bfloat16 *p, float v) { p->bits = bfloat16_bits(v); }
INLINE void store_one(float16 *p, float v) { p->bits = float16_bits(v); }
INLINE void store_one(int64_t *p, int64_t v) { *p = v; }
INLINE void store_one(double *p, double v) { *p = v; }

// p[index[i]] for the first n lanes; the others are zero
template <class P> INLINE auto gather(const P *p, vi32 index, int n) {
    decltype(load(p)) r{};
    for (int i = 0; i < n; ++i) set_lane(r, i, load_one(p + index[i]));
    return r;
}
template <class P> INLINE auto gather(const P *p, vi64 index, int n) {
    decltype(load(p)) r{};
    for (int i = 0; i < n; ++i) set_lane(r, i, load_one(p + lane(index, i)));
    return r;
}
// only lanes of the mask are read
template <class P, class I> INLINE auto gather(const P *p, I index, mask m, int n) {
    decltype(load(p)) r{};
    for (int i = 0; i < n; ++i)
        if (m.bits[i]) set_lane(r, i, load_one(p + lane(index, i)));
    return r;
}
#ifdef SIMD_AVX512
INLINE vf32 gather(const float *p, vi32 index, int n) {
    return __builtin_ia32_gathersiv16sf(vf32{}, p, index, bitmask(n), 4);
}
INLINE vf32 gather(const float *p, vi32 index, mask m, int n) {
    return __builtin_ia32_gathersiv16sf(vf32{}, p, index, (uint16_t)(bitmask(n) & bitmask(m)), 4);
}
INLINE half_f32 gather_half(const float *p, half_i64 index, uint8_t lanes) {
    return __builtin_ia32_gatherdiv16sf(half_f32{}, p, (x86_i64x8)index, lanes, 4);
}
INLINE vf32 gather_lanes(const float *p, vi64 index, uint16_t lanes) {
    return join_f32(gather_half(p, index.lo, (uint8_t)lanes), gather_half(p, index.hi, (uint8_t)(lanes >> 8)));
}
INLINE vf32 gather(const float *p, vi64 index, int n) { return gather_lanes(p, index, bitmask(n)); }
INLINE vf32 gather(const float *p, vi64 index, mask m, int n) {
    return gather_lanes(p, index, (uint16_t)(bitmask(n) & bitmask(m)));
}
#endif
template <class P, class I, class V> INLINE void scatter(P *p, I index, V v, int n) {
    for (int i = 0; i < n; ++i) store_one(p + lane(index, i), lane(v, i));
}
// contiguous load of the lanes in the mask
template <class P> INLINE auto load_masked(const P *p, mask m, int n) {
    if (n == LANES && all(m)) return load(p);
    decltype(load(p)) r{};
    for (int i = 0; i < n; ++i)
        if (m.bits[i]) set_lane(r, i, load_one(p + i));
    return r;
}
#ifdef SIMD_AVX512
INLINE vf32 load_masked(const float *p, mask m, int n) {
    return __builtin_ia32_loadups512_mask(p, vf32{}, (uint16_t)(bitmask(n) & bitmask(m)));
}
INLINE vi32 load_masked(const int32_t *p, mask m, int n) {
    return __builtin_ia32_loaddqusi512_mask(p, vi32{}, (uint16_t)(bitmask(n) & bitmask(m)));
}
INLINE vi32 load_masked(const int16_t *p, mask m, int n) {
    return widen((vi16)load_shorts(p, (uint16_t)(bitmask(n) & bitmask(m))));
}
INLINE vf32 load_masked(const bfloat16 *p, mask m, int n) {
    return widen_bf16(load_shorts(p, (uint16_t)(bitmask(n) & bitmask(m))));
}
INLINE vf32 load_masked(const float16 *p, mask m, int n) {
    return widen_f16(load_shorts(p, (uint16_t)(bitmask(n) & bitmask(m))));
}
INLINE vi32 load_masked(const uint8_t *p, mask m, int n) {
    return widen(load_bytes(p, (uint16_t)(bitmask(n) & bitmask(m))));
}
#endif
// work: elements of simple arithmetic; starting a thread pays off from some ten thousand (ATen's grain size)
INLINE int threads_for(int64_t work) {
    int64_t wanted = work / 32768 + 1, most = omp_get_max_threads();
    return (int)(wanted < most ? wanted : most);
}

// Run `region` in this many threads, which share its `omp for` loops. A team of one costs 200 ns, so one thread has none.
template <class F> static __attribute__((noinline)) void run_region(const F &region) { region(); }
template <class F> INLINE void in_parallel(int threads, const F &region) {
    if (threads == 1) return run_region(region);
    #pragma omp parallel num_threads(threads)
    run_region(region);
}

// A thread's scratch row whose length is known only when the kernel runs: `count` elements, and room for a whole vector
template <class T> struct scratch {
    void *const memory;
    T *const data;
    explicit scratch(int64_t count)
        : memory(__builtin_malloc((count + LANES) * sizeof(T) + 64)), data((T *)(((uint64_t)memory + 63) & ~(uint64_t)63)) {
        if (!memory) __builtin_abort();
    }
    scratch(const scratch &) = delete;
    ~scratch() { __builtin_free(memory); }
    T &operator[](int64_t at) const { return data[at]; }
};
#include "vec_strided.h"

// Adds to an element that other threads may add to, unless this one is alone
template <class P, class S> INLINE void add_shared(P *p, S v, bool alone) {
    if (alone) {
        *p += v;
        return;
    }
#pragma omp atomic
    *p += v;
}

// ---- indices that come from tensors ----------------------------------------------------------------------------------------
// Python's negative indices wrap. An index that is out of range is reported (kernel_abi.md) and replaced by 0: check_index
// takes negative ones, check_position does not.
INLINE int64_t wrap_index(int64_t i, int64_t size) { return i < 0 ? i + size : i; }
static __attribute__((noinline, cold)) void report_index(int64_t i, int64_t size, int64_t *error) {
#pragma omp critical(index_error)
    if (!error[0]) {
        error[1] = i;
        error[2] = size;
        error[0] = 1;
    }
}
INLINE int64_t check_range(int64_t i, int64_t least, int64_t size, int64_t *error) {
    if (__builtin_expect(i >= least && i < size, 1)) return i;
    report_index(i, size, error);
    return 0;
}
INLINE vi64 wrap_index(vi64 i, int64_t size) {
    return {i.lo < 0 ? i.lo + size : i.lo, i.hi < 0 ? i.hi + size : i.hi};
}
// in halves, because a pair that such a call takes or returns lies in memory on the good way, too
static __attribute__((noinline, cold)) half_i64 replace_bad_indices(
    half_i64 i, int64_t least, int64_t size, int64_t *error, int n
) {
    for (int k = 0; k < HALF && k < n; ++k) i[k] = check_range(i[k], least, size, error);
    return i;
}
INLINE vi64 check_range(vi64 i, int64_t least, int64_t size, int64_t *error, int n) {
    typedef uint64_t half_u64 __attribute__((vector_size(4 * LANES), may_alias));
    half_u64 bound = half_u64{} + (uint64_t)(size - least);  // least <= i < size, as one comparison without signs
    half_i64 lo = i.lo, hi = i.hi;
    half_i64 bad = ((half_u64)(lo - least) >= bound) | ((half_u64)(hi - least) >= bound);
#ifdef SIMD_AVX512
    bool any_bad = __builtin_ia32_cvtq2mask512((x86_i64x8)bad) != 0;
#else
    bool any_bad = any(join(bad, bad));
#endif
    if (__builtin_expect(any_bad, 0)) {
        lo = replace_bad_indices(lo, least, size, error, n);
        hi = replace_bad_indices(hi, least, size, error, n - HALF);
    }
    return {lo, hi};
}
INLINE int64_t check_index(int64_t i, int64_t size, int64_t *error) {
    return wrap_index(check_range(i, -size, size, error), size);
}
INLINE vi64 check_index(vi64 i, int64_t size, int64_t *error, int n) {
    return wrap_index(check_range(i, -size, size, error, n), size);
}
INLINE int64_t check_position(int64_t i, int64_t size, int64_t *error) { return check_range(i, 0, size, error); }
INLINE vi64 check_position(vi64 i, int64_t size, int64_t *error, int n) { return check_range(i, 0, size, error, n); }

#include "vec_math.h"
#include "vec_divide.h"
#include "vec_iterative.h"
#include "vec_random.h"
#include "vec_scan.h"
