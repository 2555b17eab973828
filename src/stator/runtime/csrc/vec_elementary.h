// Elementary functions with one formula for both precisions. Part of vec_math.h, which includes it.
//
// Sources: W. J. Cody and W. Waite, "Software Manual for the Elementary Functions" (1980): reductions, and the halved
// argument of asin; S. Moshier's Cephes: the three intervals of atan; Sun's fdlibm (1993): the double logarithm by
// s = f / (2 + f); W. Kahan: log1p's correction term. Polynomials were fitted for this file in 50 digits (near-minimax, by
// Lawson's iteratively reweighted least squares or on Chebyshev nodes), then rounded. The highest power stands first.
#pragma once

// of a vector V, which is vf32 or half_f64: its element T, its integers I, and the constants of its precision
template <class V> struct precision;
template <> struct precision<vf32> {
    typedef float T;
    typedef vi32 I;
    static constexpr int BITS = 23, BIAS = 127, SQRT_HALF = 0x3f3504f3;  // the bits of sqrt(1/2)
    static constexpr T SHIFTER = 0x1.8p23f;  // adding it rounds to an integer
    static constexpr T SMALLEST = 0x1p-126f, HUGE = 0x1p100f;
    static constexpr T LOG2_HIGH = 0.693359375f, LOG2_LOW = -2.12194440e-4f;
    static constexpr T LOG2_E = 0x1.715476p+0f, LOG2_E_LOW = 0x1.4ae0cp-26f;
    static constexpr T LOG10_E = 0x1.bcb7b2p-2f, LOG10_E_LOW = -0x1.5b235ep-27f;
    static constexpr T LOG10_2_HIGH = 0.301025390625f, LOG10_2_LOW = 4.605038981e-6f;
    static constexpr T EXP_LEAST = -104, EXP_MOST = 90, EXPM1_LEAST = -18, SQUARE_MOST = 0x1p13f;
    static constexpr T HYPOT_FAR = 0x1p50f, HYPOT_SCALE = 0x1p90f;
    static constexpr T PI_2[] = {0x1.921fb6p+0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f}, PI_2_FAR = 65536;
    static constexpr T PI_4_HIGH = 0x1.921fb6p-1f, PI_4_LOW = -0x1.777a5cp-26f;
    static constexpr T EXP[] = {0x1.6db494p-10f, 0x1.123be8p-7f, 0x1.55545ep-5f, 0x1.55548ep-3f, 0.5f};
    static constexpr T SIN[] = {0x1.6cd5dap-19f, -0x1.a00f94p-13f, 0x1.111108p-7f, -0x1.555556p-3f};
    static constexpr T COS[] = {-0x1.2428fp-22f, 0x1.a01118p-16f, -0x1.6c16b8p-10f, 0x1.555556p-5f};
    static constexpr T TAN[] = {0x1.f84d9p-9f, 0x1.34c938p-10f, 0x1.469768p-7f, 0x1.62380ap-6f, 0x1.ba52f4p-5f,
        0x1.111086p-3f, 0x1.555556p-2f};
    static constexpr T ATAN[] = {-0x1.084476p-4f, 0x1.b80feap-4f, -0x1.242032p-3f, 0x1.99973p-3f, -0x1.555554p-2f};
    static constexpr T ASIN[] = {0x1.37fe16p-5f, 0x1.b311d2p-6f, 0x1.70a6bcp-5f, 0x1.332732p-4f, 0x1.55555ep-3f};
    static constexpr T SINH[] = {0x1.78a70ep-19f, 0x1.a009p-13f, 0x1.11111ep-7f, 0x1.555556p-3f};
    static constexpr T TANH[] = {-0x1.b13538p-8f, 0x1.5d220ep-6f, -0x1.b9a044p-5f, 0x1.110feap-3f, -0x1.555554p-2f};
    static constexpr T ASINH[] = {-0x1.d434b2p-7f, 0x1.d79732p-6f, -0x1.6c98ecp-5f, 0x1.332ed2p-4f, -0x1.555552p-3f};
    static constexpr T ATANH[] = {0x1.4298b2p-3f, 0x1.09f92cp-4f, 0x1.d5ce5cp-4f, 0x1.242056p-3f, 0x1.999c14p-3f,
        0x1.555554p-2f};
    static constexpr T ERF_MOST = 4;
    static constexpr T ERF[] = {0x1.4ae3e8p-14f, -0x1.a48596p-11f, 0x1.5419e8p-8f, -0x1.b7fbb2p-6f, 0x1.ce2d2p-4f,
        -0x1.81273ep-2f, 0x1.20dd74p+0f};
    static constexpr T LOG_ERFC[] = {0x1.6bdf76p-16f, -0x1.cecbcp-12f, 0x1.138e9p-8f, -0x1.9d0448p-6f, 0x1.bc159ap-4f,
        0x1.443558p-1f, 0x1.212c1p+0f, -0x1.8a7364p-13f};
    static constexpr T ERFC_MOST = 10.5f, ERFC_MIDDLE = 2;
    static constexpr T ERFC[] = {0x1.14a0bcp-15f, -0x1.727584p-12f, -0x1.48f616p-10f, 0x1.4b1da6p-10f, 0x1.1b01d8p-7f,
        -0x1.0780ccp-7f, -0x1.bc0b14p-5f, 0x1.4ffaeap-3f, -0x1.540848p-3f, -0x1.7bf5fcp-4f, 0x1.46e80ep+0f};
};
template <> struct precision<half_f64> {
    typedef double T;
    typedef half_i64 I;
    static constexpr int BITS = 52, BIAS = 1023;
    static constexpr int64_t SQRT_HALF = 0x3fe6a09e667f3bcdll;
    static constexpr T SHIFTER = 0x1.8p52, SMALLEST = 0x1p-1022, HUGE = 0x1p1000;
    static constexpr T LOG2_HIGH = 0x1.62e42fefa4p-1, LOG2_LOW = -0x1.8432a1b0e2634p-43;
    static constexpr T LOG2_E = 0x1.71547652b82fep+0, LOG2_E_LOW = 0x1.777d0ffda0d24p-56;
    static constexpr T LOG10_E = 0x1.bcb7b1526e50ep-2, LOG10_E_LOW = 0x1.95355baaafad3p-57;
    static constexpr T LOG10_2_HIGH = 0x1.34413509f8p-2, LOG10_2_LOW = -0x1.80433b83b532ap-44;
    static constexpr T EXP_LEAST = -746, EXP_MOST = 711, EXPM1_LEAST = -38, SQUARE_MOST = 0x1p28;
    static constexpr T HYPOT_FAR = 0x1p500, HYPOT_SCALE = 0x1p700;
    static constexpr T PI_2[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110}, PI_2_FAR = 0x1p30;
    static constexpr T PI_4_HIGH = 0x1.921fb54442d18p-1, PI_4_LOW = 0x1.1a62633145c07p-55;
    static constexpr T EXP[] = {0x1.af48d19dbc601p-26, 0x1.2891b295a8146p-22, 0x1.71de05ec3a6e9p-19, 0x1.a019b8e71d6fep-16,
        0x1.a01a01aa35bdep-13, 0x1.6c16c17895a74p-10, 0x1.111111111053cp-7, 0x1.5555555553d4ap-5, 0x1.5555555555556p-3,
        0x1.0000000000001p-1};
    static constexpr T LOG[] = {0x1.2b6776a1bf0b9p-3, 0x1.39fd25d62ab23p-3, 0x1.7462be245eae3p-3, 0x1.c71c62c42db89p-3,
        0x1.2492492e0b70cp-2, 0x1.99999999951f5p-2, 0x1.5555555555558p-1};
    static constexpr T SIN[] = {0x1.5e0a44fa8765ap-33, -0x1.ae6008b321baep-26, 0x1.71de379452125p-19,
        -0x1.a01a019e81f4bp-13, 0x1.1111111110babp-7, -0x1.5555555555555p-3};
    static constexpr T COS[] = {-0x1.907cce35dd891p-37, 0x1.1eeb67c12a0b4p-29, -0x1.27e4fa16bdc76p-22,
        0x1.a01a019f4dd4cp-16, -0x1.6c16c16c16963p-10, 0x1.5555555555555p-5};
    static constexpr T TAN[] = {0x1.1d59bfdec8a15p-17, -0x1.34ba4f5e53e7cp-16, 0x1.33a8fc3777bc5p-15,
        -0x1.7764161d96868p-17, 0x1.d35754828891cp-15, 0x1.792c499b79d1p-14, 0x1.f9ee6b0615a6cp-13, 0x1.351ad6ed7bb1dp-11,
        0x1.7da808a1753eap-10, 0x1.d6d3937addf06p-9, 0x1.226e3666734c2p-7, 0x1.664f487d6dfb6p-6, 0x1.ba1ba1ba29fcep-5,
        0x1.1111111111097p-3, 0x1.5555555555555p-2};
    static constexpr T ATAN[] = {-0x1.3a2f1cc1ba3c5p-6, 0x1.4161b24be475bp-5, -0x1.a0993ef875d4ap-5, 0x1.dfe637a48099bp-5,
        -0x1.10fa76aa9b02cp-4, 0x1.3b1262f3a2b5bp-4, -0x1.745d0b27da19p-4, 0x1.c71c7185386f1p-4, -0x1.249249243618p-3,
        0x1.999999999934bp-3, -0x1.5555555555555p-2};
    static constexpr T ASIN[] = {0x1.d72b2bc8155f8p-6, -0x1.e6aaa8a0a04ccp-7, 0x1.1d189408314eep-6, 0x1.65a9c4dfcf8b2p-8,
        0x1.52420b04b37bep-7, 0x1.782651caa6547p-7, 0x1.c9cf07674736ap-7, 0x1.1c4d35cf95421p-6, 0x1.6e8bb1c8209a2p-6,
        0x1.f1c71c1db0623p-6, 0x1.6db6db6e31f13p-5, 0x1.3333333332ecap-4, 0x1.5555555555556p-3};
    static constexpr T SINH[] = {0x1.b41232cf9950fp-41, 0x1.611cb330c1fe8p-33, 0x1.ae6460fae3728p-26, 0x1.71de3a4e14f4p-19,
        0x1.a01a01a01ee7p-13, 0x1.11111111110fdp-7, 0x1.5555555555555p-3};
    static constexpr T TANH[] = {-0x1.59a834187ce22p-16, 0x1.64fd88e9900a5p-14, -0x1.ec1091436eb2ap-13,
        0x1.34c5a8a996cd4p-11, -0x1.7d97cfd138c28p-10, 0x1.d6d339333f329p-9, -0x1.226e32f00cf0cp-7, 0x1.664f487713373p-6,
        -0x1.ba1ba1b9fec84p-5, 0x1.1111111111032p-3, -0x1.5555555555555p-2};
    static constexpr T ASINH[] = {0x1.ee3fd77d44d42p-10, -0x1.4733e5158e0e1p-8, 0x1.f38921b605d54p-8,
        -0x1.3a4aeece7e69cp-7, 0x1.79b0dbdcdfc75p-7, -0x1.c983b8d12e853p-7, 0x1.1c4e072f36dc7p-6, -0x1.6e8b9ab4638efp-6,
        0x1.f1c71c3bee026p-6, -0x1.6db6db6d5b365p-5, 0x1.3333333332f5fp-4, -0x1.5555555555555p-3};
    static constexpr T ATANH[] = {0x1.b016cba23eee4p-3, -0x1.27f230f3831a3p-3, 0x1.15aa7698edf42p-3, 0x1.92cc88a36f708p-7,
        0x1.bdcd3cefa72cep-5, 0x1.a6c53053bf30cp-5, 0x1.e2c342108eb1fp-5, 0x1.1108e26d64a6dp-4, 0x1.3b1417e6e07dfp-4,
        0x1.745d1406b992ep-4, 0x1.c71c71d6cc5d1p-4, 0x1.249249247e911p-3, 0x1.9999999999ad1p-3, 0x1.5555555555555p-2};
    static constexpr T ERF_MOST = 5.95;
    static constexpr T ERF[] = {0x1.05ffd737fb32ep-34, -0x1.389d4f2641625p-30, 0x1.f7b4bf3b13964p-27,
        -0x1.5f1ecb6f0764cp-23, 0x1.b9df224ca4b97p-20, -0x1.f4d1e3183f7aep-17, 0x1.f9a321d5b8e1ep-14, -0x1.c02db3dac435fp-11,
        0x1.565bcd0dbaa38p-8, -0x1.b82ce31284ep-6, 0x1.ce2f21a042b3p-4, -0x1.812746b0379e6p-2, 0x1.20dd750429b6dp+0};
    static constexpr T LOG_ERFC[] = {-0x1.35fad740bfef9p-36, 0x1.64c4e48a890a5p-31, -0x1.7518c9bd97ab7p-27,
        0x1.cef544f61feb3p-24, -0x1.6fb7389b9368ep-21, 0x1.64f359c629447p-19, -0x1.de2ca4d454f5dp-19, -0x1.d7f0b1d2be003p-16,
        0x1.e4495bb6ec18ep-13, -0x1.e28dee3abdd6p-11, 0x1.132ac4112fac3p-9, -0x1.3284d32a9e421p-11, -0x1.35155d0ad5f9fp-6,
        0x1.a46721ee8d463p-4, 0x1.45f94de52ddcdp-1, 0x1.20dcc546effffp+0, 0x1.1e138bf1dee63p-20};
    static constexpr T ERFC_MOST = 27.3, ERFC_MIDDLE = 4;
    static constexpr T ERFC[] = {-0x1.0626456b70a63p-29, -0x1.df6a3bbd3284ep-27, -0x1.0be03255238bap-27,
        0x1.f21c932821bedp-24, 0x1.0fb74e14bdddap-24, -0x1.c0a82ad87a1dcp-21, 0x1.42c5c198c77c3p-22, 0x1.7fbba4a402205p-18,
        -0x1.789ff2a44fd81p-17, -0x1.996ac6b89d1b4p-16, 0x1.3be0993db7d2ep-13, -0x1.a1de802bc1fefp-13, -0x1.8d4a9c34a6822p-11,
        0x1.49c671934a7d6p-8, -0x1.0962388529349p-6, 0x1.3079edf9ddac4p-5, -0x1.0fb06dfe3d76bp-4, 0x1.7fee004df81b2p-4,
        -0x1.9ddb23c3e9eb3p-4, 0x1.16ecefcfa5f6bp-4, 0x1.f7f5df66fda1bp-7, -0x1.1df1ad154a29bp-3, 0x1.3ba5916e9fd7fp+0};
};
#define PRECISION(V) \
    typedef precision<V> P; \
    typedef typename P::T T; \
    typedef typename P::I I

template <class V> INLINE V broadcast(typename precision<V>::T x) { return x - V{}; }
template <class V, class T, int N> INLINE V polynomial(V x, const T (&coefficients)[N]) {
    V p = broadcast<V>(coefficients[0]);
#pragma GCC unroll 32
    for (int i = 1; i < N; ++i) p = fmadd(p, x, broadcast<V>(coefficients[i]));
    return p;
}
template <class V, class T, int N> INLINE V odd_polynomial(V x, V t, const T (&coefficients)[N]) {  // x + x t P(t)
    return fmadd(polynomial(t, coefficients) * t, x, x);
}
template <class V> INLINE V nearest_integer(V x, typename precision<V>::I &n) {
    PRECISION(V);
    V shifted = x + P::SHIFTER;
    n = (I)shifted - (I)broadcast<V>(P::SHIFTER);
    return shifted - P::SHIFTER;
}

// ---- exponentials ----------------------------------------------------------------------------------------------------
template <class V> INLINE V power_of_two(typename precision<V>::I n) {  // for the exponents of normal numbers
    return (V)((n + precision<V>::BIAS) << precision<V>::BITS);
}
// x * 2^n with one rounding, for any n an exponent can need
#ifdef SIMD_AVX512
INLINE vf32 scale(vf32 x, vf32 n) { return __builtin_ia32_scalefps512_mask(x, n, x, (short)-1, 4); }
INLINE half_f64 scale(half_f64 x, half_f64 n) { return __builtin_ia32_scalefpd512_mask(x, n, x, (uint8_t)-1, 4); }
#else
template <class V> INLINE V scale(V x, V n) {
    typename precision<V>::I k;
    nearest_integer(n, k);
    typename precision<V>::I first = k >> 1;
    return x * power_of_two<V>(first) * power_of_two<V>(k - first);
}
#endif
// x clamped; a NaN stays
template <class V> INLINE V between(typename precision<V>::T least, typename precision<V>::T most, V x) {
    return maximum_or_second(broadcast<V>(least), minimum_or_second(broadcast<V>(most), x));
}
// x = n log(2) + r; e^r - 1
template <class V> INLINE V exp_reduced(V x, V &n, typename precision<V>::I &k) {
    PRECISION(V);
    n = nearest_integer(x * P::LOG2_E, k);
    V r = fmadd(n, broadcast<V>(-P::LOG2_HIGH), x);  // n times the high part is exact
    r = fmadd(n, broadcast<V>(-P::LOG2_LOW), r);
    return fmadd(polynomial(r, P::EXP), r * r, r);
}
// Results that round to zero are not computed: processors take a hundred cycles for a product that underflows, and masked
// softmaxes have many.
template <class V> INLINE V exp_scaled(V x, typename precision<V>::T halvings) {  // e^x / 2^halvings
    PRECISION(V);
    I k;
    const auto vanishes = x < P::EXP_LEAST;
    V n, e = exp_reduced(vanishes ? V{} : minimum_or_second(broadcast<V>(P::EXP_MOST), x), n, k);
    return vanishes ? V{} : scale(e + 1, n - halvings);
}
template <class V> INLINE V exp_of(V x) { return exp_scaled(x, 0); }
#ifndef SIMD_AVX512
// The scale 2^n is that of numbers far from the nearer end of the exponents, made by one addition and brought back by a
// multiplication, which overflows, or rounds denormals, once.
INLINE vf32 exp_of(vf32 x) {
    typedef precision<vf32> P;
    const auto vanishes = x < P::EXP_LEAST, falls = x < 0;
    vf32 n, far = falls ? splat(0x1p30f) : splat(0x1p-4f), back = falls ? splat(0x1p-30f) : splat(0x1p4f);
    vi32 k;
    vf32 e = exp_reduced(vanishes ? vf32{} : minimum_or_second(splat(P::EXP_MOST), x), n, k);
    vf32 power = (vf32)((vi32)far + (k << P::BITS));
    return vanishes ? vf32{} : fmadd(e, power, power) * back;
}
// e^x - 1 where 2^n overflows nowhere
INLINE vf32 expm1_near(vf32 x) {
    vi32 k;
    vf32 n, e = exp_reduced(x, n, k), power = power_of_two<vf32>(k);
    return fmadd(e, power, power - 1);
}
#endif
template <class V> INLINE V exp2_of(V x) {
    PRECISION(V);
    I k;
    const auto vanishes = x < (T)(-P::BIAS - P::BITS - 1);
    x = vanishes ? V{} : minimum_or_second(broadcast<V>((T)(P::BIAS + 2)), x);
    V n = nearest_integer(x, k), r = (x - n) * (T)0.693147180559945309417;
    return vanishes ? V{} : scale(fmadd(polynomial(r, P::EXP), r * r, r) + 1, n);
}
template <class V> INLINE V expm1_of(V x) {
    PRECISION(V);
    I k;
    V n, e = exp_reduced(between(P::EXPM1_LEAST, P::EXP_MOST - 1, x), n, k);
    V half = power_of_two<V>(k - 1);  // 2^n may overflow where the result does not
    return x == 0 ? x : fmadd(e, half, half - (T)0.5) * 2;  // keeps -0
}
template <class V> INLINE V sigmoid_of(V x) {  // from e^-|x|, so that small results keep their digits
    V e = exp_of(-op_abs(x));
    return (x >= 0 ? broadcast<V>(1) : e) / (1 + e) + (x != x ? x : V{});
}
template <class V> INLINE V tanh_of(V x) {
    PRECISION(V);
    V a = op_abs(x);
    return op_copysign(a < (T)0.55 ? odd_polynomial(a, a * a, P::TANH) : 1 - 2 / (exp_of(a + a) + 1), x);
}
#ifndef SIMD_AVX512
INLINE vf32 tanh_of(vf32 x) {  // e / (e + 2), or 1 - 2 / (e + 2), which rounds towards 1 in order
    const vf32 a = minimum_or_second(splat(9.02f), op_abs(x)), e = expm1_near(a * 2);
    const auto is_large = a > 1;
    return op_copysign((is_large ? splat(-2.0f) : e) / (e + 2) + (is_large ? splat(1.0f) : vf32{}), x);
}
#endif
template <class V> INLINE V sinh_of(V x) {
    PRECISION(V);
    V a = op_abs(x), e = exp_scaled(a, 1);
    return op_copysign(a < 1 ? odd_polynomial(a, a * a, P::SINH) : e - (T)0.25 / e, x);
}
template <class V> INLINE V cosh_of(V x) {
    V e = exp_scaled(op_abs(x), 1);
    return e + (typename precision<V>::T)0.25 / e;
}

// ---- logarithms ------------------------------------------------------------------------------------------------------
// Splits positive finite x into 2^n * (1 + f), sqrt(1/2) <= 1 + f < sqrt(2).
template <class V> INLINE V split_exponent(V x, V &n) {
    PRECISION(V);
    auto tiny = x < P::SMALLEST;
    I b = (I)(tiny ? x * (T)(1ll << P::BITS) : x), k = (b - P::SQRT_HALF) >> P::BITS;
    n = (V)(k + (I)broadcast<V>(P::SHIFTER)) - P::SHIFTER;
    n = tiny ? n - (T)P::BITS : n;
    return (V)(b - (k << P::BITS)) - 1;
}
// log(1 + f) - f
INLINE vf32 log_polynomial(vf32 f) {
    static constexpr float c[] = {0x1.1b3206p-4f, -0x1.e2e182p-4f, 0x1.e653d8p-4f, -0x1.fb44c8p-4f, 0x1.2332a2p-3f,
        -0x1.5562d6p-3f, 0x1.99a546p-3f, -0x1.ffffeep-3f, 0x1.555546p-2f};
    vf32 f2 = f * f;
    return fmadd(polynomial(f, c) * f, f2, f2 * -0.5f);
}
INLINE half_f64 log_polynomial(half_f64 f) {
    half_f64 s = f / (f + 2), z = s * s, half = f * f * 0.5;
    return s * fmadd(polynomial(z, precision<half_f64>::LOG), z, half) - half;
}
template <class V> INLINE V log_edges(V x, V r) {
    V infinity = broadcast<V>(__builtin_inf());
    r = x == 0 ? -infinity : r;
    r = x == infinity ? x : r;
    return x >= 0 ? r : broadcast<V>(__builtin_nan(""));
}
// log(2^n (1 + f)) + lost
template <class V> INLINE V log_joined(V n, V f, V lost) {
    V p = fmadd(n, broadcast<V>(precision<V>::LOG2_LOW), log_polynomial(f) + lost);
    return fmadd(n, broadcast<V>(precision<V>::LOG2_HIGH), p + f);
}
template <class V> INLINE V log_of(V x) {
    V n, f = split_exponent(x, n);
    return log_edges(x, log_joined(n, f, V{}));
}
template <class V> INLINE V log2_of(V x) {
    V n, f = split_exponent(x, n), p = log_polynomial(f), e = broadcast<V>(precision<V>::LOG2_E);
    V t = f * e, low = fmadd(f, e, -t);  // (f + p) * log2(e), the leading product with its rounding error
    low = fmadd(f, broadcast<V>(precision<V>::LOG2_E_LOW), low);
    return log_edges(x, n + (t + fmadd(p, e, low)));
}
template <class V> INLINE V log10_of(V x) {
    PRECISION(V);
    V n, f = split_exponent(x, n), p = log_polynomial(f), e = broadcast<V>(P::LOG10_E), t = f * e, low = fmadd(f, e, -t);
    low = fmadd(f, broadcast<V>(P::LOG10_E_LOW), low);
    low = fmadd(n, broadcast<V>(P::LOG10_2_LOW), low + p * e);
    return log_edges(x, fmadd(n, broadcast<V>(P::LOG10_2_HIGH), t + low));
}
template <class V> INLINE V log1p_of(V x) {
    PRECISION(V);
    V u = x + 1, n, f = split_exponent(u, n);
    auto near = (x > (T)-0.2928) & (x < (T)0.4142);
    V lost = (op_abs(x) < 1 ? x - (u - 1) : 1 - (u - x)) / u;  // what 1 + x rounded away
    V r = log_edges(u, log_joined(near ? V{} : n, near ? x : f, near ? V{} : lost));
    return x == 0 ? x : r;  // keeps -0
}
// log(x + root), where root = sqrt(square) >= 0, with the rounding errors of the root and of the sum
template <class V> INLINE V log_of_sum(V x, V root, V square, V larger, V smaller) {
    V u = x + root, n, f = split_exponent(u, n);
    V lost = fmadd(smaller - (u - larger), root + root, fmadd(-root, root, square)) / ((root + root) * u);
    return log_joined(n, f, lost);
}
template <class V> INLINE V log_of_double(V x) {  // log(2x)
    V n, f = split_exponent(x, n);
    return log_edges(x, log_joined(n + 1, f, V{}));
}
template <class V> INLINE V asinh_of(V x) {
    PRECISION(V);
    V a = op_abs(x), square = fmadd(a, a, broadcast<V>(1)), root = op_sqrt(square);
    V r = a > P::SQUARE_MOST ? log_of_double(a) : log_of_sum(a, root, square, root, a);
    return op_copysign(a <= (T)0.5 ? odd_polynomial(a, a * a, P::ASINH) : r, x);
}
template <class V> INLINE V acosh_of(V x) {
    V t = x - 1, square = fmadd(t, t, t + t), root = op_sqrt(square);
    V r = x > precision<V>::SQUARE_MOST ? log_of_double(x) : log_of_sum(x, root, square, x, root);
    return x > 1 ? r : x == 1 ? V{} : broadcast<V>(__builtin_nan(""));
}
// half of log((1 + a) / (1 - a)); the rounding error of the quotient counts with a coarse reciprocal of 1 + a
template <class V> INLINE V atanh_of(V x) {
    PRECISION(V);
    V a = op_abs(x), top = a + 1, bottom = 1 - a, q = top / bottom, n, f = split_exponent(q, n);
    V lost = fmadd(-q, bottom, top) + (a - (top - 1));
    V r = log_edges(q, log_joined(n, f, lost * fmadd(top, broadcast<V>(-1 / (T)3), broadcast<V>(7 / (T)6))));
    return op_copysign(a <= (T)0.5 ? odd_polynomial(a, a * a, P::ATANH) : r * (T)0.5, x);
}

// ---- error function --------------------------------------------------------------------------------------------------
// |x| <= 1: x P(x^2); beyond: 1 - exp(-Q(|x|)), Q fitted to -log(erfc), weighted by erfc.
template <class V> INLINE V erf_of(V x) {
    PRECISION(V);
    V a = op_abs(x), q = polynomial(minimum_or_second(broadcast<V>(P::ERF_MOST), a), P::LOG_ERFC);
    return a > 1 ? op_copysign(1 - exp_of(-q), x) : polynomial(x * x, P::ERF) * x;
}
#ifndef SIMD_AVX512
// 1 - e^-Q(|x|), Q(x) = -log(erfc(x)) = x P(x)
INLINE vf32 erf_of(vf32 x) {
    static constexpr float p[] = {-0x1.36a78ap-17f, 0x1.ed7e24p-14f, -0x1.4bd164p-11f, 0x1.b506b2p-10f, -0x1.508f2p-13f,
        -0x1.39cd98p-6f, 0x1.a4fa5cp-4f, 0x1.45f2fap-1f, 0x1.20dd76p+0f};
    vf32 a = minimum_or_second(splat(precision<vf32>::ERF_MOST), op_abs(x));
    return op_copysign(expm1_near(-a * polynomial(a, p)), x);
}
#endif
// |x| < 1/2: 1 - erf(x); x > 0: exp(-x^2) R(x), R(x) (1 + 2x) a polynomial in (x - m) / (x + m); x < 0: 2 - erfc(-x)
template <class V> INLINE V erfc_of(V x) {
    PRECISION(V);
    I k;
    V a = minimum_or_second(broadcast<V>(P::ERFC_MOST), op_abs(x));
    V r = polynomial((a - P::ERFC_MIDDLE) / (a + P::ERFC_MIDDLE), P::ERFC), d = fmadd(a, broadcast<V>(2), broadcast<V>(1));
    V inverse = 1 / d, y = r * inverse;
    y = fmadd(fmadd(y, -d, r), inverse, y);
    V s = a * a, low = fmadd(a, a, -s);  // x^2 = s + low
    // exp(-s) in the reach of denormals loses bits when it comes first, so the factors are joined before the last scaling
    V n = nearest_integer(s * -P::LOG2_E, k);
    V t = fmadd(n, broadcast<V>(-P::LOG2_HIGH), -s);
    t = fmadd(n, broadcast<V>(-P::LOG2_LOW), t) - low;
    V e = fmadd(polynomial(t, P::EXP), t * t, t);
    y = scale(fmadd(y, e, y), n);
    return op_abs(x) < (T)0.5 ? 1 - polynomial(x * x, P::ERF) * x : x < 0 ? 2 - y : y;
}

// ---- trigonometric ---------------------------------------------------------------------------------------------------
// x = quadrant pi/2 + r + low with pi/2 in three parts, for |x| < PI_2_FAR; other finite lanes go to the C library.
// Beside a multiple of pi/2 the second part is larger than what the first one left: their sum needs Knuth's two-sum.
template <class V> INLINE V reduce_quadrant(V x, typename precision<V>::I &quadrant, V &low) {
    PRECISION(V);
    V n = nearest_integer(x * (T)0.636619772367581343076, quadrant), second = broadcast<V>(-P::PI_2[1]);
    V first = fmadd(n, broadcast<V>(-P::PI_2[0]), x), product = n * second, r = first + product, added = r - first;
    low = fmadd(n, second, -product) + ((first - (r - added)) + (product - added));
    low = fmadd(n, broadcast<V>(-P::PI_2[2]), low);
    return r;
}
template <class V> INLINE V sin_or_cos(V x, int quarters) {
    PRECISION(V);
    I quadrant;
    V low, r = reduce_quadrant(x, quadrant, low), t = r * r;
    quadrant += quarters;
    V s = r + fmadd(polynomial(t, P::SIN) * t, r, low);
    V c = fmadd(t, broadcast<V>(-0.5), broadcast<V>(1)) + fmadd(polynomial(t, P::COS) * t, t, -r * low);
    V y = (quadrant & 1) != 0 ? c : s;
    return (V)((I)y ^ ((quadrant & 2) << (8 * sizeof(T) - 2)));
}
template <class V> INLINE V sin_near(V x) { return x == 0 ? x : sin_or_cos(x, 0); }
template <class V> INLINE V cos_near(V x) { return sin_or_cos(x, 1); }
template <class V> INLINE V tan_near(V x) {
    typename precision<V>::I quadrant;
    V low, r = reduce_quadrant(x, quadrant, low), t = r * r;
    V rest = fmadd(polynomial(t, precision<V>::TAN) * t, r, low * fmadd(r, r, broadcast<V>(1))), y = r + rest, c = -1 / y;
    rest = rest - (y - r);
    c = fmadd(c, fmadd(c, rest, fmadd(c, y, broadcast<V>(1))), c);  // a step of Newton's method for -1 / (y + rest)
    return x == 0 ? x : (quadrant & 1) != 0 ? c : y;
}
INLINE mask is_far(vf32 x) { return {(op_abs(x) >= precision<vf32>::PI_2_FAR) & (op_abs(x) < __builtin_inff())}; }
INLINE mask is_far(half_f64 x) {
    half_i64 m = (op_abs(x) >= precision<half_f64>::PI_2_FAR) & (op_abs(x) < __builtin_inf());
    return join(m, m);
}
#define REDUCED(name) \
    template <class V> static __attribute__((noinline)) V name##_far(V x, V y) { \
        typename precision<V>::T largest = precision<V>::PI_2_FAR; \
        for (int i = 0; i < (int)(sizeof x / sizeof x[0]); ++i) \
            if (__builtin_fabs(x[i]) >= largest && __builtin_fabs(x[i]) < __builtin_inf()) y[i] = libm_##name(x[i]); \
        return y; \
    } \
    template <class V> INLINE V name##_of(V x) { \
        V y = name##_near(x); \
        return __builtin_expect(any(is_far(x)), 0) ? name##_far(x, y) : y; \
    }
LIBM_SCALAR(libm_sin, sin) LIBM_SCALAR(libm_cos, cos) LIBM_SCALAR(libm_tan, tan)
REDUCED(sin) REDUCED(cos) REDUCED(tan)
#undef REDUCED

// sign * atan(a / b) + offset * pi/4 for a, b >= 0, on three intervals of a / b
template <class V> INLINE V angle_of(V a, V b, V sign, V offset) {
    PRECISION(V);
    V shrink = a > P::HUGE ? broadcast<V>(0.25) : broadcast<V>(1);  // the sum of a and b may overflow
    a = a * shrink;
    b = b * shrink;
    auto low = (a < b * (T)0.4142135623730951) | (a == 0), high = a > b * (T)2.414213562373095;
    V q = (low ? a : high ? -b : a - b) / (low ? b : high ? a : a + b);
    q = a == b ? V{} : q;  // 0 / 0 and inf / inf, too
    V base = low ? V{} : high ? broadcast<V>(2) : broadcast<V>(1), t = q * q;
    base = fmadd(base, sign, offset);
    V small = fmadd(polynomial(t, P::ATAN) * t, q, base * sign * P::PI_4_LOW);
    return fmadd(base, broadcast<V>(P::PI_4_HIGH), (q + small) * sign);
}
template <class V> INLINE V atan_of(V x) {
    V one = broadcast<V>(1);
    return op_copysign(angle_of(op_abs(x), one, one, V{}), x);
}
template <class V> INLINE V atan2_of(V y, V x) {
    auto left = (typename precision<V>::I)x < 0;
    V sign = left ? broadcast<V>(-1) : broadcast<V>(1), base = left ? broadcast<V>(4) : V{};
    return op_copysign(angle_of(op_abs(y), op_abs(x), sign, base), y);
}
// a <= 1/2: a + a t P(t), t = a^2; beyond asin(a) = pi/2 - 2 asin(s), s = sqrt(t), t = (1 - a) / 2
template <class V> INLINE V asin_of(V x) {
    PRECISION(V);
    V a = op_abs(x), t = a > (T)0.5 ? (1 - a) * (T)0.5 : a * a, s = a > (T)0.5 ? op_sqrt(t) : a;
    V p = polynomial(t, P::ASIN) * t * s;
    V r = 2 * P::PI_4_HIGH - (2 * s - (2 * P::PI_4_LOW - 2 * p));
    return op_copysign(a > (T)0.5 ? r : s + p, x);
}
template <class V> INLINE V acos_of(V x) {
    PRECISION(V);
    V a = op_abs(x), t = a > (T)0.5 ? (1 - a) * (T)0.5 : a * a, s = a > (T)0.5 ? op_sqrt(t) : x;
    V p = polynomial(t, P::ASIN) * t * s;
    V middle = 2 * P::PI_4_HIGH - (s - (2 * P::PI_4_LOW - p));
    V outer = x < 0 ? 4 * P::PI_4_HIGH - 2 * (s - (2 * P::PI_4_LOW - p)) : 2 * (s + p);
    return a > (T)0.5 ? outer : middle;
}

// ---- roots and bits --------------------------------------------------------------------------------------------------
template <class V> INLINE V hypot_of(V x, V y) {
    PRECISION(V);
    V a = op_abs(x), b = op_abs(y), most = maximum_or_second(a, b), least = most == a ? b : a;
    V up = most > P::HYPOT_FAR ? broadcast<V>(1 / P::HYPOT_SCALE) : broadcast<V>(1);  // squares stay in range
    V down = most > P::HYPOT_FAR ? broadcast<V>(P::HYPOT_SCALE) : broadcast<V>(1);
    up = most < 1 / P::HYPOT_FAR ? broadcast<V>(P::HYPOT_SCALE) : up;
    down = most < 1 / P::HYPOT_FAR ? broadcast<V>(1 / P::HYPOT_SCALE) : down;
    most = most * up;
    least = least * up;
    V infinity = broadcast<V>(__builtin_inf());
    return (a == infinity) | (b == infinity) ? infinity : op_sqrt(fmadd(most, most, least * least)) * down;
}
template <class V> INLINE V nextafter_of(V x, V y) {
    PRECISION(V);
    I away = (x < y) == (x > 0), next = (I)x + (away & 2) - 1;
    V r = x == 0 ? op_copysign((V)(I{} + 1), y) : (V)next;
    r = x == y ? y : r;
    return (x != x) | (y != y) ? x + y : r;
}
#undef PRECISION
