// Convolutions of contiguous images with kernels of one row and column and without padding, and the gradients of the images, to
// the last bit as oneDNN computes them, without bringing images into its layouts: every number is a sum of chains of products
// over the channels, each added in one rounding.
#pragma once
#include "vec_depthwise.h"

#if LANES == 16
constexpr int ROWS = 12;  // results at a time, for which there are registers
#else
constexpr int ROWS = 6;
#endif
constexpr int VECTORS = 2, POSITIONS = VECTORS * LANES, STEP = ROWS / 3;
constexpr int64_t FEW = 8, NEAR = 8192;  // blocks at a time, so that rows are written in longer pieces; floats that stay near

// down, along: the stride of the kernel; chain: how many products it has; zero: whether sums of chains begin with zero, so
// that none is -0.0
struct Points {
    Sides sides;
    int64_t down, along, chain, zero;
};
INLINE const Points &points_of(const void *numbers) { return *(const Points *)numbers; }

// Images that are read or written, of which the kernel meets every down-th row and along-th column.
struct Images {
    int64_t channels, width, plane, down, along;
};

// Positions that are computed together, of one image or of several: where they are in its first plane.
struct Block {
    int64_t n, places[POSITIONS];
    bool together;  // one behind the other
};

INLINE Block block_of(const Images &images, int64_t out_width, int64_t positions, int64_t first, int64_t n) {
    Block block;
    block.n = n;
    int64_t image = first / positions, row = first % positions / out_width, column = first % positions % out_width;
    for (int64_t p = 0; p < n; ++p) {
        block.places[p] = image * images.channels * images.plane + row * images.down * images.width + column * images.along;
        if (++column < out_width) continue;
        column = 0;
        if (++row * out_width == positions) row = 0, ++image;
    }
    block.together = block.places[n - 1] - block.places[0] == n - 1;
    return block;
}

// columns[k * POSITIONS + p] = what channel k has at position p
INLINE void gather(float *columns, const float *from, const Images &images, const Block &block) {
    for (int64_t k = 0; k < images.channels; ++k, columns += POSITIONS, from += images.plane) {
        if (block.together && block.n == POSITIONS)
            __builtin_memcpy(columns, from + block.places[0], POSITIONS * 4);
        else if (block.together)
            __builtin_memcpy(columns, from + block.places[0], block.n * 4);
        else
            for (int64_t p = 0; p < block.n; ++p) columns[p] = from[block.places[p]];
    }
}

template <int V> INLINE void scatter(float *to, const vf32 *row, const Block &block) {
    if (block.together) {
        for (int v = 0; v < V; ++v)
            store(to + block.places[0] + v * LANES, row[v], (int)at_most(block.n - v * LANES, LANES));
        return;
    }
    float found[POSITIONS];
    for (int v = 0; v < V; ++v) store(found + v * LANES, row[v]);
    for (int64_t p = 0; p < block.n; ++p) to[block.places[p]] = found[p];
}

// That of result r and product k is by[r * of_result + k * of_product].
struct Weights {
    const float *by;
    int64_t of_result, of_product;
};

// R results at a block of V vectors of positions
template <int R, int V>
static __attribute__((noinline)) void mix_block(float *to, const Weights &weights, const float *columns, int64_t count,
                                                const Points &points, const Images &written, int64_t results,
                                                const Block &block) {
    const float *by = weights.by;
    const int64_t of_result = weights.of_result, of_product = weights.of_product;
    vf32 totals[R][V] = {};
    for (int64_t begin = 0; begin < count; begin += points.chain) {
        const int64_t end = at_most(begin + points.chain, count);
        vf32 sums[R][V] = {};
        for (int64_t k = begin; k < end; ++k) {
            vf32 x[V];
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) x[v] = load(columns + k * POSITIONS + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const vf32 weight = splat(by[r * of_result + k * of_product]);
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) sums[r][v] = fmadd(x[v], weight, sums[r][v]);
            }
        }
        const bool added = points.zero || begin > 0;
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) totals[r][v] = added ? totals[r][v] + sums[r][v] : sums[r][v];
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        if (r < results) scatter<V>(to + r * written.plane, totals[r], block);
}

template <int V, class... Rest> INLINE void mix_rows(int64_t rows, Rest &&...rest) {
    if (rows <= STEP)
        mix_block<STEP, V>(rest...);
    else if (rows <= 2 * STEP)
        mix_block<2 * STEP, V>(rest...);
    else
        mix_block<ROWS, V>(rest...);
}

// last: weights of the results behind the last ROWS
INLINE void mix(const float *from, const Images &read, float *to, const Images &written, const Points &points,
                const Weights &weights, const Weights &last) {
    const Sides &s = points.sides;
    const int64_t positions = s.out_height * s.out_width, all = s.batch * positions, blocks = rounded_up(all, POSITIONS);
    const int64_t tiles = rounded_up(written.channels, ROWS);
    const int64_t together = at_least(1, at_most(FEW, NEAR / (read.channels * POSITIONS)));  // blocks at a time
    const int64_t parts = rounded_up(blocks, together);
    const int threads = threads_for(all * s.results * s.channels / 8);
    const int64_t groups = at_most(tiles, rounded_up(4 * threads, parts)), of_group = rounded_up(tiles, groups);
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch(together * read.channels * POSITIONS);
#pragma omp for schedule(static)
        for (int64_t part = 0; part < parts * groups; ++part) {
            Block block[FEW];
            const int64_t begin = part / groups * together, end = at_most(begin + together, blocks);
            for (int64_t b = 0; b < end - begin; ++b) {
                const int64_t first = (begin + b) * POSITIONS, n = at_most(all - first, POSITIONS);
                gather(scratch.memory + b * read.channels * POSITIONS, from, read,
                       block_of(read, s.out_width, positions, first, n));
                block[b] = block_of(written, s.out_width, positions, first, n);
            }
            const int64_t tile = part % groups * of_group, behind = at_most(tile + of_group, tiles);
            for (int64_t o = tile * ROWS; o < at_most(behind * ROWS, written.channels); o += ROWS) {
                const int64_t results = at_most(written.channels - o, ROWS);
                Weights here = results < ROWS ? last : weights;
                if (results == ROWS) here.by += o * weights.of_result;
                for (int64_t b = 0; b < end - begin; ++b) {
                    const float *columns = scratch.memory + b * read.channels * POSITIONS;
                    if (block[b].n > LANES)
                        mix_rows<2>(results, to + o * written.plane, here, columns, read.channels, points, written, results, block[b]);
                    else
                        mix_rows<1>(results, to + o * written.plane, here, columns, read.channels, points, written, results, block[b]);
                }
            }
        }
    }
}

// pointers: x, weight, Points; result
INLINE void pointwise_forward(void *const *pointers) {
    const float *x = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Points &points = points_of(pointers[2]);
    const Sides &s = points.sides;
    const int64_t whole = s.results / ROWS * ROWS;
    Scratch last(ROWS * s.channels);  // zeros for what are no results
    __builtin_memcpy(last.memory, weight + whole * s.channels, (s.results - whole) * s.channels * 4);
    const Images read{s.channels, s.width, s.height * s.width, points.down, points.along};
    const Images written{s.results, s.out_width, s.out_height * s.out_width, 1, 1};
    mix(x, read, (float *)pointers[3], written, points, {weight, s.channels, 1}, {last.memory, s.channels, 1});
}

// pointers: grad, weight, Points; the gradient of x
INLINE void pointwise_data_gradient(void *const *pointers) {
    const float *grad = (const float *)pointers[0], *weight = (const float *)pointers[1];
    const Points &points = points_of(pointers[2]);
    const Sides &s = points.sides;
    float *out = (float *)pointers[3];
    const int64_t whole = s.channels / ROWS * ROWS, plane = s.height * s.width;
    Scratch last(ROWS * s.results);
    for (int64_t o = 0; o < s.results; ++o)
        for (int64_t c = whole; c < s.channels; ++c) last.memory[o * ROWS + c - whole] = weight[o * s.channels + c];
    if (points.down * points.along > 1) __builtin_memset(out, 0, s.batch * s.channels * plane * 4);
    const Images read{s.results, s.out_width, s.out_height * s.out_width, 1, 1};
    const Images written{s.channels, s.width, plane, points.down, points.along};
    mix(grad, read, out, written, points, {weight, 1, s.channels}, {last.memory, 1, ROWS});
}
