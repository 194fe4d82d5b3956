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
 * With one row memory is the bound: every line is asked for well before its use, and where there are registers for it several
 * panels are gone through side by side, because one stream of reads does not keep memory busy. With more rows a line is
 * unpacked once for all rows of the tile; where memory is still the bound, four panels are gone through side by side.
 */
#ifndef LATTICE_BLOCK_TILES_H
#define LATTICE_BLOCK_TILES_H

#include "rows/block_rows.h"
#include "linear/bytes64.h"
#include "lattice/half.h"
#include "linear/linear_output.h"

#if defined(LATTICE_ISA_BASELINE)
#define BLOCK_TILE_ROWS 1
#else
#define BLOCK_TILE_ROWS 4
#endif
#if defined(LATTICE_ISA_AVX512)
#define BLOCK_STRIP_PANELS 8
#define BLOCK_WIDE_PANELS 4
#else
#define BLOCK_STRIP_PANELS 1
#define BLOCK_WIDE_PANELS 1
#endif

#define BLOCK_STRIP_ROWS (BLOCK_TILE_ROWS > 1 ? 2 : 1)

/* Rows in a tile are 1, 2 or BLOCK_TILE_ROWS: three of them take a tile of two and one of one. A strip is a row, or the two that
 * block_pairs.h makes of one, by BLOCK_STRIP_PANELS panels, sums [panel][row][16]; `wide` is BLOCK_TILE_ROWS rows by
 * BLOCK_WIDE_PANELS. */
typedef void (*block_tile)(const uint8_t *panel, int64_t k, const float *x, int64_t x_stride, float *sums);
typedef struct {
    block_tile tiles[BLOCK_TILE_ROWS], strips[BLOCK_STRIP_ROWS], wide;
} block_tile_set;

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

/* Whether high nibbles stay where they lie, sixteen times what they are. */
#define HIGH_NIBBLES_LIE(format, dot)                                                                                  \
    (WHOLE_LINE_BYTES(dot) && (format == LATTICE_Q4_0 || format == LATTICE_Q4_1 || format == LATTICE_Q4_K))

/* The elements of line J (0 to 3, a literal) of a block, as bytes: `low` 4J to 4J + 3, `high` 16 + 4J to 16 + 4J + 3. */
#define UNPACK_LINE(format, lines, J, low, high, shifted)                                                                       \
    do {                                                                                                               \
        if (format == LATTICE_Q8_0) {                                                                                  \
            low = line_load(lines + 64 * J);                                                                           \
            high = line_load(lines + 256 + 64 * J);                                                                    \
            break;                                                                                                     \
        }                                                                                                              \
        const bytes64 packed_ = line_load(lines + 64 * J);                                                             \
        low = line_mask(packed_, 15);                                                                                  \
        high = shifted ? line_mask(packed_, 0xf0) : line_mask(line_right(packed_, 4), 15);                             \
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
        __builtin_prefetch(lines + 64 * J + ahead, 0, 3);                                                              \
        if (format == LATTICE_Q8_0)                                                                                    \
            __builtin_prefetch(lines + 256 + 64 * J + ahead, 0, 3);                                                    \
        UNPACK_LINE(format, lines, J, low, high, HIGH_NIBBLES_LIE(format, dot));                                       \
        LATTICE_UNROLL for (int r = 0; r < rows; r++)                                                                  \
        {                                                                                                              \
            const bytes64 x_low = four_elements(q[r] + 4 * J), x_high = four_elements(q[r] + 16 + 4 * J);              \
            if (format == LATTICE_Q8_0) {                                                                              \
                add_signed_line(&first[r], low, x_low, dot);                                                           \
                add_signed_line(&first[r], high, x_high, dot);                                                         \
            } else {                                                                                                   \
                add_line(&first[r], low, x_low, dot);                                                                  \
                add_line(apart ? &second[r] : &first[r], high, x_high, dot);                                           \
                if (J == 3 || (J == 1 && (has_fifth_bits(format) || format == LATTICE_Q6_K))) {                        \
                    widen(&first[r], dot);                                                                             \
                    if (format == LATTICE_Q6_K)                                                                        \
                        widen(&second[r], dot);                                                                        \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* sums [panels][rows][16]. `format`, `rows`, `panels` and `dot` are literals of the functions made of this. */
LATTICE_INLINE void multiply_blocks(int format, int rows, int panels, int dot, const uint8_t *panel, int64_t k,
                                    const float *x, int64_t x_stride, float *sums)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    const int64_t panel_bytes = lattice_block_panel_bytes(format, k);
    const int64_t record_bytes = layout.header_bytes + layout.blocks * layout.block_bytes;
    const int apart = format == LATTICE_Q6_K || HIGH_NIBBLES_LIE(format, dot); /* the two halves of a block */
    f32x16 c[BLOCK_STRIP_PANELS][BLOCK_TILE_ROWS];
    block_row row[BLOCK_TILE_ROWS];
    LATTICE_UNROLL for (int r = 0; r < rows; r++)
    {
        LATTICE_UNROLL for (int p = 0; p < panels; p++)
            c[p][r] = f32x16_zero();
        row[r] = block_row_at(x + r * x_stride, k);
    }
    int64_t place = 0; /* of a record in its panel */
    for (int64_t b = 0; b < k / LATTICE_BLOCK; place += record_bytes)
        for (int inside = 0; inside < layout.blocks; inside++, b++) {
            /* towards its end a strip asks for the next one */
            const int64_t ahead =
                panels == 1 ? 3072 : place + 768 < panel_bytes ? 768 : 768 + (panels - 1) * panel_bytes;
            int32_t half[BLOCK_TILE_ROWS], other[BLOCK_TILE_ROWS];
            const int8_t *q[BLOCK_TILE_ROWS];
            LATTICE_UNROLL for (int r = 0; r < rows; r++)
            {
                half[r] = row[r].sums[2 * b];
                other[r] = row[r].sums[2 * b + 1];
                q[r] = row[r].q + b * LATTICE_BLOCK;
            }
            LATTICE_UNROLL for (int p = 0; p < panels; p++)
            {
                const uint8_t *record = panel + p * panel_bytes + place;
                const f32x16 d = load_scales(record);
                const f32x16 m = layout.header_bytes == 64 ? load_scales(record + 32) : f32x16_zero();
                const uint8_t *block = record + layout.header_bytes + inside * layout.block_bytes;
                const uint8_t *lines = block + layout.scale_bytes;
                const int32_t excess = format == LATTICE_Q8_0 ? SIGNED_LINE_EXCESS(dot) : layout.center;
                line_sum first[BLOCK_TILE_ROWS], second[BLOCK_TILE_ROWS];
                LATTICE_UNROLL for (int r = 0; r < rows; r++)
                {
                    first[r] = sum_from(-excess * (format == LATTICE_Q6_K ? half[r] : half[r] + other[r]), dot);
                    second[r] = sum_from(format == LATTICE_Q6_K ? -excess * other[r] : 0, dot);
                }
                MULTIPLY_LINE(0);
                MULTIPLY_LINE(1);
                MULTIPLY_LINE(2);
                MULTIPLY_LINE(3);
                LATTICE_UNROLL for (int r = 0; r < rows; r++)
                {
                    const int32_t whole = half[r] + other[r];
                    const f32x16 scale = f32x16_set1(row[r].scales[b]);
                    i32x16 value = sum_value(&first[r], dot);
                    if (format == LATTICE_Q6_K)
                        value = i32x16_add(i32x16_mul(value, i32x16_load_int8((const int8_t *)block)),
                                           i32x16_mul(sum_value(&second[r], dot), i32x16_load_int8((const int8_t *)block + 16)));
                    else if (apart)
                        value = i32x16_add(value, i32x16_shift_right(sum_value(&second[r], dot), 4));
                    if (layout.scale_bytes > 0 && format != LATTICE_Q6_K)
                        value = i32x16_mul(value, i32x16_load_uint8(block));
                    c[p][r] = f32x16_fma(f32x16_from_i32x16(value), f32x16_mul(d, scale), c[p][r]);
                    if (layout.header_bytes == 64) {
                        const f32x16 offset = f32x16_mul(m, scale);
                        if (layout.scale_bytes == 0) {
                            c[p][r] = f32x16_fma(f32x16_set1((float)whole), offset, c[p][r]);
                        } else {
                            const i32x16 sum = i32x16_mul(i32x16_load_uint8(block + 16), i32x16_set1(whole));
                            c[p][r] = f32x16_fma(f32x16_from_i32x16(sum), f32x16_neg(offset), c[p][r]);
                        }
                    }
                }
            }
        }
    LATTICE_UNROLL for (int p = 0; p < panels; p++)
        LATTICE_UNROLL for (int r = 0; r < rows; r++)
            f32x16_store(sums + (p * rows + r) * LATTICE_PANEL, c[p][r]);
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
    multiply_blocks(format, 1, 1, 0, panel, k, x, 0, sums);
}
#define MULTIPLY_BLOCKS(FORMAT, ROWS, PANELS, DOT) ((void)x_stride, multiply_formatted(FORMAT, panel, k, x, sums))
#else
#define MULTIPLY_BLOCKS(FORMAT, ROWS, PANELS, DOT) multiply_blocks(FORMAT, ROWS, PANELS, DOT, panel, k, x, x_stride, sums)
#endif

#define BLOCK_TILE(FORMAT, ROWS, PANELS, DOT)                                                                          \
    static void tile_##FORMAT##_##ROWS##x##PANELS##_##DOT(const uint8_t *panel, int64_t k, const float *x,             \
                                                          int64_t x_stride, float *sums)                               \
    {                                                                                                                  \
        MULTIPLY_BLOCKS(LATTICE_##FORMAT, ROWS, PANELS, DOT);                                                          \
    }
#if BLOCK_TILE_ROWS == 1
#define BLOCK_TILES(FORMAT, DOT) BLOCK_TILE(FORMAT, 1, 1, DOT)
#define TILE_ROW(FORMAT, DOT) [LATTICE_##FORMAT] = {{tile_##FORMAT##_1x1_##DOT}, {tile_##FORMAT##_1x1_##DOT}, tile_##FORMAT##_1x1_##DOT}
#else
#if BLOCK_STRIP_PANELS == 8
#define BLOCK_STRIPS(FORMAT, DOT) BLOCK_TILE(FORMAT, 1, 8, DOT) BLOCK_TILE(FORMAT, 2, 8, DOT) BLOCK_TILE(FORMAT, 4, 4, DOT)
#define STRIPS_OF(FORMAT, DOT) {tile_##FORMAT##_1x8_##DOT, tile_##FORMAT##_2x8_##DOT}
#define WIDE_OF(FORMAT, DOT) tile_##FORMAT##_4x4_##DOT
#else
#define BLOCK_STRIPS(FORMAT, DOT)
#define STRIPS_OF(FORMAT, DOT) {tile_##FORMAT##_1x1_##DOT, tile_##FORMAT##_2x1_##DOT}
#define WIDE_OF(FORMAT, DOT) tile_##FORMAT##_4x1_##DOT
#endif
#define BLOCK_TILES(FORMAT, DOT)                                                                                       \
    BLOCK_TILE(FORMAT, 1, 1, DOT) BLOCK_TILE(FORMAT, 2, 1, DOT) BLOCK_TILE(FORMAT, 4, 1, DOT) BLOCK_STRIPS(FORMAT, DOT)
#define TILE_ROW(FORMAT, DOT)                                                                                          \
    [LATTICE_##FORMAT] = {{tile_##FORMAT##_1x1_##DOT, tile_##FORMAT##_2x1_##DOT, NULL, tile_##FORMAT##_4x1_##DOT},     \
                          STRIPS_OF(FORMAT, DOT), WIDE_OF(FORMAT, DOT)}
#endif
#define PLAIN_TILES(FORMAT, ...) BLOCK_TILES(FORMAT, 0)
#define PLAIN_ROW(FORMAT, ...) TILE_ROW(FORMAT, 0),

LATTICE_BLOCK_FORMATS(PLAIN_TILES)
static const block_tile_set plain_block_tiles[LATTICE_BLOCK_FORMAT_COUNT] = {LATTICE_BLOCK_FORMATS(PLAIN_ROW)};
#if !defined(LATTICE_ISA_BASELINE)
#define DOT_TILES(FORMAT, ...) BLOCK_TILES(FORMAT, 1)
#define DOT_ROW(FORMAT, ...) TILE_ROW(FORMAT, 1),

LATTICE_BLOCK_FORMATS(DOT_TILES)
static const block_tile_set dot_block_tiles[LATTICE_BLOCK_FORMAT_COUNT] = {LATTICE_BLOCK_FORMATS(DOT_ROW)};
#endif

#endif
