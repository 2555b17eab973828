// Convolutions of small groups of channels: the lanes of a vector are channels of several groups. Kernels that convolve so
// include this file after vec.h.
#pragma once

// In each group of G neighbouring lanes of x all have the value of lane C of the group. x: at p, where channel `at` of all
// is; a group larger than a vector is read from memory.
#define LANE_OF_GROUP(lane) ((lane) / G * G + C)
template <int G, int C> INLINE vf32 spread(vf32 x, const float *p, int64_t at) {
    if constexpr (G > LANES) return splat(p[C - at % G]);
#if LANES == 16
    return __builtin_shufflevector(
        x, x, LANE_OF_GROUP(0), LANE_OF_GROUP(1), LANE_OF_GROUP(2), LANE_OF_GROUP(3), LANE_OF_GROUP(4), LANE_OF_GROUP(5),
        LANE_OF_GROUP(6), LANE_OF_GROUP(7), LANE_OF_GROUP(8), LANE_OF_GROUP(9), LANE_OF_GROUP(10), LANE_OF_GROUP(11),
        LANE_OF_GROUP(12), LANE_OF_GROUP(13), LANE_OF_GROUP(14), LANE_OF_GROUP(15)
    );
#elif LANES == 8
    return __builtin_shufflevector(
        x, x, LANE_OF_GROUP(0), LANE_OF_GROUP(1), LANE_OF_GROUP(2), LANE_OF_GROUP(3), LANE_OF_GROUP(4), LANE_OF_GROUP(5),
        LANE_OF_GROUP(6), LANE_OF_GROUP(7)
    );
#else
    return __builtin_shufflevector(
        x, x, LANE_OF_GROUP(0) % LANES, LANE_OF_GROUP(1) % LANES, LANE_OF_GROUP(2) % LANES, LANE_OF_GROUP(3) % LANES
    );
#endif
}
