/* The products of block_tiles.h by AMX, for many rows: 16 rows by a panel, a block of 32 elements at a time.
 *
 *     x rows [16][32 bytes]  times  lines [8][64] of a block  ->  int32 [16 rows][16 columns], exact
 *
 * Each block's sums go through memory into the chain of float multiply-adds that block_tiles.h defines; sixteen registers hold
 * the chains of a tile for all of k. Instructions on tiles and on vectors are interleaved: a block's sums are added to the chains
 * while the next are stored and those after them multiplied. Two panels are unpacked side by side, so that a tile of rows comes
 * from L2 once for both.
 *
 * Numeric design: the links are those of block_tiles.h, so the bits are. Scales of the K formats multiply the sums as floats,
 * which is as exact as it is in integers: a sum times its scale is below 2^23 (Q5_K: 32 * 31 * 127 * 63), the two of Q6_K together
 * below 2^24 (2 * 16 * 32 * 127 * 128).
 *
 * A panel is unpacked once for all rows of a task: q - center as int8, four elements of each column a line as VNNI has them, and
 * scales as floats. Scales of rows are laid out by blocks, sixteen rows side by side. Sums of Q6_K come by halves of a block,
 * each with a scale of its own: its blocks are unpacked as two, of which the other half is zero.
 */
#ifndef LATTICE_AMX_BLOCKS_H
#define LATTICE_AMX_BLOCKS_H

#include "linear/block_tiles.h"
#include "amx/amx_tiles.h"

#define AMX_BLOCK_PANELS 2 /* side by side */

#if LATTICE_AMX_INT8
#define LINES_BYTES 512         /* of a block, unpacked */
#define STORED_BLOCKS 4         /* whose sums are in memory */
#define PRODUCT_SUMS 256        /* [16][16] */
#define AMX_BLOCK_LEAST_ROWS 9 /* fewer rows are quicker by vectors */

/* Of a block, for each column: d; m, of the K formats -m; s and o, of Q6_K s of the halves. */
typedef struct {
    float scale[16], offset[16], factor[16], other[16];
} block_scales;

/* Of a block, for each of sixteen rows: the scale and the sum of the integers. */
typedef struct {
    float scale[16], sum[16];
} row_scales;

/* What a task lays out in its thread's scratch. */
typedef struct {
    int64_t blocks, rows, row_tiles;
    int8_t *lines;            /* [AMX_BLOCK_PANELS][blocks][8][64], of Q6_K [..][blocks][2][8][64] */
    block_scales *of_columns; /* [AMX_BLOCK_PANELS][blocks] */
    row_scales *of_rows;      /* [row_tiles][blocks] */
    int8_t *rest;             /* [16][k]: the last rows, where they are no whole tile */
} amx_block_operands;

/* Signed by signed, as a panel's elements and a row's are. */
#if defined(LATTICE_EMULATE_AVX512)
static void emulated_signed_dot(int sums, int a, int b)
{
    for (int row = 0; row < emulated_tiles.shapes.rows[sums]; row++)
        for (int column = 0; column < AMX_ROW_BYTES / 4; column++) {
            int32_t sum;
            memcpy(&sum, emulated_tiles.bytes[sums][row] + 4 * column, sizeof sum);
            for (int k = 0; k < emulated_tiles.shapes.row_bytes[a]; k++) {
                const int left = emulated_tiles.bytes[a][row][k], right = emulated_tiles.bytes[b][k / 4][4 * column + k % 4];
                sum += (left < 128 ? left : left - 256) * (right < 128 ? right : right - 256);
            }
            memcpy(emulated_tiles.bytes[sums][row] + 4 * column, &sum, sizeof sum);
        }
}
#define amx_dot_signed(sums, a, b) emulated_signed_dot(sums, a, b)
#else
#define amx_dot_signed(sums, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : :)
#endif

/* Registers: [0] to [3] sums, [4] and [7] rows, [5] and [6] lines. */
LATTICE_INLINE void amx_shape_blocks(void)
{
    amx_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int tile = 0; tile < AMX_REGISTERS; tile++) {
        shapes.rows[tile] = tile == 5 || tile == 6 ? LATTICE_BLOCK / 4 : AMX_ROWS;
        shapes.row_bytes[tile] = tile == 4 || tile == 7 ? LATTICE_BLOCK : AMX_ROW_BYTES;
    }
    amx_shape(&shapes);
}

/* A block's elements less the center as eight lines. */
#define UNPACK_CENTERED(J)                                                                                             \
    do {                                                                                                               \
        bytes64 low, high;                                                                                             \
        UNPACK_LINE(format, lines, J, low, high, 0);                                                                   \
        line_store(target + 64 * J, _mm512_sub_epi8(low, center));                                                     \
        line_store(target + (format == LATTICE_Q6_K ? LINES_BYTES : 0) + 256 + 64 * J, _mm512_sub_epi8(high, center)); \
    } while (0)

/* Bytes of the lines of a panel. */
LATTICE_INLINE int64_t panel_lines(int format, const amx_block_operands *operands)
{
    return operands->blocks * (format == LATTICE_Q6_K ? 2 * LINES_BYTES : LINES_BYTES);
}

/* `which` of AMX_BLOCK_PANELS it is. */
LATTICE_INLINE void amx_unpack_panel_of(int format, const uint8_t *panel, int64_t which, const amx_block_operands *operands)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    const bytes64 center = _mm512_set1_epi8((char)layout.center);
    const int64_t step = format == LATTICE_Q6_K ? 2 * LINES_BYTES : LINES_BYTES;
    const uint8_t *record = panel;
    for (int64_t b = 0; b < operands->blocks; record += layout.header_bytes + layout.blocks * layout.block_bytes) {
        const f32x16 d = load_scales(record), m = layout.header_bytes == 64 ? load_scales(record + 32) : f32x16_zero();
        const uint8_t *block = record + layout.header_bytes;
        for (int inside = 0; inside < layout.blocks; inside++, b++, block += layout.block_bytes) {
            const uint8_t *lines = block + layout.scale_bytes;
            uint8_t *target = (uint8_t *)operands->lines + which * panel_lines(format, operands) + b * step;
            block_scales *scales = &operands->of_columns[which * operands->blocks + b];
            UNPACK_CENTERED(0);
            UNPACK_CENTERED(1);
            UNPACK_CENTERED(2);
            UNPACK_CENTERED(3);
            f32x16_store(scales->scale, d);
            if (layout.header_bytes == 64)
                f32x16_store(scales->offset, layout.scale_bytes > 0 ? f32x16_neg(m) : m);
            if (layout.scale_bytes > 0) {
                const int halves = format == LATTICE_Q6_K;
                const i32x16 factor = halves ? i32x16_load_int8((const int8_t *)block) : i32x16_load_uint8(block);
                const i32x16 other = halves ? i32x16_load_int8((const int8_t *)block + 16) : i32x16_load_uint8(block + 16);
                f32x16_store(scales->factor, f32x16_from_i32x16(factor));
                f32x16_store(scales->other, f32x16_from_i32x16(other));
            }
        }
    }
}

static void amx_unpack_panel(int format, const uint8_t *panel, int64_t which, const amx_block_operands *operands)
{
    switch (format) {
#define ONE_FORMAT(FORMAT, ...)                                                                                        \
    case LATTICE_##FORMAT:                                                                                             \
        amx_unpack_panel_of(LATTICE_##FORMAT, panel, which, operands);                                                       \
        return;
        LATTICE_BLOCK_FORMATS(ONE_FORMAT)
#undef ONE_FORMAT
    }
}

/* Lays out what rows x of a task need; lines of Q6_K keep the zeros of their other halves for all panels. */
static void amx_lay_out_rows(amx_block_operands *operands, int format, const float *x, int64_t x_stride, int64_t k)
{
    for (int64_t tile = 0; tile < operands->row_tiles; tile++)
        for (int64_t r = 0; r < AMX_ROWS; r++) {
            const int64_t at = tile * AMX_ROWS + r;
            row_scales *target = operands->of_rows + tile * operands->blocks;
            if (at >= operands->rows) {
                for (int64_t b = 0; b < operands->blocks; b++)
                    target[b].scale[r] = target[b].sum[r] = 0.0f;
                continue;
            }
            const block_row row = block_row_at(x + at * x_stride, k);
            for (int64_t b = 0; b < operands->blocks; b++) {
                target[b].scale[r] = row.scales[b];
                target[b].sum[r] = (float)(row.sums[2 * b] + row.sums[2 * b + 1]);
            }
        }
    const int64_t whole = operands->rows / AMX_ROWS * AMX_ROWS;
    for (int64_t at = whole; at < operands->rows; at++)
        memcpy(operands->rest + (at - whole) * k, block_row_at(x + at * x_stride, k).q, (size_t)k);
    if (whole < operands->rows)
        memset(operands->rest + (operands->rows - whole) * k, 0, (size_t)((whole + AMX_ROWS - operands->rows) * k));
    if (format == LATTICE_Q6_K)
        for (int64_t b = 0; b < AMX_BLOCK_PANELS * operands->blocks; b++)
            memset(operands->lines + b * 2 * LINES_BYTES + 256, 0, LINES_BYTES);
}

LATTICE_INLINE f32x16 float_of_sums(const int32_t *sums, f32x16 shift)
{
    const __m512i shifted = _mm512_add_epi32(_mm512_load_si512(sums), _mm512_castps_si512(shift));
    return f32x16_sub(_mm512_castsi512_ps(shifted), shift);
}

/* Rows [first, end) of a link of the chains: block_tiles.h. `second` are the sums of Q6_K's other halves.
 *
 * While a tile instruction is under way, and some hundred cycles longer, the CPU has one of its two units for multiplying and
 * converting vectors of 64 bytes switched off, but adds on both. So integers become floats by additions, exactly:
 * 1.5 * 2^23 as an integer plus the sum is 1.5 * 2^23 plus the sum as a float, for sums below 2^22 (32 * 128 * 127). */
LATTICE_INLINE void add_block(int format, const int32_t *sums, const int32_t *second, const block_scales *columns,
                              const row_scales *rows, int first, int end, f32x16 *c)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    const f32x16 d = f32x16_load(columns->scale), shift = f32x16_set1(0x1.8p23f);
    LATTICE_UNROLL for (int r = first; r < end; r++)
    {
        f32x16 value = float_of_sums(sums + r * 16, shift);
        if (layout.scale_bytes > 0)
            value = f32x16_mul(value, f32x16_load(columns->factor));
        if (format == LATTICE_Q6_K)
            value = f32x16_fma(float_of_sums(second + r * 16, shift), f32x16_load(columns->other), value);
        const f32x16 scale = f32x16_set1(rows->scale[r]);
        c[r] = f32x16_fma(value, f32x16_mul(d, scale), c[r]);
        if (layout.header_bytes == 64) {
            f32x16 sum = f32x16_set1(rows->sum[r]);
            if (layout.scale_bytes > 0)
                sum = f32x16_mul(sum, f32x16_load(columns->other));
            c[r] = f32x16_fma(sum, f32x16_mul(f32x16_load(columns->offset), scale), c[r]);
        }
    }
}

/* One block: its rows are added to the chains while the tiles of the next but one are loaded and multiplied, and those of the
 * next are stored. FIRST and SECOND are registers of this block's sums and of the next but one's, the latter for Q6_K only. */
#define ADD_BLOCK_TURN(FIRST, SECOND, ROWS, LINES, NEXT_FIRST, NEXT_SECOND, b)                                         \
    do {                                                                                                               \
        const int32_t *here_ = sums_of[(b) % STORED_BLOCKS][0], *second_ = sums_of[(b) % STORED_BLOCKS][parts - 1];    \
        if ((b) + 2 < blocks) {                                                                                        \
            amx_load(ROWS, q + ((b) + 2) * LATTICE_BLOCK, q_stride);                                                \
            amx_zero(FIRST);                                                                                        \
        }                                                                                                              \
        add_block(format, here_, second_, columns + (b), rows + (b), 0, 4, c);                                         \
        if ((b) + 2 < blocks) {                                                                                        \
            amx_load(LINES, lines + ((b) + 2) * parts * LINES_BYTES, 64);                                           \
            amx_dot_signed(FIRST, ROWS, LINES);                                                                     \
            if (format == LATTICE_Q6_K)                                                                                \
                MULTIPLY_HALF(SECOND, ROWS, LINES, (b) + 2);                                                           \
        }                                                                                                              \
        add_block(format, here_, second_, columns + (b), rows + (b), 4, 8, c);                                         \
        if ((b) + 1 < blocks)                                                                                          \
            STORE_BLOCK(NEXT_FIRST, NEXT_SECOND, (b) + 1);                                                             \
        add_block(format, here_, second_, columns + (b), rows + (b), 8, 16, c);                                        \
    } while (0)

#define MULTIPLY_HALF(SECOND, ROWS, LINES, b)                                                                          \
    do {                                                                                                               \
        amx_zero(SECOND);                                                                                           \
        amx_load(LINES, lines + ((b) * 2 + 1) * LINES_BYTES, 64);                                                   \
        amx_dot_signed(SECOND, ROWS, LINES);                                                                        \
    } while (0)

#define MULTIPLY_BLOCK(FIRST, SECOND, ROWS, LINES, b)                                                                  \
    do {                                                                                                               \
        amx_load(ROWS, q + (b) * LATTICE_BLOCK, q_stride);                                                          \
        amx_zero(FIRST);                                                                                            \
        amx_load(LINES, lines + (b) * parts * LINES_BYTES, 64);                                                     \
        amx_dot_signed(FIRST, ROWS, LINES);                                                                         \
        if (format == LATTICE_Q6_K)                                                                                    \
            MULTIPLY_HALF(SECOND, ROWS, LINES, b);                                                                     \
    } while (0)

#define STORE_BLOCK(FIRST, SECOND, b)                                                                                  \
    do {                                                                                                               \
        amx_store(FIRST, sums_of[(b) % STORED_BLOCKS][0], 64);                                                      \
        if (format == LATTICE_Q6_K)                                                                                    \
            amx_store(SECOND, sums_of[(b) % STORED_BLOCKS][1], 64);                                                 \
    } while (0)

/* sums [16][16] = a tile of rows by panel `which` of those that are unpacked. */
LATTICE_INLINE void amx_multiply_row_tile_of(int format, int64_t which, const amx_block_operands *operands, const int8_t *q,
                                         int64_t q_stride, const row_scales *rows, float *sums)
{
    int32_t sums_of[STORED_BLOCKS][2][PRODUCT_SUMS] __attribute__((aligned(64)));
    const int64_t parts = format == LATTICE_Q6_K ? 2 : 1, blocks = operands->blocks;
    const int8_t *lines = operands->lines + which * panel_lines(format, operands);
    const block_scales *columns = operands->of_columns + which * blocks;
    f32x16 c[AMX_ROWS];
    LATTICE_UNROLL for (int r = 0; r < AMX_ROWS; r++)
        c[r] = f32x16_zero();
    MULTIPLY_BLOCK(0, 2, 4, 5, 0);
    if (blocks > 1)
        MULTIPLY_BLOCK(1, 3, 7, 6, 1);
    STORE_BLOCK(0, 2, 0);
    for (int64_t b = 0; b < blocks; b += 2) {
        ADD_BLOCK_TURN(0, 2, 4, 5, 1, 3, b);
        if (b + 1 < blocks)
            ADD_BLOCK_TURN(1, 3, 7, 6, 0, 2, b + 1);
    }
    LATTICE_UNROLL for (int r = 0; r < AMX_ROWS; r++)
        f32x16_store(sums + r * LATTICE_PANEL, c[r]);
}

static void amx_multiply_row_tile(int format, int64_t which, const amx_block_operands *operands, const int8_t *q, int64_t q_stride,
                              const row_scales *rows, float *sums)
{
    switch (format) {
#define ONE_FORMAT(FORMAT)                                                                                             \
    case LATTICE_##FORMAT:                                                                                             \
        amx_multiply_row_tile_of(LATTICE_##FORMAT, which, operands, q, q_stride, rows, sums);                                \
        return
    case LATTICE_Q4_0: /* unpacked, these are alike */
    case LATTICE_Q5_0:
        ONE_FORMAT(Q8_0);
    case LATTICE_Q5_1:
        ONE_FORMAT(Q4_1);
    case LATTICE_Q5_K:
        ONE_FORMAT(Q4_K);
        ONE_FORMAT(Q6_K);
#undef ONE_FORMAT
    }
}
#endif

#endif
