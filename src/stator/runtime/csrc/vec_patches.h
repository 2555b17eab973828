// Convolutions of 3 x 3 taps in patches of 2 x 2 results (A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural
// Networks, 2016): y = A' [(G w G') * (B' x B)] A for a patch x of 4 x 4 elements of an image, where * multiplies element
// by element, so that four results take 16 products in place of 36. Kernels that convolve so include this file after vec.h.
#pragma once

constexpr int64_t PATCH = 16;  // elements of a patch of an image, and of its products

// Patches side by side. The first begins at row `top` and column `left` of an image, maybe outside of it; the next are two
// columns further each. pixel: elements from one column to the next.
struct patches_of_image {
    const float *image;
    int64_t height, across, pixel, channels, top, left;

    bool is_inside(int64_t y, int64_t x) const { return (uint64_t)y < (uint64_t)height && (uint64_t)x < (uint64_t)across; }
    const float *at(int64_t y, int64_t x) const { return image + (y * across + x) * pixel; }
};

// B' x for one column of a patch
INLINE void change_column(vf32 x0, vf32 x1, vf32 x2, vf32 x3, vf32 (&to)[4]) {
    to[0] = x0 - x2;
    to[1] = x1 + x2;
    to[2] = x2 - x1;
    to[3] = x1 - x3;
}

// B' x B for `count` patches. Elements of a patch come `apart`, those of neighbours one row of channels apart.
static __attribute__((noinline)) void change_patches(const patches_of_image &from, int64_t count, float *to, int64_t apart) {
    alignas(64) static const float zeros[LANES] = {};
    for (int64_t begin = 0; begin < from.channels; begin += LANES) {
        const int64_t channel = begin < from.channels - LANES ? begin : from.channels - LANES;
        const float *lines[4];
        int64_t steps[4];
        for (int64_t y = 0; y < 4; ++y) {
            const bool inside = from.is_inside(from.top + y, 0);
            lines[y] = inside ? from.at(from.top + y, 0) + channel : zeros;
            steps[y] = inside ? from.pixel : 0;
        }
        const auto column = [&](int64_t x, vf32(&changed)[4]) __attribute__((always_inline)) {
            if ((uint64_t)x < (uint64_t)from.across)
                change_column(
                    load(lines[0] + x * steps[0]), load(lines[1] + x * steps[1]), load(lines[2] + x * steps[2]),
                    load(lines[3] + x * steps[3]), changed
                );
            else changed[0] = changed[1] = changed[2] = changed[3] = vf32{};
        };
        float *goal = to + channel;
        vf32 columns[4][4];
        column(from.left, columns[0]);
        column(from.left + 1, columns[1]);
        for (int64_t at = 0, x = from.left + 2; at < count; ++at, x += 2, goal += from.channels) {
            column(x, columns[2]);
            column(x + 1, columns[3]);
#pragma GCC unroll 4
            for (int y = 0; y < 4; ++y) {
                vf32 changed[4];
                change_column(columns[0][y], columns[1][y], columns[2][y], columns[3][y], changed);
#pragma GCC unroll 4
                for (int x = 0; x < 4; ++x) store(goal + (4 * y + x) * apart, changed[x]);
                columns[0][y] = columns[2][y];
                columns[1][y] = columns[3][y];
            }
        }
    }
}

// G of three taps, inverted: the vector of one tap of a channel from those that multiply patches, one `element` apart
INLINE vf32 tap_of_patch(const float *w, int64_t element, int tap) {
    return tap == 0 ? load(w) : tap == 1 ? load(w + element) - load(w + 2 * element) : load(w + 3 * element);
}

// Whether one of the elements that a result reads, `down` and `along` within the first patch, is NaN
INLINE bool reads_nan(const patches_of_image &from, int64_t down, int64_t along) {
    for (int64_t tap = 0; tap < 9; ++tap) {
        const int64_t y = from.top + down + tap / 3, x = from.left + along + tap % 3;
        if (!from.is_inside(y, x)) continue;
        for (int64_t begin = 0; begin < from.channels; begin += LANES) {
            const int64_t channel = begin < from.channels - LANES ? begin : from.channels - LANES;
            if (any(op_isnan(load(from.at(y, x) + channel)))) return true;
        }
    }
    return false;
}

// The sums of one result and LANES channels from `column` on, tap by tap
INLINE vf32 sum_by_taps(
    const patches_of_image &from, const float *weight, int64_t width, int64_t down, int64_t along, int64_t column
) {
    const int64_t element = from.channels * width;
    vf32 sum = {};
    for (int64_t tap = 0; tap < 9; ++tap) {
        const int64_t y = from.top + down + tap / 3, x = from.left + along + tap % 3;
        if (!from.is_inside(y, x)) continue;
        for (int64_t channel = 0; channel < from.channels; ++channel) {
            const float *w = weight + channel * width + column;
            const vf32 first = tap_of_patch(w, element, tap % 3), second = tap_of_patch(w + 4 * element, element, tap % 3);
            const vf32 third = tap_of_patch(w + 8 * element, element, tap % 3);
            const vf32 last = tap_of_patch(w + 12 * element, element, tap % 3);
            sum = op_fma(splat(from.at(y, x)[channel]), tap < 3 ? first : tap < 6 ? second - third : last, sum);
        }
    }
    return sum;
}

// Two lines of two results of the first patch, tap by tap. weight: of `width` channels for each channel of each element
static __attribute__((noinline)) void results_by_taps(
    const patches_of_image &from, const float *weight, int64_t width, float *above, float *below
) {
    for (int64_t result = 0; result < 4; ++result) {
        const int64_t down = result / 2, along = result % 2;
        float *to = (down ? below : above) + along * width;
        const bool is_nan = reads_nan(from, down, along);
        for (int64_t column = 0; column < width; column += LANES)
            store(to + column, is_nan ? splat(__builtin_nanf("")) : sum_by_taps(from, weight, width, down, along, column));
    }
}

// A' m A for `count` patches of `width` channels: two lines of 2 x count results. An infinite element of an image, or one
// near to it, makes sums NaN that would be numbers tap by tap.
static __attribute__((noinline)) void results_of_patches(
    patches_of_image from, const float *weight, const float *products, int64_t apart, int64_t width, int64_t count,
    float *above, float *below
) {
    for (int64_t at = 0; at < count; ++at, products += width, above += 2 * width, below += 2 * width, from.left += 2) {
        vf32 zero = {};
        for (int64_t channel = 0; channel < width; channel += LANES) {
            vf32 upper[4], lower[4];
#pragma GCC unroll 4
            for (int x = 0; x < 4; ++x) {
                const float *elements = products + x * apart + channel;
                const vf32 second = load(elements + 4 * apart), third = load(elements + 8 * apart);
                upper[x] = load(elements) + second + third;
                lower[x] = second - third - load(elements + 12 * apart);
            }
            const vf32 y0 = upper[0] + upper[1] + upper[2], y1 = upper[1] - upper[2] - upper[3];
            const vf32 y2 = lower[0] + lower[1] + lower[2], y3 = lower[1] - lower[2] - lower[3];
            store(above + channel, y0);
            store(above + width + channel, y1);
            store(below + channel, y2);
            store(below + width + channel, y3);
            zero = op_fma(y0 + y1 + (y2 + y3), vf32{}, zero);
        }
        if (any(op_isnan(zero))) results_by_taps(from, weight, width, above, below);
    }
}
