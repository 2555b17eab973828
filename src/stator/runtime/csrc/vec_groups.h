// Convolutions of small groups of channels: the lanes of a vector are channels of several groups. Kernels that convolve so
// include this file after vec.h.
#pragma once

// In each group of G neighbouring lanes of x all have the value of lane C of the group
#define LANE_OF_GROUP(lane) ((lane) / G * G + C)
template <int G, int C> INLINE vf32 spread(vf32 x) {
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
    static_assert(G <= LANES, "a group lies in a vector");
    return __builtin_shufflevector(x, x, LANE_OF_GROUP(0), LANE_OF_GROUP(1), LANE_OF_GROUP(2), LANE_OF_GROUP(3));
#endif
}
