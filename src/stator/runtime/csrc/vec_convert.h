// Conversions between the register types of vec.h: convert_K(x), K one of f32 f64 i32 i64 bool.
//
// A float that an integer cannot hold converts as x86 does (and torch there): the smallest integer; through int64 for the
// narrow ones. NaN converts to true.
#pragma once

INLINE int64_t convert_i64(float x) {
    return (x >= -9223372036854775808.0f && x < 9223372036854775808.0f) ? (int64_t)x : (int64_t)(1ull << 63);
}
INLINE int64_t convert_i64(double x) {
    return (x >= -9223372036854775808.0 && x < 9223372036854775808.0) ? (int64_t)x : (int64_t)(1ull << 63);
}
INLINE int32_t convert_i32(float x) {
    return (x >= -2147483648.0f && x < 2147483648.0f) ? (int32_t)x : (int32_t)(1u << 31);
}
INLINE int32_t convert_i32(double x) {
    return (x > -2147483649.0 && x < 2147483648.0) ? (int32_t)x : (int32_t)(1u << 31);
}
INLINE int64_t convert_i64(int32_t x) { return x; }
INLINE int64_t convert_i64(int64_t x) { return x; }
INLINE int64_t convert_i64(bool x) { return x; }
INLINE int32_t convert_i32(int32_t x) { return x; }
INLINE int32_t convert_i32(int64_t x) { return (int32_t)x; }
INLINE int32_t convert_i32(bool x) { return x; }
template <class T> INLINE float convert_f32(T x) { return (float)x; }
template <class T> INLINE double convert_f64(T x) { return (double)x; }
template <class T> INLINE bool convert_bool(T x) { return x != 0; }

INLINE vf32 convert_f32(vf32 x) { return x; }
INLINE vf32 convert_f32(vi32 x) { return __builtin_convertvector(x, vf32); }
INLINE vf32 convert_f32(vi64 x) {
    return join_f32(__builtin_convertvector(x.lo, half_f32), __builtin_convertvector(x.hi, half_f32));
}
INLINE vf32 convert_f32(vf64 x) {
    return join_f32(__builtin_convertvector(x.lo, half_f32), __builtin_convertvector(x.hi, half_f32));
}
INLINE vf32 convert_f32(mask x) { return (vf32)(x.bits & (vi32)splat(1.0f)); }
#ifdef SIMD_AVX512
INLINE half_f64 widen_half(half_f32 x) { return __builtin_ia32_cvtps2pd512_mask(x, half_f64{}, (uint8_t)-1, 4); }
INLINE half_f64 convert_half(half_i32 x) { return __builtin_ia32_cvtdq2pd512_mask(x, half_f64{}, (uint8_t)-1); }
#else
INLINE half_f64 widen_half(half_f32 x) { return __builtin_convertvector(x, half_f64); }
INLINE half_f64 convert_half(half_i32 x) { return __builtin_convertvector(x, half_f64); }
#endif
INLINE vf64 convert_f64(vf32 x) { return {widen_half(low_half(x)), widen_half(high_half(x))}; }
INLINE vf64 convert_f64(vi32 x) { return {convert_half(low_half(x)), convert_half(high_half(x))}; }
INLINE vf64 convert_f64(vi64 x) {
    return {__builtin_convertvector(x.lo, half_f64), __builtin_convertvector(x.hi, half_f64)};
}
INLINE vf64 convert_f64(vf64 x) { return x; }
INLINE vf64 convert_f64(mask x) { return convert_f64(-x.bits); }
INLINE vi64 convert_i64(vi64 x) { return x; }
INLINE vi64 convert_i64(vi32 x) {
    return {widen_half(low_half(x)), widen_half(high_half(x))};
}
INLINE vi64 convert_i64(mask x) { return convert_i64(-x.bits); }
INLINE vi32 convert_i32(vi32 x) { return x; }
INLINE vi32 convert_i32(mask x) { return -x.bits; }
INLINE vi32 convert_i32(vi64 x) {
    return join_i32(narrow_half(x.lo), narrow_half(x.hi));
}
// x86's instructions give the smallest integer by themselves, other code has to select it
#ifdef SIMD_AVX512
INLINE half_i64 truncate_i64(half_f64 x) {
    return (half_i64)__builtin_ia32_cvttpd2qq512_mask(x, x86_i64x8{}, (uint8_t)-1, 4);
}
INLINE half_i64 truncate_i64(half_f32 x) {
    return (half_i64)__builtin_ia32_cvttps2qq512_mask(x, x86_i64x8{}, (uint8_t)-1, 4);
}
INLINE half_i32 truncate_i32(half_f64 x) { return __builtin_ia32_cvttpd2dq512_mask(x, half_i32{}, (uint8_t)-1, 4); }
INLINE vi64 convert_i64(vf64 x) { return {truncate_i64(x.lo), truncate_i64(x.hi)}; }
INLINE vi64 convert_i64(vf32 x) { return {truncate_i64(low_half(x)), truncate_i64(high_half(x))}; }
INLINE vi32 convert_i32(vf32 x) { return __builtin_ia32_cvttps2dq512_mask(x, vi32{}, (uint16_t)-1, 4); }
INLINE vi32 convert_i32(vf64 x) { return join_i32(truncate_i32(x.lo), truncate_i32(x.hi)); }
#else
#ifdef SIMD_AVX2
INLINE int64_t truncated_lane(half_f64 x, int i) {
    typedef double x86_f64x2 __attribute__((vector_size(16)));
    return __builtin_ia32_cvttsd2si64(x86_f64x2{x[i], 0.0});
}
INLINE half_i64 truncate_i64(half_f64 x) {
    return half_i64{truncated_lane(x, 0), truncated_lane(x, 1), truncated_lane(x, 2), truncated_lane(x, 3)};
}
INLINE vi64 convert_i64(vf64 x) { return {truncate_i64(x.lo), truncate_i64(x.hi)}; }
INLINE vi32 convert_i32(vf32 x) { return __builtin_ia32_cvttps2dq256((x86_f32x8)x); }
INLINE vi32 convert_i32(vf64 x) {
    return join_i32((half_i32)__builtin_ia32_cvttpd2dq256(x.lo), (half_i32)__builtin_ia32_cvttpd2dq256(x.hi));
}
#else
INLINE vi64 convert_i64(vf64 x) {
    vf64 low = splat(-9223372036854775808.0), high = splat(9223372036854775808.0);
    mask fits = (x >= low) & (x < high);
    vf64 y = select(fits, x, low);
    return {__builtin_convertvector(y.lo, half_i64), __builtin_convertvector(y.hi, half_i64)};
}
INLINE vi32 convert_i32(vf32 x) {
    vf32 low = splat(-2147483648.0f);
    mask fits = {(x >= low) & (x < -low)};
    return __builtin_convertvector(select(fits, x, low), vi32);
}
INLINE vi32 convert_i32(vf64 x) {
    vi32 r{};
    for (int i = 0; i < LANES; ++i) r[i] = convert_i32(lane(x, i));
    return r;
}
#endif
INLINE vi64 convert_i64(vf32 x) { return convert_i64(convert_f64(x)); }
#endif
INLINE mask convert_bool(vf32 x) { return {x != 0.0f}; }
INLINE mask convert_bool(vi32 x) { return {x != 0}; }
INLINE mask convert_bool(vi64 x) { return x != vi64{}; }
INLINE mask convert_bool(vf64 x) { return x != vf64{}; }
INLINE mask convert_bool(mask x) { return x; }
