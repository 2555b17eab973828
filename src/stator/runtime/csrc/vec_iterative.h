// Operations that loop as long as their operands require, lane by lane: common divisors, zeta, orthogonal polynomials.
#pragma once

template <class T> static __attribute__((noinline)) T gcd_of(T a, T b) {
    a = a < 0 ? -a : a;
    b = b < 0 ? -b : b;
    while (a != 0) {
        T rest = b % a;
        b = a;
        a = rest;
    }
    return b;
}

// Hurwitz's zeta by the Euler-Maclaurin formula, in double as in eager: terms until the shifted argument exceeds 9,
// then (2k)! / B(2k) for k to 12.
static __attribute__((noinline)) double zeta_of(double x, double q) {
    static const double factors[12] = {12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9,
        7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15,
        1.8152105401943546773e17, -7.1661652561756670113e18};
    const double tiny = 1.11022302462515654042e-16;
    if (x == 1.0) return __builtin_inf();
    if (x < 1.0) return __builtin_nan("");
    if (q <= 0.0) {
        if (q == __builtin_floor(q)) return __builtin_inf();
        if (x != __builtin_floor(x)) return __builtin_nan("");
    }
    double sum = __builtin_pow(q, -x), shifted = q, term = 0.0;
    for (int i = 0; i < 9 || shifted <= 9.0; ++i) {
        shifted += 1.0;
        term = __builtin_pow(shifted, -x);
        sum += term;
        if (-tiny * sum < term && term < tiny * sum) return sum;
    }
    sum += term * shifted / (x - 1.0) - 0.5 * term;
    double product = 1.0, k = 0.0;
    for (int i = 0; i < 12; ++i) {
        product *= x + k;
        term /= shifted;
        double correction = product * term / factors[i];
        sum += correction;
        if (__builtin_fabs(correction / sum) < tiny) return sum;
        k += 1.0;
        product *= x + k;
        term /= shifted;
        k += 1.0;
    }
    return sum;
}

// The degree truncated as in eager; -1 for NaN and for numbers beyond int64.
template <class T> INLINE int64_t degree_of(T n) { return n == n && __builtin_fabs((double)n) < 9e18 ? (int64_t)n : -1; }

template <class T> static __attribute__((noinline)) T hermite_h_of(T x, T degree) {
    const int64_t n = degree_of(degree);
    if (n < 0) return 0;
    if (n == 0) return 1;
    if (n > (sizeof(T) == 4 ? 128 : 512)) return (T)__builtin_nan("");
    T before = 1, last = x + x;
    for (int64_t k = 2; k < n + n; k += 2) {
        T next = (x + x) * last - (T)k * before;
        before = last;
        last = next;
    }
    return last;
}

template <class T> static __attribute__((noinline)) T hermite_he_of(T x, T degree) {
    const int64_t n = degree_of(degree);
    if (n < 0) return 0;
    if (n == 0) return 1;
    if (n > (sizeof(T) == 4 ? 128 : 512)) return (T)__builtin_nan("");
    T before = 1, last = x;
    for (int64_t k = 1; k < n; ++k) {
        T next = x * last - (T)k * before;
        before = last;
        last = next;
    }
    return last;
}

template <class T> static __attribute__((noinline)) T laguerre_l_of(T x, T degree) {
    const int64_t n = degree_of(degree);
    if (n < 0) return 0;
    if (n == 0 || x == 0) return 1;
    T before = 1, last = 1 - x;
    for (int64_t k = 1; k < n && last == last; ++k) {
        T next = (((T)(k + k) + (1 - x)) * last - (T)k * before) / (T)(k + 1);
        before = last;
        last = next;
    }
    return last;
}

template <class T> static __attribute__((noinline)) T legendre_p_of(T x, T degree) {
    const int64_t n = degree_of(degree);
    if (n < 0) return 0;
    if (x == 1 || x == -1) return x > 0 || n % 2 == 0 ? 1 : -1;
    if (n == 0) return 1;
    T before = 1, last = x;
    for (int64_t k = 1; k < n && last == last; ++k) {
        T next = ((T)(k + k + 1) * x * last - (T)k * before) / (T)(k + 1);
        before = last;
        last = next;
    }
    return last;
}

#define ITERATIVE(name, function) \
    INLINE float name(float x, float y) { return (float)function(x, y); } \
    INLINE double name(double x, double y) { return function(x, y); } \
    LANEWISE2(name, function, float, vf32) LANEWISE2(name, function, double, vf64)
ITERATIVE(op_zeta, zeta_of)
ITERATIVE(op_hermite_h, hermite_h_of)
ITERATIVE(op_hermite_he, hermite_he_of)
ITERATIVE(op_laguerre_l, laguerre_l_of)
ITERATIVE(op_legendre_p, legendre_p_of)
#undef ITERATIVE
INLINE int32_t op_gcd(int32_t x, int32_t y) { return gcd_of(x, y); }
INLINE int64_t op_gcd(int64_t x, int64_t y) { return gcd_of(x, y); }
LANEWISE2(op_gcd, gcd_of, int32_t, vi32)
LANEWISE2(op_gcd, gcd_of, int64_t, vi64)
