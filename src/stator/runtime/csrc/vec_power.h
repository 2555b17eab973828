// Powers. Part of vec_math.h, which includes it.
#pragma once

// For x > 0 in double: 2^(y log2(x)), log2 by the series of atanh, 2^r by Taylor to r^9; both to about 2^-40, so that
// the float result is within one rounding. Lanes with x <= 0 or non-finite x use libm.
INLINE half_f64 power_half(half_f32 xs, half_f32 ys) {
    half_f64 x = __builtin_convertvector(xs, half_f64), y = __builtin_convertvector(ys, half_f64);
    half_i64 b = (half_i64)x;
    half_i64 k = (b - 0x3fe6a09e667f3bcdll) >> 52;
    half_f64 m = (half_f64)(b - (k << 52));
    half_f64 z = (m - 1.0) / (m + 1.0), w = z * z;
    half_f64 p = 0.11111111111111111 + w * (0.090909090909090909 + w * (0.076923076923076923 + w * 0.07));
    p = 0.33333333333333333 + w * (0.2 + w * (0.14285714285714286 + w * p));
    half_f64 l = __builtin_convertvector(k, half_f64) + (z + z * w * p) * 2.885390081777926815;
    half_f64 t = y * l;
    t = t > 1000.0 ? half_f64{} + 1000.0 : t;
    t = t < -1000.0 ? half_f64{} - 1000.0 : t;
    half_f64 shifter = half_f64{} + 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
    half_f64 shifted = t + shifter, n = shifted - shifter;
    half_f64 r = (t - n) * 0.693147180559945309417;
    half_f64 q = 1.0 / 5040 + r * (1.0 / 40320 + r * (1.0 / 362880));
    q = 1.0 / 24 + r * (1.0 / 120 + r * (1.0 / 720 + r * q));
    q = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6 + r * q)));
    half_i64 exponent = ((half_i64)shifted - (half_i64)shifter + 1023) << 52;
    return q * (half_f64)exponent;
}
INLINE vf32 power_plain(vf32 x, vf32 y) {
    half_f64 lo = power_half(low_half(x), low_half(y)), hi = power_half(high_half(x), high_half(y));
    return convert_f32(vf64{lo, hi});
}
INLINE mask is_plain(vf32 x, vf32 y) {
    return {(x > 0.0f) & (x < __builtin_inff()) & (op_abs(y) < __builtin_inff())};
}
static __attribute__((noinline)) vf32 power_lanes(vf32 x, vf32 y) {
    mask plain = is_plain(x, y);
    vf32 r = power_plain(select(plain, x, splat(1.0f)), select(plain, y, splat(1.0f)));
    for (int i = 0; i < LANES; ++i)
        if (!lane(plain, i)) r[i] = __builtin_powf(x[i], y[i]);
    return r;
}
INLINE vf32 op_pow(vf32 x, vf32 y) { return all(is_plain(x, y)) ? power_plain(x, y) : power_lanes(x, y); }
INLINE float op_pow(float x, float y) { return lane(op_pow(splat(x), splat(y)), 0); }
INLINE double op_pow(double x, double y) { return __builtin_pow(x, y); }
LANEWISE2(op_pow, __builtin_pow, double, vf64)
// integer powers wrap; a negative exponent gives 1/x truncated, as in ATen
INLINE int64_t op_pow(int64_t x, int64_t n) {
    if (n < 0) return x == 1 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : 0;
    uint64_t r = 1, b = (uint64_t)x;
    for (; n; n >>= 1, b *= b)
        if (n & 1) r *= b;
    return (int64_t)r;
}
INLINE int32_t op_pow(int32_t x, int32_t n) { return (int32_t)op_pow((int64_t)x, (int64_t)n); }
LANEWISE2(op_pow, op_pow, int32_t, vi32)
LANEWISE2(op_pow, op_pow, int64_t, vi64)
