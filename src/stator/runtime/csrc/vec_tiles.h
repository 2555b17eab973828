// Products of bfloat16 rows with int8 weights in AMX: y[m][n] = bias[n] + sum of x[m][k] w[n][k], in sums of float32.
// An instruction multiplies 16 rows of w, 32 elements of each, by 16 rows of x whose pairs of elements were transposed
// once. The rows of w are converted in the shadow of these instructions, block by block, while they multiply the block
// before. inner and columns are multiples of 32. Kernels of runtime/tile_products.py include this file after vec.h; the
// system must have granted the use of tiles.
#pragma once

#define TILE_LOAD(t, from) asm volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(from), "r"((int64_t)64) : "memory")
#define TILE_STORE(t, to) asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(to), "r"((int64_t)64) : "memory")
#define TILE_ZERO(t) asm volatile("tilezero %%tmm" #t : :)
#define TILE_ADD_PRODUCT(sums, w, x) asm volatile("tdpbf16ps %%tmm" #x ", %%tmm" #w ", %%tmm" #sums : :)

// Elements of a tile: 16 rows of 32 bfloat16, or 16 rows of 16 sums
#define TILE 512
#define TILE_OF_SUMS 256
// Elements of rows of w that are multiplied at a time: two blocks of 32 rows stay in the first-level cache.
#define DEPTH 256
// Elements of x that stay in the second-level cache
#define CACHED_ROWS (1 << 19)

struct tile_shapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

INLINE void transpose_words(vi32 *r) {
    transpose_blocks<vi32, 1>(r);
    transpose_blocks<vi32, 2>(r);
    transpose_blocks<vi32, 4>(r);
    transpose_blocks<vi32, 8>(r);
}

// The pairs of 16 rows of x, of 32 elements each; rows beyond the last are zeros
INLINE void pack_tile(const bfloat16 *x, int64_t inner, int64_t rows, bfloat16 *to) {
    vi32 r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = i < rows ? *(const mem_i32 *)(x + i * inner) : vi32{};
    transpose_words(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) *(mem_i32 *)(to + i * 32) = r[i];
}

// Converts 32 rows of w, `depth` elements of each, to pairs of tiles, 32 elements with each step
struct conversion {
    const int8_t *w;
    int64_t inner, depth;
    bfloat16 *to;
    int64_t row = 0, at = 0;

    __attribute__((always_inline)) void step() {
        const int8_t *from = w + row * inner + at;
        __builtin_prefetch(from + 32 * inner, 0, 2);
        bfloat16 *out = to + at * 32 + row / 16 * TILE + row % 16 * 32;
#pragma GCC unroll 2
        for (int part = 0; part < 32; part += 16) {  // a bfloat16, the upper half of a float, has room for each int8
            const vi32 bits = (vi32)__builtin_convertvector(load(from + part), vf32);
            *(mem_u16 *)(out + part) = (vu16)narrow_i16(bits >> 16);
        }
        at += 32;
        if (at == depth) at = 0, ++row;
    }
    __attribute__((always_inline)) void steps(int64_t count) {
        for (; count > 0 && row < 32; --count) step();
    }
};

// Add the products of 32 rows of w and 16 or 32 rows of x to sums: tiles of 16 columns by 16 rows
template <bool BOTH>
INLINE void add_tiles(
    const bfloat16 *w, const bfloat16 *x, int64_t depth, float *sums, bool first, conversion &next, int64_t share
) {
    if (first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, sums);
        TILE_LOAD(1, sums + TILE_OF_SUMS);
        TILE_LOAD(2, sums + 2 * TILE_OF_SUMS);
        TILE_LOAD(3, sums + 3 * TILE_OF_SUMS);
    }
    for (int64_t k = 0; k < depth; k += 32, w += 2 * TILE, x += 2 * TILE) {
        TILE_LOAD(4, w);
        TILE_LOAD(6, x);
        TILE_ADD_PRODUCT(0, 4, 6);
        TILE_LOAD(5, w + TILE);
        TILE_ADD_PRODUCT(1, 5, 6);
        if (BOTH) {
            TILE_LOAD(7, x + TILE);
            TILE_ADD_PRODUCT(2, 4, 7);
            TILE_ADD_PRODUCT(3, 5, 7);
        }
        next.steps(share);
    }
    TILE_STORE(0, sums);
    TILE_STORE(1, sums + TILE_OF_SUMS);
    TILE_STORE(2, sums + 2 * TILE_OF_SUMS);
    TILE_STORE(3, sums + 3 * TILE_OF_SUMS);
}

// Round a tile of sums, with the bias, to 16 columns of up to 16 rows
INLINE void store_tile(const float *sums, const bfloat16 *bias, bfloat16 *y, int64_t rows, int64_t columns) {
    vi32 r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = *(const mem_i32 *)(sums + i * 16);
    transpose_words(r);
    const vf32 added = bias ? load(bias) : vf32{};
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
        if (i < rows) store(y + i * columns, bias ? (vf32)r[i] + added : (vf32)r[i]);
}

// `rows` rows of x, packed, by rows of w from `begin` to `end`. converted: room for two blocks of w
static __attribute__((noinline)) void multiply_part(
    const bfloat16 *packed, const int8_t *w, const bfloat16 *bias, bfloat16 *y, int64_t rows, int64_t inner,
    int64_t columns, int64_t begin, int64_t end, bfloat16 *converted, float *sums
) {
    conversion next{w + begin * inner, inner, inner < DEPTH ? inner : DEPTH, converted};
    next.steps(32 * DEPTH);
    for (int64_t n = begin; n < end; n += 32) {
        for (int64_t k = 0; k < inner; k += DEPTH) {
            const int64_t depth = next.depth, after = k + depth, left = inner - after;
            const bfloat16 *tiles = next.to;
            bfloat16 *other = tiles == converted ? converted + 32 * DEPTH : converted;
            if (left > 0) next = {w + n * inner + after, inner, left < DEPTH ? left : DEPTH, other};
            else if (n + 32 < end) next = {w + (n + 32) * inner, inner, inner < DEPTH ? inner : DEPTH, other};
            const int64_t share = (next.depth + (rows + 31) / 32 * (depth / 32) - 1) / ((rows + 31) / 32 * (depth / 32));
            for (int64_t m = 0; m < rows; m += 32) {
                const bfloat16 *some = packed + m * inner + k * 32;
                if (rows - m > 16) add_tiles<true>(tiles, some, depth, sums + m * 32, k == 0, next, share);
                else add_tiles<false>(tiles, some, depth, sums + m * 32, k == 0, next, share);
            }
        }
        for (int64_t m = 0; m < rows; m += 16)
            for (int64_t at = n; at < n + 32; at += 16)
                store_tile(sums + m * 32 + (at - n) * 16, bias ? bias + at : bias, y + m * columns + at, rows - m, columns);
    }
}

static inline void multiply_in_tiles(
    const bfloat16 *x, const int8_t *w, const bfloat16 *bias, bfloat16 *y, int64_t rows, int64_t inner, int64_t columns
) {
    const int64_t parts = rows * inner / CACHED_ROWS + 1;
    const int64_t part = ((rows + parts - 1) / parts + 31) / 32 * 32, pairs = (rows + 31) / 32, blocks = columns / 32;
    scratch<bfloat16> packed(pairs * 32 * inner);
    in_parallel(threads_for(rows * inner * columns / 64), [=, &packed] {
        scratch<bfloat16> converted(2 * 32 * DEPTH);
        scratch<float> sums(part * 32);
        const tile_shapes shapes;
        asm volatile("ldtilecfg %0" : : "m"(shapes));
#pragma omp for schedule(static)
        for (int64_t at = 0; at < pairs * 2; ++at)
            for (int64_t k = 0; k < inner; k += 32)
                pack_tile(x + at * 16 * inner + k, inner, rows - at * 16, &packed[at / 2 * 32 * inner + k * 32 + at % 2 * TILE]);
        const int64_t threads = omp_get_num_threads(), share = (blocks + threads - 1) / threads * 32;
        const int64_t begin = omp_get_thread_num() * share, end = begin + share < columns ? begin + share : columns;
        for (int64_t m = 0; begin < end && m < rows; m += part)
            multiply_part(
                &packed[m * inner], w, bias, y + m * columns, rows - m < part ? rows - m : part, inner, columns, begin,
                end, converted.data, sums.data
            );
        asm volatile("tilerelease" : :);
    });
}
