// Division with remainder on the types of vec.h: op_trunc_div, op_floor_div, op_fmod (sign of the dividend) and op_mod
// (sign of the divisor). Results are exact. Division of an integer by zero is an error in ATen that tensors of a graph
// cannot raise: here it gives 0 and never traps.
#pragma once
#include "vec.h"

// ---- integers ----------------------------------------------------------------------------------------------------------
INLINE int32_t op_trunc_div(int32_t a, int32_t b) { return b == 0 ? 0 : b == -1 ? op_neg(a) : a / b; }
INLINE int64_t op_trunc_div(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? op_neg(a) : a / b; }
// int32: the quotient in doubles, rounded down, is exact; x86 converts 2^31 to -2^31, as -2^31 / -1 wraps
INLINE vi32 op_trunc_div(vi32 a, vi32 b) {
    vi32 q = convert_i32(convert_f64(a) / convert_f64(b));
    return b == 0 ? vi32{} : q;
}
LANEWISE2(trunc_div_lanes, op_trunc_div, int64_t, vi64)
#ifdef SIMD_AVX512
INLINE vi64 op_trunc_div(vi64 a, vi64 b) {
    vi64 large = op_abs(a) | op_abs(b);  // below 2^53 quotients in doubles are exact
    if (__builtin_expect(any(vi64{large.lo >> 53, large.hi >> 53} != vi64{}), 0)) return trunc_div_lanes(a, b);
    vi64 q = convert_i64(convert_f64(a) / convert_f64(b));
    return {b.lo == 0 ? half_i64{} : q.lo, b.hi == 0 ? half_i64{} : q.hi};
}
#else
INLINE vi64 op_trunc_div(vi64 a, vi64 b) { return trunc_div_lanes(a, b); }
#endif
// overflow wraps: only -2^n / -1 overflows, and its remainder is 0
INLINE int32_t op_fmod(int32_t a, int32_t b) { return b == 0 || b == -1 ? 0 : a % b; }
INLINE int64_t op_fmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
INLINE vi32 op_fmod(vi32 a, vi32 b) { return b == 0 ? vi32{} : (vi32)((vu32)a - (vu32)op_trunc_div(a, b) * (vu32)b); }
INLINE vi64 op_fmod(vi64 a, vi64 b) {
    vi64 r = a - op_trunc_div(a, b) * b;
    return {b.lo == 0 ? half_i64{} : r.lo, b.hi == 0 ? half_i64{} : r.hi};
}
template <class T> INLINE T integer_mod(T a, T b) {
    T r = op_fmod(a, b);
    return r != 0 && (r ^ b) < 0 ? r + b : r;
}
template <class T> INLINE T integer_floor_div(T a, T b) {
    if (b == 0) return 0;
    T q = op_trunc_div(a, b), r = (T)((uint64_t)a - (uint64_t)q * (uint64_t)b);
    return r != 0 && (r ^ b) < 0 ? q - 1 : q;
}
INLINE int32_t op_mod(int32_t a, int32_t b) { return integer_mod(a, b); }
INLINE int64_t op_mod(int64_t a, int64_t b) { return integer_mod(a, b); }
INLINE int32_t op_floor_div(int32_t a, int32_t b) { return integer_floor_div(a, b); }
INLINE int64_t op_floor_div(int64_t a, int64_t b) { return integer_floor_div(a, b); }
// all ones where the remainder must move to the other side of zero
template <class V> INLINE V wrong_side(V r, V b) { return (r != 0) & ((r ^ b) < 0); }
INLINE vi32 op_mod(vi32 a, vi32 b) {
    vi32 r = op_fmod(a, b);
    return r + (b & wrong_side(r, b));
}
INLINE vi64 op_mod(vi64 a, vi64 b) {
    vi64 r = op_fmod(a, b);
    return {r.lo + (b.lo & wrong_side(r.lo, b.lo)), r.hi + (b.hi & wrong_side(r.hi, b.hi))};
}
INLINE vi32 op_floor_div(vi32 a, vi32 b) {
    vi32 q = op_trunc_div(a, b), r = (vi32)((vu32)a - (vu32)q * (vu32)b);
    return b == 0 ? vi32{} : q + wrong_side(r, b);
}
INLINE vi64 op_floor_div(vi64 a, vi64 b) {
    vi64 q = op_trunc_div(a, b), r = a - q * b;
    return {b.lo == 0 ? half_i64{} : q.lo + wrong_side(r.lo, b.lo), b.hi == 0 ? half_i64{} : q.hi + wrong_side(r.hi, b.hi)};
}

// ---- floating point ------------------------------------------------------------------------------------------------------
INLINE float op_trunc_div(float a, float b) { return __builtin_truncf(a / b); }
INLINE double op_trunc_div(double a, double b) { return __builtin_trunc(a / b); }
INLINE vf32 op_trunc_div(vf32 a, vf32 b) { return op_trunc(a / b); }
INLINE vf64 op_trunc_div(vf64 a, vf64 b) { return op_trunc(a / b); }
LIBM_SCALAR2(op_fmod, fmod)
LANEWISE2(fmod_lanes, op_fmod, float, vf32)
LANEWISE2(fmod_lanes, op_fmod, double, vf64)
// A rounded quotient below `limit` is at most one too large, and both remainders are representable.
template <class V, class S> INLINE V fmod_vector(V a, V b, S limit, S infinity) {
    V x = op_abs(a), y = op_abs(b), q = x / y;
    mask hard = (op_ge(q, splat(limit)) & op_ne(y, V{})) | op_eq(y, splat(infinity));
    if (__builtin_expect(any(hard), 0)) return fmod_lanes(a, b);
    V r = op_fma(-op_trunc(q), y, x);
    return op_copysign(select(op_lt(r, V{}), r + y, r), a);
}
INLINE vf32 op_fmod(vf32 a, vf32 b) { return fmod_vector(a, b, 0x1p23f, __builtin_inff()); }
INLINE vf64 op_fmod(vf64 a, vf64 b) { return fmod_vector(a, b, 0x1p52, __builtin_inf()); }
template <class T> INLINE T float_mod(T a, T b) {
    T r = op_fmod(a, b);
    return select(op_ne(r, T{}) & (op_lt(r, T{}) ^ op_lt(b, T{})), r + b, r);
}
// Python's floor division of floats by the remainder, as in ATen
template <class T> INLINE T float_floor_div(T a, T b, T one, T half) {
    T r = op_fmod(a, b), q = (a - r) / b, ratio = a / b;
    q = select(op_ne(r, T{}) & (op_lt(r, T{}) ^ op_lt(b, T{})), q - one, q);
    T whole = op_floor(q);
    whole = select(op_gt(q - whole, half), whole + one, whole);
    return select(op_eq(b, T{}), ratio, select(op_eq(q, T{}), op_copysign(T{}, ratio), whole));
}
#define FLOAT_DIVISION(T, one, half) \
    INLINE T op_mod(T a, T b) { return float_mod(a, b); } \
    INLINE T op_floor_div(T a, T b) { return float_floor_div(a, b, one, half); }
FLOAT_DIVISION(float, 1.0f, 0.5f) FLOAT_DIVISION(double, 1.0, 0.5)
FLOAT_DIVISION(vf32, splat(1.0f), splat(0.5f)) FLOAT_DIVISION(vf64, splat(1.0), splat(0.5))

// Of indices, which are not negative, by a size: the compiler multiplies and shifts instead, for 32 bits in vectors too.
template <int64_t SIZE> INLINE vi32 index_div(vi32 a) { return a / (int32_t)SIZE; }
template <int64_t SIZE> INLINE vi64 index_div(vi64 a) { return {a.lo / SIZE, a.hi / SIZE}; }
template <int64_t SIZE> INLINE vi32 index_mod(vi32 a) { return a % (int32_t)SIZE; }
template <int64_t SIZE> INLINE vi64 index_mod(vi64 a) { return {a.lo % SIZE, a.hi % SIZE}; }
