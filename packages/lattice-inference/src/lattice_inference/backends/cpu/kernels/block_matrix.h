/* The products of block_tiles.h by matrix tiles (AMX), for many rows: 16 rows by a panel, a block of 32 elements at a time.
 *
 *     x rows [16][32 bytes]  times  lines [8][64] of a block  ->  int32 [16 rows][16 columns], exact
 *
 * Each block's sums go through memory into the chain of float multiply-adds that block_tiles.h defines; sixteen registers hold
 * the chains of a tile. Beside instructions on tiles the CPU runs those on vectors at half their speed, so the two take turns:
 * a few products are stored, then added to the chains. Two panels are multiplied side by side, for which rows are loaded once.
 *
 * Numeric design: the links are those of block_tiles.h, so the bits are. Scales of the K formats multiply the sums as floats,
 * which is as exact as it is in integers: a sum times its scale is below 2^23 (Q5_K: 32 * 31 * 127 * 63), the two of Q6_K together
 * below 2^24 (2 * 16 * 32 * 127 * 128).
 *
 * A panel is unpacked once for all rows of a task: q - center as int8, four elements of each column a line as VNNI has them, and
 * scales as floats. Scales of rows are laid out by blocks, sixteen rows side by side. Sums of Q6_K come by halves of a block,
 * each with a scale of its own: its blocks are unpacked as two, of which the other half is zero.
 */
#ifndef LATTICE_BLOCK_MATRIX_H
#define LATTICE_BLOCK_MATRIX_H

#include "block_tiles.h"
#include "matrix_tiles.h"

#define MATRIX_PANELS 2 /* side by side */

#if MATRIX_TILES
#define LINES_BYTES 512         /* of a block, unpacked */
#define PRODUCTS_AT_ONCE 4      /* of each panel: their sums in memory */
#define PRODUCT_SUMS 256        /* [16][16] */
#define BLOCK_MATRIX_LEAST_ROWS 8 /* fewer rows are quicker by vectors */

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
    int8_t *lines;            /* [MATRIX_PANELS][blocks][8][64], of Q6_K [..][blocks][2][8][64] */
    block_scales *of_columns; /* [MATRIX_PANELS][blocks] */
    row_scales *of_rows;      /* [row_tiles][blocks] */
    int8_t *rest;             /* [16][k]: the last rows, where they are no whole tile */
} block_matrix;

/* Signed by signed, as a panel's elements and a row's are. */
#if defined(LATTICE_EMULATE_AVX512)
static void emulated_signed_dot(int sums, int a, int b)
{
    for (int row = 0; row < emulated_tiles.shapes.rows[sums]; row++)
        for (int column = 0; column < MATRIX_ROW_BYTES / 4; column++) {
            int32_t sum;
            memcpy(&sum, emulated_tiles.bytes[sums][row] + 4 * column, sizeof sum);
            for (int k = 0; k < emulated_tiles.shapes.row_bytes[a]; k++) {
                const int left = emulated_tiles.bytes[a][row][k], right = emulated_tiles.bytes[b][k / 4][4 * column + k % 4];
                sum += (left < 128 ? left : left - 256) * (right < 128 ? right : right - 256);
            }
            memcpy(emulated_tiles.bytes[sums][row] + 4 * column, &sum, sizeof sum);
        }
}
#define matrix_signed_dot(sums, a, b) emulated_signed_dot(sums, a, b)
#else
#define matrix_signed_dot(sums, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : :)
#endif

/* Registers: [0] to [3] sums, [4] rows, [5] and [6] lines of the two panels. */
LATTICE_INLINE void shape_for_blocks(void)
{
    matrix_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int tile = 0; tile < MATRIX_REGISTERS; tile++) {
        shapes.rows[tile] = tile > 4 ? LATTICE_BLOCK / 4 : MATRIX_ROWS;
        shapes.row_bytes[tile] = tile == 4 ? LATTICE_BLOCK : MATRIX_ROW_BYTES;
    }
    matrix_shape(&shapes);
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
LATTICE_INLINE int64_t panel_lines(int format, const block_matrix *matrix)
{
    return matrix->blocks * (format == LATTICE_Q6_K ? 2 * LINES_BYTES : LINES_BYTES);
}

/* `which` of MATRIX_PANELS it is. */
LATTICE_INLINE void unpack_panel_of(int format, const uint8_t *panel, int64_t which, const block_matrix *matrix)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    const bytes64 center = _mm512_set1_epi8((char)layout.center);
    const int64_t step = format == LATTICE_Q6_K ? 2 * LINES_BYTES : LINES_BYTES;
    const uint8_t *record = panel;
    for (int64_t b = 0; b < matrix->blocks; record += layout.header_bytes + layout.blocks * layout.block_bytes) {
        const f32x16 d = load_scales(record), m = layout.header_bytes == 64 ? load_scales(record + 32) : f32x16_zero();
        const uint8_t *block = record + layout.header_bytes;
        for (int inside = 0; inside < layout.blocks; inside++, b++, block += layout.block_bytes) {
            const uint8_t *lines = block + layout.scale_bytes;
            uint8_t *target = (uint8_t *)matrix->lines + which * panel_lines(format, matrix) + b * step;
            block_scales *scales = &matrix->of_columns[which * matrix->blocks + b];
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

static void unpack_panel(int format, const uint8_t *panel, int64_t which, const block_matrix *matrix)
{
    switch (format) {
#define ONE_FORMAT(FORMAT)                                                                                             \
    case LATTICE_##FORMAT:                                                                                             \
        unpack_panel_of(LATTICE_##FORMAT, panel, which, matrix);                                                         \
        return
        ONE_FORMAT(Q8_0);
        ONE_FORMAT(Q4_0);
        ONE_FORMAT(Q4_1);
        ONE_FORMAT(Q5_0);
        ONE_FORMAT(Q5_1);
        ONE_FORMAT(Q4_K);
        ONE_FORMAT(Q5_K);
        ONE_FORMAT(Q6_K);
#undef ONE_FORMAT
    }
}

/* Lays out what rows x of a task need; lines of Q6_K keep the zeros of their other halves for all panels. */
static void lay_out_rows(block_matrix *matrix, int format, const float *x, int64_t x_stride, int64_t k)
{
    for (int64_t tile = 0; tile < matrix->row_tiles; tile++)
        for (int64_t r = 0; r < MATRIX_ROWS; r++) {
            const int64_t at = tile * MATRIX_ROWS + r;
            row_scales *target = matrix->of_rows + tile * matrix->blocks;
            if (at >= matrix->rows) {
                for (int64_t b = 0; b < matrix->blocks; b++)
                    target[b].scale[r] = target[b].sum[r] = 0.0f;
                continue;
            }
            const block_row row = block_row_at(x + at * x_stride, k);
            for (int64_t b = 0; b < matrix->blocks; b++) {
                target[b].scale[r] = row.scales[b];
                target[b].sum[r] = (float)(row.sums[2 * b] + row.sums[2 * b + 1]);
            }
        }
    const int64_t whole = matrix->rows / MATRIX_ROWS * MATRIX_ROWS;
    for (int64_t at = whole; at < matrix->rows; at++)
        memcpy(matrix->rest + (at - whole) * k, block_row_at(x + at * x_stride, k).q, (size_t)k);
    if (whole < matrix->rows)
        memset(matrix->rest + (matrix->rows - whole) * k, 0, (size_t)((whole + MATRIX_ROWS - matrix->rows) * k));
    if (format == LATTICE_Q6_K)
        for (int64_t b = 0; b < MATRIX_PANELS * matrix->blocks; b++)
            memset(matrix->lines + b * 2 * LINES_BYTES + 256, 0, LINES_BYTES);
}

/* A link of the chain of each of sixteen rows: block_tiles.h. `second` are the sums of Q6_K's other halves. */
LATTICE_INLINE void add_block(int format, const int32_t *sums, const int32_t *second, const block_scales *columns,
                              const row_scales *rows, f32x16 *c)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    const f32x16 d = f32x16_load(columns->scale);
    LATTICE_UNROLL for (int r = 0; r < MATRIX_ROWS; r++)
    {
        f32x16 value = f32x16_from_i32x16(i32x16_load(sums + r * 16));
        if (layout.scale_bytes > 0)
            value = f32x16_mul(value, f32x16_load(columns->factor));
        if (format == LATTICE_Q6_K)
            value = f32x16_fma(f32x16_from_i32x16(i32x16_load(second + r * 16)), f32x16_load(columns->other), value);
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

/* Begins product `v` of each panel. */
#define START_PRODUCTS(FIRST, SECOND, v)                                                                               \
    do {                                                                                                               \
        matrix_load(4, q + (v) / parts * LATTICE_BLOCK, q_stride);                                                     \
        matrix_zero(FIRST);                                                                                            \
        matrix_load(5, matrix->lines + (v) * LINES_BYTES, 64);                                                         \
        matrix_signed_dot(FIRST, 4, 5);                                                                                \
        if (panels > 1) {                                                                                              \
            matrix_zero(SECOND);                                                                                       \
            matrix_load(6, matrix->lines + second_lines + (v) * LINES_BYTES, 64);                                      \
            matrix_signed_dot(SECOND, 4, 6);                                                                           \
        }                                                                                                              \
    } while (0)

#define STORE_PRODUCTS(FIRST, SECOND, at)                                                                              \
    do {                                                                                                               \
        matrix_store(FIRST, sums_of[0][at], 64);                                                                       \
        if (panels > 1)                                                                                                \
            matrix_store(SECOND, sums_of[1][at], 64);                                                                  \
    } while (0)

/* sums [panels][16][16] = a tile of rows by the panels that are unpacked. */
LATTICE_INLINE void multiply_row_tile_of(int format, int panels, const block_matrix *matrix, const int8_t *q, int64_t q_stride,
                                         const row_scales *rows, float *sums)
{
    int32_t sums_of[MATRIX_PANELS][PRODUCTS_AT_ONCE][PRODUCT_SUMS] __attribute__((aligned(64)));
    const int64_t parts = format == LATTICE_Q6_K ? 2 : 1, count = matrix->blocks * parts;
    const int64_t second_lines = panel_lines(format, matrix);
    START_PRODUCTS(0, 1, 0);
    for (int64_t v = 0; v < count; v += PRODUCTS_AT_ONCE) {
        const int64_t here = count - v < PRODUCTS_AT_ONCE ? count - v : PRODUCTS_AT_ONCE;
        if (here > 1)
            START_PRODUCTS(2, 3, v + 1);
        STORE_PRODUCTS(0, 1, 0);
        if (here > 2)
            START_PRODUCTS(0, 1, v + 2);
        if (here > 1)
            STORE_PRODUCTS(2, 3, 1);
        if (here > 3)
            START_PRODUCTS(2, 3, v + 3);
        if (here > 2)
            STORE_PRODUCTS(0, 1, 2);
        if (v + here < count)
            START_PRODUCTS(0, 1, v + PRODUCTS_AT_ONCE);
        if (here > 3)
            STORE_PRODUCTS(2, 3, 3);
        LATTICE_UNROLL for (int p = 0; p < panels; p++)
        {
            f32x16 c[MATRIX_ROWS];
            LATTICE_UNROLL for (int r = 0; r < MATRIX_ROWS; r++)
                c[r] = v == 0 ? f32x16_zero() : f32x16_load(sums + p * PRODUCT_SUMS + r * LATTICE_PANEL);
            const block_scales *columns = matrix->of_columns + p * matrix->blocks + v / parts;
            for (int64_t i = 0; i < here; i += parts)
                add_block(format, sums_of[p][i], sums_of[p][i + parts - 1], columns + i / parts, rows + (v + i) / parts, c);
            LATTICE_UNROLL for (int r = 0; r < MATRIX_ROWS; r++)
                f32x16_store(sums + p * PRODUCT_SUMS + r * LATTICE_PANEL, c[r]);
        }
    }
}

static void multiply_row_tile(int format, int64_t panels, const block_matrix *matrix, const int8_t *q, int64_t q_stride,
                              const row_scales *rows, float *sums)
{
    switch (format) {
#define ONE_FORMAT(FORMAT)                                                                                             \
    case LATTICE_##FORMAT:                                                                                             \
        if (panels > 1)                                                                                                \
            multiply_row_tile_of(LATTICE_##FORMAT, 2, matrix, q, q_stride, rows, sums);                                \
        else                                                                                                           \
            multiply_row_tile_of(LATTICE_##FORMAT, 1, matrix, q, q_stride, rows, sums);                                \
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
