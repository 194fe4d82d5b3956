/* sums[r][c] = the product of R rows of block_rows.h with a panel of block_format.h.
 *
 * For each block b of 32 elements, in ascending order, with integers that are exact in int32:
 *
 *     I = sum over the block of (q_w - center) * q_x         of Q6_K: s0 * I0 + s1 * I1, its halves; of Q4_K, Q5_K: s * I
 *     c = fma(I, d * scale_x, c)
 *     c = fma(S, m * scale_x, c)          S = sum of q_x; of Q4_K and Q5_K: o * S and -(m * scale_x); not of the others
 *
 * so c is one chain whose links do not depend on tile, thread or instructions: levels with FMA agree bit for bit.
 *
 *     record   | d m | block 0: s o, lines, high bits | block 1 ...      one after the other for all of k
 *     row      four elements at a time, repeated over the sixteen columns
 *
 * With one row memory is the bound: every line is asked for well before its use. With more, a line is unpacked once for all
 * rows of the tile.
 */
#ifndef LATTICE_BLOCK_TILES_H
#define LATTICE_BLOCK_TILES_H

#include "block_rows.h"
#include "bytes64.h"
#include "lattice/half.h"
#include "linear_output.h"

#if defined(LATTICE_ISA_BASELINE)
#define BLOCK_TILE_ROWS 1
#else
#define BLOCK_TILE_ROWS 4
#endif
#define BLOCK_AHEAD_BYTES 3072 /* how far before its use a line is asked for */

/* Rows in a tile are 1, 2 or BLOCK_TILE_ROWS: three of them take a tile of two and one of one. */
typedef void (*block_tile)(const uint8_t *panel, int64_t k, const float *x, int64_t x_stride, float *sums);

LATTICE_INLINE int has_fifth_bits(int format)
{
    return format == LATTICE_Q5_0 || format == LATTICE_Q5_1 || format == LATTICE_Q5_K;
}

/* Sixteen float16. */
LATTICE_INLINE f32x16 load_scales(const uint8_t *p)
{
#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512)
    return vf_load_float16((const uint16_t *)p);
#elif defined(LATTICE_ISA_AVX2)
    return (f32x16){vf_load_float16((const uint16_t *)p), vf_load_float16((const uint16_t *)p + 8)};
#else
    return f32x16_load_float16((const uint16_t *)p);
#endif
}

/* The elements of line J (0 to 3, a literal) of a block, as bytes: `low` 4J to 4J + 3, `high` 16 + 4J to 16 + 4J + 3. */
#define UNPACK_LINE(format, lines, J, low, high)                                                                       \
    do {                                                                                                               \
        if (format == LATTICE_Q8_0) {                                                                                  \
            low = line_load(lines + 64 * J);                                                                           \
            high = line_load(lines + 256 + 64 * J);                                                                    \
            break;                                                                                                     \
        }                                                                                                              \
        const bytes64 packed_ = line_load(lines + 64 * J);                                                             \
        low = line_mask(packed_, 15);                                                                                  \
        high = line_mask(line_right(packed_, 4), 15);                                                                  \
        if (has_fifth_bits(format)) {                                                                                  \
            const bytes64 bits_ = line_load(lines + 256);                                                              \
            low = line_or(low, line_mask(line_left(bits_, 4 - J), 16));                                                \
            high = line_or(high, line_mask(line_right(bits_, J), 16));                                                 \
        } else if (format == LATTICE_Q6_K) {                                                                           \
            const bytes64 first_ = line_load(lines + 256), second_ = line_load(lines + 320);                           \
            low = line_or(low, line_mask(J < 3 ? line_left(first_, (4 - 2 * J) & 7) : line_right(first_, 2), 48));     \
            high = line_or(high, line_mask(J < 3 ? line_left(second_, (4 - 2 * J) & 7) : line_right(second_, 2), 48)); \
        }                                                                                                              \
    } while (0)

LATTICE_INLINE bytes64 four_elements(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return line_repeat(four);
}

/* Line J of a block times the elements of every row. */
#define MULTIPLY_LINE(J)                                                                                               \
    do {                                                                                                               \
        bytes64 low, high;                                                                                             \
        __builtin_prefetch(lines + 64 * J + BLOCK_AHEAD_BYTES, 0, 3);                                                  \
        if (format == LATTICE_Q8_0)                                                                                    \
            __builtin_prefetch(lines + 256 + 64 * J + BLOCK_AHEAD_BYTES, 0, 3);                                        \
        UNPACK_LINE(format, lines, J, low, high);                                                                      \
        LATTICE_UNROLL for (int r = 0; r < rows; r++)                                                                  \
        {                                                                                                              \
            const bytes64 x_low = four_elements(q[r] + 4 * J), x_high = four_elements(q[r] + 16 + 4 * J);              \
            if (format == LATTICE_Q8_0) {                                                                              \
                add_signed_line(&first[r], low, x_low, dot);                                                           \
                add_signed_line(&first[r], high, x_high, dot);                                                         \
            } else {                                                                                                   \
                add_line(&first[r], low, x_low, dot);                                                                  \
                add_line(format == LATTICE_Q6_K ? &second[r] : &first[r], high, x_high, dot);                          \
                if (J == 3 || (J == 1 && (has_fifth_bits(format) || format == LATTICE_Q6_K))) {                        \
                    widen(&first[r], dot);                                                                             \
                    if (format == LATTICE_Q6_K)                                                                        \
                        widen(&second[r], dot);                                                                        \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* sums [rows][16]. `format`, `rows` and `dot` are literals of the functions made of this. */
LATTICE_INLINE void multiply_blocks(int format, int rows, int dot, const uint8_t *panel, int64_t k, const float *x,
                                    int64_t x_stride, float *sums)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    f32x16 c[BLOCK_TILE_ROWS];
    block_row row[BLOCK_TILE_ROWS];
    LATTICE_UNROLL for (int r = 0; r < rows; r++)
    {
        c[r] = f32x16_zero();
        row[r] = block_row_at(x + r * x_stride, k);
    }
    const uint8_t *record = panel;
    for (int64_t b = 0; b < k / LATTICE_BLOCK; record += layout.header_bytes + layout.blocks * layout.block_bytes) {
        const f32x16 d = load_scales(record), m = layout.header_bytes == 64 ? load_scales(record + 32) : f32x16_zero();
        const uint8_t *block = record + layout.header_bytes;
        for (int inside = 0; inside < layout.blocks; inside++, b++, block += layout.block_bytes) {
            const uint8_t *lines = block + layout.scale_bytes;
            line_sum first[BLOCK_TILE_ROWS], second[BLOCK_TILE_ROWS];
            const int8_t *q[BLOCK_TILE_ROWS];
            LATTICE_UNROLL for (int r = 0; r < rows; r++)
            {
                first[r] = second[r] = sum_zero();
                q[r] = row[r].q + b * LATTICE_BLOCK;
            }
            MULTIPLY_LINE(0);
            MULTIPLY_LINE(1);
            MULTIPLY_LINE(2);
            MULTIPLY_LINE(3);
            LATTICE_UNROLL for (int r = 0; r < rows; r++)
            {
                const int32_t half = row[r].sums[2 * b], other = row[r].sums[2 * b + 1], whole = half + other;
                const f32x16 scale = f32x16_set1(row[r].scales[b]);
                i32x16 value = sum_value(&first[r], dot);
                if (format == LATTICE_Q8_0) {
                    if (SIGNED_LINE_EXCESS(dot) != 0)
                        value = i32x16_sub(value, i32x16_set1(SIGNED_LINE_EXCESS(dot) * whole));
                } else if (format == LATTICE_Q6_K) {
                    const i32x16 next = i32x16_sub(sum_value(&second[r], dot), i32x16_set1(layout.center * other));
                    value = i32x16_sub(value, i32x16_set1(layout.center * half));
                    value = i32x16_add(i32x16_mul(value, i32x16_load_int8((const int8_t *)block)),
                                       i32x16_mul(next, i32x16_load_int8((const int8_t *)block + 16)));
                } else if (layout.center != 0) {
                    value = i32x16_sub(value, i32x16_set1(layout.center * whole));
                } else if (layout.scale_bytes > 0) {
                    value = i32x16_mul(value, i32x16_load_uint8(block));
                }
                c[r] = f32x16_fma(f32x16_from_i32x16(value), f32x16_mul(d, scale), c[r]);
                if (layout.header_bytes == 64) {
                    const f32x16 offset = f32x16_mul(m, scale);
                    if (layout.scale_bytes == 0) {
                        c[r] = f32x16_fma(f32x16_set1((float)whole), offset, c[r]);
                    } else {
                        const i32x16 sum = i32x16_mul(i32x16_load_uint8(block + 16), i32x16_set1(whole));
                        c[r] = f32x16_fma(f32x16_from_i32x16(sum), f32x16_neg(offset), c[r]);
                    }
                }
            }
        }
    }
    LATTICE_UNROLL for (int r = 0; r < rows; r++)
        f32x16_store(sums + r * LATTICE_PANEL, c[r]);
}

#if defined(LATTICE_ISA_BASELINE)
/* One function for all formats: eight of them would take minutes to compile, and the baseline is there to run, not to be fast. */
#if defined(__clang__)
__attribute__((noinline))
#else
__attribute__((noinline, noclone))
#endif
static void multiply_formatted(int format, const uint8_t *panel, int64_t k, const float *x, float *sums)
{
    multiply_blocks(format, 1, 0, panel, k, x, 0, sums);
}
#define MULTIPLY_BLOCKS(FORMAT, ROWS, DOT) ((void)x_stride, multiply_formatted(FORMAT, panel, k, x, sums))
#else
#define MULTIPLY_BLOCKS(FORMAT, ROWS, DOT) multiply_blocks(FORMAT, ROWS, DOT, panel, k, x, x_stride, sums)
#endif

#define BLOCK_TILE(FORMAT, ROWS, DOT)                                                                                  \
    static void tile_##FORMAT##_##ROWS##_##DOT(const uint8_t *panel, int64_t k, const float *x, int64_t x_stride,      \
                                               float *sums)                                                            \
    {                                                                                                                  \
        MULTIPLY_BLOCKS(LATTICE_##FORMAT, ROWS, DOT);                                                                  \
    }
#if BLOCK_TILE_ROWS == 1
#define BLOCK_TILES(FORMAT, DOT) BLOCK_TILE(FORMAT, 1, DOT)
#define TILE_ROW(FORMAT, DOT) [LATTICE_##FORMAT] = {tile_##FORMAT##_1_##DOT}
#else
#define BLOCK_TILES(FORMAT, DOT) BLOCK_TILE(FORMAT, 1, DOT) BLOCK_TILE(FORMAT, 2, DOT) BLOCK_TILE(FORMAT, 4, DOT)
#define TILE_ROW(FORMAT, DOT)                                                                                          \
    [LATTICE_##FORMAT] = {tile_##FORMAT##_1_##DOT, tile_##FORMAT##_2_##DOT, NULL, tile_##FORMAT##_4_##DOT}
#endif
#define ALL_BLOCK_TILES(DOT)                                                                                           \
    BLOCK_TILES(Q8_0, DOT) BLOCK_TILES(Q4_0, DOT) BLOCK_TILES(Q4_1, DOT) BLOCK_TILES(Q5_0, DOT)                        \
    BLOCK_TILES(Q5_1, DOT) BLOCK_TILES(Q4_K, DOT) BLOCK_TILES(Q5_K, DOT) BLOCK_TILES(Q6_K, DOT)
#define TILE_TABLE(DOT)                                                                                                \
    {                                                                                                                  \
        TILE_ROW(Q8_0, DOT), TILE_ROW(Q4_0, DOT), TILE_ROW(Q4_1, DOT), TILE_ROW(Q5_0, DOT), TILE_ROW(Q5_1, DOT),       \
            TILE_ROW(Q4_K, DOT), TILE_ROW(Q5_K, DOT), TILE_ROW(Q6_K, DOT)                                              \
    }

ALL_BLOCK_TILES(0)
static const block_tile plain_block_tiles[LATTICE_BLOCK_FORMATS][BLOCK_TILE_ROWS] = TILE_TABLE(0);
#if !defined(LATTICE_ISA_BASELINE)
ALL_BLOCK_TILES(1)
static const block_tile dot_block_tiles[LATTICE_BLOCK_FORMATS][BLOCK_TILE_ROWS] = TILE_TABLE(1);
#endif

#endif
