// Powers. Part of vec_math.h, which includes it.
#pragma once

// The sign, and the results at the edges, of C's pow: r is |x|^y by logarithms.
INLINE half_f64 power_edges(half_f64 x, half_f64 y, half_f64 r) {
    half_f64 a = op_abs(y), half = a * 0.5, whole = broadcast<half_f64>(0x1p52);  // adding it rounds to an integer
    half_i64 integer = (a >= whole) | ((a + whole) - whole == a);
    half_i64 odd = integer & (a < 2 * whole) & ((half + whole) - whole != half);
    r = op_abs(x) == 1 ? broadcast<half_f64>(1) : r;
    r = (half_f64)((half_i64)r ^ ((half_i64)x & odd & (half_i64)broadcast<half_f64>(-0.0)));
    r = (x < 0) & (x > -__builtin_inf()) & ~integer ? broadcast<half_f64>(__builtin_nan("")) : r;
    return (y == 0) | (x == 1) ? broadcast<half_f64>(1) : r;
}

// |x|^y = 2^(y log2 |x|). The logarithm is a sum of two doubles, by the series of atanh at s = f / (2 + f): 2s + 2/3 s^3
// with rounding errors, and smaller terms without; "high" is a rounded value, "low" its error (T. Dekker, 1971).
INLINE half_f64 pow_of(half_f64 x, half_f64 y) {
    static constexpr double series[] = {0x1.e0499f72e39b9p-4, 0x1.df7a2eafecf14p-4, 0x1.1118d458653bcp-3,
        0x1.3b1395976d2fp-3, 0x1.745d177b22bcfp-3, 0x1.c71c71c6ea01fp-3, 0x1.2492492492524p-2, 0x1.999999999999ap-2};
    const half_f64 third = broadcast<half_f64>(0x1.5555555555555p-1), log2_e = broadcast<half_f64>(0x1.71547652b82fep+0);
    const half_f64 infinity = broadcast<half_f64>(__builtin_inf());
    half_f64 size = op_abs(x), n, f = split_exponent(size, n);
    half_f64 d = f + 2, inverse = 1 / d, s = f * inverse;
    half_f64 s_low = (fmadd(-s, d, f) - s * (f - (d - 2))) * inverse;
    half_f64 z = s * s, z_low = fmadd(s, s, -z) + 2 * s * s_low;
    half_f64 c = s * z, c_low = fmadd(s, z, -c) + (s * z_low + s_low * z);
    half_f64 t = c * third, t_low = fmadd(c, third, -t) + (c * 0x1.5555555555555p-55 + c_low * third);
    half_f64 h = 2 * s + t, h_low = (t - (h - 2 * s)) + (fmadd(polynomial(z, series), c * z, t_low) + 2 * s_low);
    half_f64 l = h * log2_e, l_low = fmadd(h, log2_e, -l) + fmadd(h, broadcast<half_f64>(0x1.777d0ffda0d24p-56), h_low * log2_e);
    half_f64 high = n + l, low = (l - (high - n)) + l_low;
    high = size == 0 ? -infinity : size == infinity ? infinity : size != size ? size : high;
    half_f64 e = y * high, e_low = fmadd(y, high, -e) + y * low;
    e_low = op_abs(e) < 1100 ? e_low : half_f64{};
    e = between(-1100.0, 1100.0, e);
    half_i64 k;
    half_f64 whole = nearest_integer(e, k), r = ((e - whole) + e_low) * 0.693147180559945309417;
    r = fmadd(polynomial(r, precision<half_f64>::EXP), r * r, r) + 1;
    return power_edges(x, y, scale(r, whole));
}

// Floats, for x > 0, in double: log2 by the series of atanh, 2^r by Taylor to r^9; both to about 2^-40, so that the result
// is within one rounding. Vectors with other lanes add the edges.
INLINE half_f64 power_half(half_f64 x, half_f64 y, bool edges) {
    half_i64 b = (half_i64)x;
    half_i64 k = (b - 0x3fe6a09e667f3bcdll) >> 52;
    half_f64 m = (half_f64)(b - (k << 52));
    half_f64 z = (m - 1.0) / (m + 1.0), w = z * z;
    half_f64 p = 0.11111111111111111 + w * (0.090909090909090909 + w * (0.076923076923076923 + w * 0.07));
    p = 0.33333333333333333 + w * (0.2 + w * (0.14285714285714286 + w * p));
    half_f64 l = __builtin_convertvector(k, half_f64) + (z + z * w * p) * 2.885390081777926815;
    if (edges) l = x == 0 ? half_f64{} - __builtin_inf() : x < __builtin_inf() ? l : x;
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
INLINE mask is_plain(vf32 x, vf32 y) {
    return {(x > 0.0f) & (x < __builtin_inff()) & (op_abs(y) < __builtin_inff())};
}
static __attribute__((noinline)) vf32 power_lanes(vf64 x, vf64 y) {
    half_f64 lo = power_half(op_abs(x.lo), y.lo, true), hi = power_half(op_abs(x.hi), y.hi, true);
    return convert_f32(vf64{power_edges(x.lo, y.lo, lo), power_edges(x.hi, y.hi, hi)});
}
INLINE vf32 pow_of(vf32 x, vf32 y) {
    vf64 a = convert_f64(x), b = convert_f64(y);
    if (!all(is_plain(x, y))) return power_lanes(a, b);
    return convert_f32(vf64{power_half(a.lo, b.lo, false), power_half(a.hi, b.hi, false)});
}
ELEMENTARY2(pow)
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
