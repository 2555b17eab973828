// Scans along the lanes: each lane combines its value with those of all lanes before it. Part of vec.h, which includes it.
#pragma once

INLINE vf32 lanes_before(vf32 x, int distance) { return __builtin_shuffle(x, vi32{IOTA} - distance); }
INLINE vi32 lanes_before(vi32 x, int distance) { return __builtin_shuffle(x, vi32{IOTA} - distance); }
INLINE half_f64 lanes_before(half_f64 x, int distance) { return __builtin_shuffle(x, half_i64{IOTA_LO} - distance); }
INLINE half_i64 lanes_before(half_i64 x, int distance) { return __builtin_shuffle(x, half_i64{IOTA_LO} - distance); }
INLINE vf64 lanes_before(vf64 x, int distance) { return {lanes_before(x.lo, distance), lanes_before(x.hi, distance)}; }
INLINE vi64 lanes_before(vi64 x, int distance) { return {lanes_before(x.lo, distance), lanes_before(x.hi, distance)}; }
// y in the lanes from `first` on of each register, x in the others
INLINE vf32 from_lane(int first, vf32 y, vf32 x) { return vi32{IOTA} >= first ? y : x; }
INLINE vi32 from_lane(int first, vi32 y, vi32 x) { return vi32{IOTA} >= first ? y : x; }
template <class V> INLINE V from_lane(int first, V y, V x) {
    half_i64 at = {IOTA_LO};
    return {at >= first ? y.lo : x.lo, at >= first ? y.hi : x.hi};
}
// the last lane in all lanes
INLINE vf32 last_lane(vf32 x) { return __builtin_shuffle(x, vi32{} + (LANES - 1)); }
INLINE vi32 last_lane(vi32 x) { return __builtin_shuffle(x, vi32{} + (LANES - 1)); }
INLINE half_f64 last_lane(half_f64 x) { return __builtin_shuffle(x, half_i64{} + (HALF - 1)); }
INLINE half_i64 last_lane(half_i64 x) { return __builtin_shuffle(x, half_i64{} + (HALF - 1)); }
template <class V> INLINE V last_lane(V x) {
    auto last = last_lane(x.hi);
    return {last, last};
}

template <class V> INLINE V op_logaddexp(V a, V b) {  // infinities of one sign are at no distance from each other
    V low = op_minimum(a, b), high = op_maximum(a, b);
    return select(op_eq(low, high) & op_isinf(high), high, high + op_log1p(op_exp(low - high)));
}
// whole vectors of columns for each thread, `most` columns at most
INLINE int64_t columns_of_block(int64_t columns, int threads, int64_t most) {
    int64_t each = ((columns + threads - 1) / threads + LANES - 1) / LANES * LANES;
    return each < most ? each : most;
}
// carry: what all earlier vectors give, in all lanes. It waits for one combination in each step.
#define SCAN(kind, combine) \
    INLINE vf32 joined_##kind(vf32 x) { return x; } \
    INLINE vi32 joined_##kind(vi32 x) { return x; } \
    template <class V> INLINE V joined_##kind(V x) { return {x.lo, combine(V{x.lo, last_lane(x.lo)}, x).hi}; } \
    template <class V> INLINE V scan_##kind(V &carry, V x) { \
        constexpr int in_register = sizeof lane(x, 0) == 4 ? LANES : HALF; \
        x = from_lane(1, combine(lanes_before(x, 1), x), x); \
        if (in_register > 2) x = from_lane(2, combine(lanes_before(x, 2), x), x); \
        if (in_register > 4) x = from_lane(4, combine(lanes_before(x, 4), x), x); \
        if (in_register > 8) x = from_lane(8, combine(lanes_before(x, 8), x), x); \
        x = joined_##kind(x); \
        V result = combine(carry, x); \
        carry = combine(carry, last_lane(x)); \
        return result; \
    }
SCAN(sum, op_add) SCAN(prod, op_mul) SCAN(max, op_maximum) SCAN(min, op_minimum) SCAN(logsumexp, op_logaddexp)
