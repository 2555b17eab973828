// Random bits and normal numbers for generated kernels, equal to the last bit to prims/operators/random.py and
// normal_quantile.py, which cite sources and define streams. No state survives a kernel call.
#pragma once
#include "vec.h"

// ---- Philox 4x32-10 ----------------------------------------------------------------------------------------------------
// A word lives in the low half of a 64-bit lane, whose upper half may hold anything: products and exclusive ors of the
// low halves do not see it.
typedef uint64_t half_u64 __attribute__((vector_size(4 * LANES), may_alias));
#if defined(SIMD_AVX512) && __has_builtin(__builtin_ia32_pmuludq512_mask)
INLINE half_u64 multiply_words(half_u64 a, half_u64 b) {
    return (half_u64)__builtin_ia32_pmuludq512_mask((vi32)a, (vi32)b, x86_i64x8{}, (uint8_t)-1);
}
#elif defined(SIMD_AVX2) && __has_builtin(__builtin_ia32_pmuludq256)
typedef int x86_i32x8 __attribute__((vector_size(32)));
INLINE half_u64 multiply_words(half_u64 a, half_u64 b) {
    return (half_u64)__builtin_ia32_pmuludq256((x86_i32x8)a, (x86_i32x8)b);
}
#else
INLINE half_u64 multiply_words(half_u64 a, half_u64 b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
#endif
struct philox_words {
    half_u64 w0, w1, w2, w3;
};
INLINE philox_words philox(half_u64 counter, int64_t seed, int64_t stream, int draw) {
    const half_u64 zero = {};
    half_u64 w0 = counter, w1 = counter >> 32, w2 = zero + (uint64_t)(uint32_t)stream, w3 = zero + (uint64_t)draw;
    half_u64 k0 = zero + (uint64_t)seed, k1 = zero + ((uint64_t)seed >> 32);
    const half_u64 m0 = zero + 0xd2511f53u, m1 = zero + 0xcd9e8d57u;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
        half_u64 first = multiply_words(w0, m0), second = multiply_words(w2, m1);
        w0 = (second >> 32) ^ w1 ^ k0;
        w1 = second;
        w2 = (first >> 32) ^ w3 ^ k1;
        w3 = first;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {w0, w1, w2, w3};
}

// Words of two neighbouring blocks of 64 elements: the even block first; its beginning is repeated behind the odd
// block, so that any LANES neighbours load at once.
struct random_blocks {
    int64_t have[2] = {-1, -1};
    alignas(64) int32_t words[128 + 16];
};
static __attribute__((noinline)) void fill_block(
    random_blocks &blocks, int64_t seed, int64_t stream, int draw, int64_t block) {
    int32_t *words = blocks.words + (block & 1) * 64;
    const half_u64 lanes = (half_u64)half_i64{IOTA_LO};
#pragma GCC unroll 8
    for (int first = 0; first < 16; first += HALF) {
        philox_words w = philox(lanes + (uint64_t)(block * 16 + first), seed, stream, draw);
        half_i32 narrow[4] = {narrow_half((half_i64)w.w0), narrow_half((half_i64)w.w1), narrow_half((half_i64)w.w2),
                              narrow_half((half_i64)w.w3)};
#pragma GCC unroll 4
        for (int word = 0; word < 4; ++word) __builtin_memcpy(words + word * 16 + first, &narrow[word], sizeof narrow[0]);
    }
    if (!(block & 1)) __builtin_memcpy(blocks.words + 128, blocks.words, 16 * sizeof(int32_t));
    blocks.have[block & 1] = block;
}
INLINE void need_block(random_blocks &blocks, int64_t seed, int64_t stream, int draw, int64_t block) {
    if (blocks.have[block & 1] != block) fill_block(blocks, seed, stream, draw, block);
}
// the bits of element `at`; of elements `first`, `first` + 1, ...; and of any elements
INLINE int32_t random_one(random_blocks &blocks, int64_t seed, int64_t stream, int draw, int64_t at) {
    need_block(blocks, seed, stream, draw, at >> 6);
    return blocks.words[at & 127];
}
INLINE vi32 random_run(random_blocks &blocks, int64_t seed, int64_t stream, int draw, int64_t first) {
    need_block(blocks, seed, stream, draw, first >> 6);
    if ((first & 63) > 64 - LANES) need_block(blocks, seed, stream, draw, (first >> 6) + 1);
    return load((const int32_t *)blocks.words + (first & 127));
}
INLINE half_i32 random_half(int64_t seed, int64_t stream, int draw, half_i64 at) {
    philox_words w = philox((half_u64)((at >> 6) * 16 + (at & 15)), seed, stream, draw);
    half_i64 odd = (at & 16) != 0, upper = (at & 32) != 0;
    half_u64 low = odd ? w.w1 : w.w0, high = odd ? w.w3 : w.w2;
    return narrow_half((half_i64)(upper ? high : low));
}
INLINE vi32 random_lanes(int64_t seed, int64_t stream, int draw, vi64 at) {
    return join_i32(random_half(seed, stream, draw, at.lo), random_half(seed, stream, draw, at.hi));
}

// ---- normal numbers from bits: AS 241 ------------------------------------------------------------------------------------
// One text for float and double, scalars and vectors: R numbers, I their bits, S the scalar number.
INLINE float as_real(int32_t x) { return bits_to_float((uint32_t)x); }
INLINE vf32 as_real(vi32 x) { return (vf32)x; }
INLINE double as_real(int64_t x) { return bitcast_f64(x); }
INLINE half_f64 as_real(half_i64 x) { return (half_f64)x; }
INLINE int32_t as_whole(float x) { return (int32_t)float_to_bits(x); }
INLINE vi32 as_whole(vf32 x) { return (vi32)x; }
INLINE int64_t as_whole(double x) { return bitcast_i64(x); }
INLINE half_i64 as_whole(half_f64 x) { return (half_i64)x; }
INLINE float to_real(int32_t x) { return (float)x; }
INLINE vf32 to_real(vi32 x) { return __builtin_convertvector(x, vf32); }
INLINE double to_real(int64_t x) { return (double)x; }
INLINE half_f64 to_real(half_i64 x) { return __builtin_convertvector(x, half_f64); }
template <class S, class R, int N> INLINE R evaluate(const S (&coefficients)[N], R x) {
    R value = x * coefficients[N - 1] + coefficients[N - 2];
#pragma GCC unroll 10
    for (int i = N - 3; i >= 0; --i) value = value * x + coefficients[i];
    return value;
}
template <class S> struct normal_steps;
template <> struct normal_steps<float> {
    static constexpr int width = 32, shift = 23;
    static constexpr int32_t root = 0x3f3504f3, half_range = 0x7fffffff;
    static constexpr float unit = 0x1p-32f;
    static constexpr float logarithm[4] = {(float)(2.0 / 3), (float)(2.0 / 5), (float)(2.0 / 7), (float)(2.0 / 9)};
    static constexpr float middle[4] = {(float)3.3871327179, (float)50.434271938, (float)159.29113202, (float)59.109374720};
    static constexpr float below_middle[4] = {1, (float)17.895169469, (float)78.757757664, (float)67.187563600};
    static constexpr float tail[4] = {(float)1.4234372777, (float)2.7568153900, (float)1.3067284816, (float)0.17023821103};
    static constexpr float below_tail[3] = {1, (float)0.73700164250, (float)0.12021132975};
};
template <> struct normal_steps<double> {
    static constexpr int width = 64, shift = 52;
    static constexpr int64_t root = 0x3fe6a09e667f3bcdll, half_range = 0x7fffffffffffffffll;
    static constexpr double unit = 0x1p-64;
    static constexpr double logarithm[10] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                                             2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
    static constexpr double middle[8] = {3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427,
                                         13731.693765509461125, 45921.953931549871457, 67265.770927008700853,
                                         33430.575583588128105, 2509.0809287301226727};
    static constexpr double below_middle[8] = {1, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
                                               21213.794301586595867, 39307.895800092710610, 28729.085735721942674,
                                               5226.4952788528545610};
    static constexpr double tail[8] = {1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550,
                                       3.64784832476320460504, 1.27045825245236838258, 0.241780725177450611770,
                                       0.0227238449892691845833, 7.74545014278341407640e-4};
    static constexpr double below_tail[8] = {1, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
                                             0.148103976427480074590, 0.0151986665636164571966,
                                             5.47593808499534494600e-4, 1.05075007164441684324e-9};
    static constexpr double far[8] = {6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580,
                                      0.296560571828504891230, 0.0265321895265761230930, 1.24266094738807843860e-3,
                                      2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static constexpr double below_far[8] = {1, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
                                            7.86869131145613259100e-4, 1.84631831751005468180e-5,
                                            1.42151175831644588870e-7, 2.04426310338993978564e-15};
};
template <class S, class R, class I> INLINE R normal_quantile(I words) {
    typedef normal_steps<S> steps;
    I above = words ^ (words >> (steps::width - 1)), below = above ^ steps::half_range;
    R q = (to_real(above) + (S)0.5) * steps::unit, p = (to_real(below) + (S)0.5) * steps::unit;
    R r = (S)0.180625 - q * q;
    // log(p) = k log(2) + log(1 + f)
    I whole = as_whole(p), k = (whole - steps::root) >> steps::shift;
    R f = as_real((I)(whole - (k << steps::shift))) - (S)1, s = f / (f + (S)2), z = s * s;
    R log = to_real(k) * (S)0.6931471805599453 + (evaluate<S, R>(steps::logarithm, z) * z * s + s * (S)2);
    R t = op_sqrt(-log), u = t - (S)1.6;
    R numerator = evaluate<S, R>(steps::tail, u), denominator = evaluate<S, R>(steps::below_tail, u);
    if constexpr (sizeof(S) == 8) {  // 32 bits do not reach as far
        R v = t - (S)5;
        numerator = t > (S)5 ? evaluate<S, R>(steps::far, v) : numerator;
        denominator = t > (S)5 ? evaluate<S, R>(steps::below_far, v) : denominator;
    }
    numerator = r >= (S)0 ? evaluate<S, R>(steps::middle, r) * q : numerator;
    denominator = r >= (S)0 ? evaluate<S, R>(steps::below_middle, r) : denominator;
    R value = numerator / denominator;
    return words < 0 ? -value : value;
}
INLINE float op_normal(int32_t words) { return normal_quantile<float, float>(words); }
INLINE vf32 op_normal(vi32 words) { return normal_quantile<float, vf32>(words); }
INLINE double op_normal(int64_t words) { return normal_quantile<double, double>(words); }
INLINE vf64 op_normal(vi64 words) {
    return {normal_quantile<double, half_f64>(words.lo), normal_quantile<double, half_f64>(words.hi)};
}
