// Products with int8 weights in AMX: y[m][n] = bias[n] + sum of x[m][k] w[n][k], of bfloat16 rows in sums of float32, or of
// int8 rows in sums of int32. An instruction multiplies 16 rows of w, 64 bytes of each, by 16 rows of x whose words of 4
// bytes were transposed once. The rows of w are converted in the shadow of these instructions, block by block, while they
// multiply the block before. columns is a multiple of 32, a row has a multiple of 64 bytes. Kernels of
// runtime/tile_products.py include this file after vec.h; the system must have granted the use of tiles.
#pragma once

#define TILE_LOAD(t, from) asm volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(from), "r"((int64_t)64) : "memory")
#define TILE_STORE(t, to) asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(to), "r"((int64_t)64) : "memory")
#define TILE_ZERO(t) asm volatile("tilezero %%tmm" #t : :)
#define TILE_ADD_PRODUCT(E, sums, w, x) \
    if (sizeof(E) == 2) asm volatile("tdpbf16ps %%tmm" #x ", %%tmm" #w ", %%tmm" #sums : :); \
    else asm volatile("tdpbssd %%tmm" #x ", %%tmm" #w ", %%tmm" #sums : :)

// E: elements of x, bfloat16 or int8_t. A tile is 16 rows of 64 bytes.
template <class E> constexpr int64_t WIDTH = 64 / sizeof(E);
template <class E> constexpr int64_t TILE = 16 * WIDTH<E>;
#define TILE_OF_SUMS 256
// Elements of rows of w that are multiplied at a time: two blocks of 32 rows stay in the first-level cache.
template <class E> constexpr int64_t DEPTH = 8 * WIDTH<E>;
// Bytes of x that stay in the second-level cache
#define CACHED_ROWS (1 << 20)

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

// The words of 16 rows of x, 64 bytes of each; rows beyond the last are zeros
template <class E> INLINE void pack_tile(const E *x, int64_t inner, int64_t rows, E *to) {
    vi32 r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = i < rows ? *(const mem_i32 *)(x + i * inner) : vi32{};
    transpose_words(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) *(mem_i32 *)(to + i * WIDTH<E>) = r[i];
}

INLINE void convert_words(const int8_t *from, int8_t *to) { *(mem_i32 *)to = *(const mem_i32 *)from; }
INLINE void convert_words(const int8_t *from, bfloat16 *to) {
#pragma GCC unroll 2
    for (int at = 0; at < 32; at += 16) {  // a bfloat16, the upper half of a float, has room for each int8
        const vi32 bits = (vi32)__builtin_convertvector(load(from + at), vf32);
        *(mem_u16 *)(to + at) = (vu16)narrow_i16(bits >> 16);
    }
}

// Converts 32 rows of w, `depth` elements of each, to pairs of tiles, a row of a tile with each step
template <class E> struct conversion {
    const int8_t *w;
    int64_t inner, depth;
    E *to;
    int64_t row = 0, at = 0;

    __attribute__((always_inline)) void steps(int64_t count) {
        for (; count > 0 && row < 32; --count) {
            const int8_t *from = w + row * inner + at;
            __builtin_prefetch(from + 32 * inner, 0, 2);
            convert_words(from, to + at * 32 + row / 16 * TILE<E> + row % 16 * WIDTH<E>);
            at += WIDTH<E>;
            if (at == depth) at = 0, ++row;
        }
    }
};

// Add the products of 32 rows of w and 16 or 32 rows of x to sums: tiles of 16 columns by 16 rows
template <bool BOTH, class E>
INLINE void add_tiles(const E *w, const E *x, int64_t depth, float *sums, bool first, conversion<E> &next, int64_t share) {
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
    for (int64_t k = 0; k < depth; k += WIDTH<E>, w += 2 * TILE<E>, x += 2 * TILE<E>) {
        TILE_LOAD(4, w);
        TILE_LOAD(6, x);
        TILE_ADD_PRODUCT(E, 0, 4, 6);
        TILE_LOAD(5, w + TILE<E>);
        TILE_ADD_PRODUCT(E, 1, 5, 6);
        if (BOTH) {
            TILE_LOAD(7, x + TILE<E>);
            TILE_ADD_PRODUCT(E, 2, 4, 7);
            TILE_ADD_PRODUCT(E, 3, 5, 7);
        }
        next.steps(share);
    }
    TILE_STORE(0, sums);
    TILE_STORE(1, sums + TILE_OF_SUMS);
    TILE_STORE(2, sums + 2 * TILE_OF_SUMS);
    TILE_STORE(3, sums + 3 * TILE_OF_SUMS);
}

// 16 sums of float32 or int32, with the bias if there is one
INLINE void store_sums(vi32 sums, const bfloat16 *bias, bfloat16 *y) { store(y, bias ? (vf32)sums + load(bias) : (vf32)sums); }
INLINE void store_sums(vi32 sums, const bfloat16 *, int32_t *y) { store(y, sums); }

// A tile of sums to 16 columns of up to 16 rows
template <class Y> INLINE void store_tile(const float *sums, const bfloat16 *bias, Y *y, int64_t rows, int64_t columns) {
    vi32 r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = *(const mem_i32 *)(sums + i * 16);
    transpose_words(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
        if (i < rows) store_sums(r[i], bias, y + i * columns);
}

// `rows` rows of x, packed, by rows of w from `begin` to `end`. converted: room for two blocks of w
template <class E, class Y>
static __attribute__((noinline)) void multiply_part(
    const E *packed, const int8_t *w, const bfloat16 *bias, Y *y, int64_t rows, int64_t inner, int64_t columns,
    int64_t begin, int64_t end, E *converted, float *sums
) {
    const int64_t most = inner < DEPTH<E> ? inner : DEPTH<E>, pairs = (rows + 31) / 32;
    conversion<E> next{w + begin * inner, inner, most, converted};
    next.steps(32 * DEPTH<E>);
    for (int64_t n = begin; n < end; n += 32) {
        for (int64_t k = 0; k < inner; k += DEPTH<E>) {
            const int64_t depth = next.depth, left = inner - k - depth, steps = pairs * (depth / WIDTH<E>);
            const E *tiles = next.to;
            E *other = tiles == converted ? converted + 32 * DEPTH<E> : converted;
            if (left > 0) next = {w + n * inner + k + depth, inner, left < most ? left : most, other};
            else if (n + 32 < end) next = {w + (n + 32) * inner, inner, most, other};
            const int64_t share = (32 * next.depth / WIDTH<E> + steps - 1) / steps;
            for (int64_t m = 0; m < rows; m += 32) {
                const E *some = packed + m * inner + k * 32;
                if (rows - m > 16) add_tiles<true>(tiles, some, depth, sums + m * 32, k == 0, next, share);
                else add_tiles<false>(tiles, some, depth, sums + m * 32, k == 0, next, share);
            }
        }
        for (int64_t m = 0; m < rows; m += 16)
            for (int64_t at = n; at < n + 32; at += 16)
                store_tile(sums + m * 32 + (at - n) * 16, bias ? bias + at : bias, y + m * columns + at, rows - m, columns);
    }
}

template <class E, class Y>
static inline void multiply_in_tiles(
    const E *x, const int8_t *w, const bfloat16 *bias, Y *y, int64_t rows, int64_t inner, int64_t columns
) {
    const int64_t parts = rows * inner * sizeof(E) / CACHED_ROWS + 1;
    const int64_t part = ((rows + parts - 1) / parts + 31) / 32 * 32, pairs = (rows + 31) / 32, blocks = columns / 32;
    scratch<E> packed(pairs * 32 * inner);
    in_parallel(threads_for(rows * inner * columns / 64), [=, &packed] {
        scratch<E> converted(2 * 32 * DEPTH<E>);
        scratch<float> sums(part * 32);
        const tile_shapes shapes;
        asm volatile("ldtilecfg %0" : : "m"(shapes));
#pragma omp for schedule(static)
        for (int64_t at = 0; at < pairs * 2; ++at)
            for (int64_t k = 0; k < inner; k += WIDTH<E>) {
                E *to = packed.data + at / 2 * 32 * inner + k * 32 + at % 2 * TILE<E>;
                pack_tile(x + at * 16 * inner + k, inner, rows - at * 16, to);
            }
        const int64_t threads = omp_get_num_threads(), share = (blocks + threads - 1) / threads * 32;
        const int64_t begin = omp_get_thread_num() * share, end = begin + share < columns ? begin + share : columns;
        for (int64_t m = 0; begin < end && m < rows; m += part)
            multiply_part(
                packed.data + m * inner, w, bias, y + m * columns, rows - m < part ? rows - m : part, inner, columns, begin,
                end, converted.data, sums.data
            );
        asm volatile("tilerelease" : :);
    });
}
