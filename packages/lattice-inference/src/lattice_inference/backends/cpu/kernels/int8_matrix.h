/* The sums of int8_tiles.h by matrix tiles (AMX): 32 rows by two panels, or 16 rows by four, and what stays of them.
 *
 * A panel's lines are what a tile register takes as they lie: 16 lines are 64 steps of k of 16 columns. So are rows in the form
 * of bytes. With sums in four registers, four products are under way, which is what hides their latency (52 cycles, a new one
 * every 16); each pair of loads serves two products, and a load of a register takes 8 cycles from L1.
 *
 *                          panel p   panel p+1
 *     x rows 0..15    [4]    [0]       [1]            [6], [7]: 64 steps of k of a panel
 *     x rows 16..31   [5]    [2]       [3]            16 rows or fewer: [4] by [5], [6], [7], [5] into [0] to [3]
 *
 * The steps of k past a multiple of 64 are one more product, of copies filled up with zeros. Products of tiles take little next
 * to what is done with their sums, so what bounds a linear is the epilogue, and with few rows the memory that weights come from.
 *
 * Numeric design: that of int8_tiles.h. Sums are exact, and so the same.
 */
#ifndef LATTICE_INT8_MATRIX_H
#define LATTICE_INT8_MATRIX_H

#include "int8_tiles.h"
#include "matrix_tiles.h"

#if MATRIX_TILES
#define STEP_BYTES (MATRIX_ROWS * LINE_BYTES) /* of a panel: 64 steps of k */
#define MATRIX_MOST_ROWS (2 * MATRIX_ROWS)    /* multiplied at once */
#define MATRIX_MOST_PANELS 4

/* What is left over of rows and panels after whole steps, filled up with zeros. */
typedef struct {
    int64_t bytes; /* of each row */
    uint8_t x[MATRIX_MOST_ROWS][MATRIX_ROW_BYTES] __attribute__((aligned(64)));
    int8_t w[MATRIX_MOST_PANELS][STEP_BYTES] __attribute__((aligned(64)));
} matrix_rest;

/* Shapes the registers for `rows` rows of x, at most MATRIX_MOST_ROWS. */
LATTICE_INLINE void shape_for_rows(int64_t rows)
{
    matrix_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    const int64_t first = rows < MATRIX_ROWS ? rows : MATRIX_ROWS, second = rows - first;
    const int64_t tall[MATRIX_REGISTERS] = {first,
                                            first,
                                            second > 0 ? second : first,
                                            second > 0 ? second : first,
                                            first,
                                            second > 0 ? second : MATRIX_ROWS,
                                            MATRIX_ROWS,
                                            MATRIX_ROWS};
    for (int tile = 0; tile < MATRIX_REGISTERS; tile++) {
        shapes.rows[tile] = (uint8_t)tall[tile];
        shapes.row_bytes[tile] = MATRIX_ROW_BYTES;
    }
    matrix_shape(&shapes);
}

static void keep_rest_of_rows(matrix_rest *rest, const char *x, int64_t stride, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy(rest->x[r], x + r * stride, (size_t)rest->bytes);
}

/* sums[32][32]: two tiles of rows by two panels, panel_bytes apart. */
static void multiply_two_by_two(const char *x, int64_t stride, const int8_t *w, int64_t panel_bytes, int64_t steps,
                                const matrix_rest *rest, int32_t *sums)
{
    const char *second = x + MATRIX_ROWS * stride;
    matrix_zero(0);
    matrix_zero(1);
    matrix_zero(2);
    matrix_zero(3);
    for (int64_t i = 0; i < steps; i++) {
        const int8_t *lines = w + i * STEP_BYTES;
        matrix_load(6, lines, LINE_BYTES);
        matrix_load(4, x + i * MATRIX_ROW_BYTES, stride);
        matrix_dot(0, 4, 6);
        matrix_load(7, lines + panel_bytes, LINE_BYTES);
        matrix_dot(1, 4, 7);
        matrix_load(5, second + i * MATRIX_ROW_BYTES, stride);
        matrix_dot(2, 5, 6);
        matrix_dot(3, 5, 7);
    }
    if (rest->bytes > 0) {
        matrix_load(4, rest->x, MATRIX_ROW_BYTES);
        matrix_load(5, rest->x + MATRIX_ROWS, MATRIX_ROW_BYTES);
        matrix_load(6, rest->w[0], LINE_BYTES);
        matrix_load(7, rest->w[1], LINE_BYTES);
        matrix_dot(0, 4, 6);
        matrix_dot(1, 4, 7);
        matrix_dot(2, 5, 6);
        matrix_dot(3, 5, 7);
    }
    const int64_t sums_stride = 2 * LATTICE_PANEL;
    int32_t *below = sums + MATRIX_ROWS * sums_stride;
    matrix_store(0, sums, sums_stride * 4);
    matrix_store(1, sums + LATTICE_PANEL, sums_stride * 4);
    matrix_store(2, below, sums_stride * 4);
    matrix_store(3, below + LATTICE_PANEL, sums_stride * 4);
}

/* sums[32][16] of one panel. */
static void multiply_two_by_one(const char *x, int64_t stride, const int8_t *w, int64_t steps, const matrix_rest *rest,
                                int32_t *sums)
{
    const char *second = x + MATRIX_ROWS * stride;
    matrix_zero(0);
    matrix_zero(2);
    for (int64_t i = 0; i < steps; i++) {
        matrix_load(6, w + i * STEP_BYTES, LINE_BYTES);
        matrix_load(4, x + i * MATRIX_ROW_BYTES, stride);
        matrix_dot(0, 4, 6);
        matrix_load(5, second + i * MATRIX_ROW_BYTES, stride);
        matrix_dot(2, 5, 6);
    }
    if (rest->bytes > 0) {
        matrix_load(4, rest->x, MATRIX_ROW_BYTES);
        matrix_load(5, rest->x + MATRIX_ROWS, MATRIX_ROW_BYTES);
        matrix_load(6, rest->w[0], LINE_BYTES);
        matrix_dot(0, 4, 6);
        matrix_dot(2, 5, 6);
    }
    matrix_store(0, sums, LATTICE_PANEL * 4);
    matrix_store(2, sums + MATRIX_ROWS * LATTICE_PANEL, LATTICE_PANEL * 4);
}

/* sums[16][64]: one tile of rows by four panels. Their weights come from memory; the loads of a register ask for 16 lines at
 * once, and asking ahead of them only took longer. */
static void multiply_one_by_four(const char *x, int64_t stride, const int8_t *w, int64_t panel_bytes, int64_t steps,
                                 const matrix_rest *rest, int32_t *sums)
{
    matrix_zero(0);
    matrix_zero(1);
    matrix_zero(2);
    matrix_zero(3);
    for (int64_t i = 0; i < steps; i++) {
        const int8_t *lines = w + i * STEP_BYTES;
        matrix_load(4, x + i * MATRIX_ROW_BYTES, stride);
        matrix_load(5, lines, LINE_BYTES);
        matrix_dot(0, 4, 5);
        matrix_load(6, lines + panel_bytes, LINE_BYTES);
        matrix_dot(1, 4, 6);
        matrix_load(7, lines + 2 * panel_bytes, LINE_BYTES);
        matrix_dot(2, 4, 7);
        matrix_load(5, lines + 3 * panel_bytes, LINE_BYTES);
        matrix_dot(3, 4, 5);
    }
    if (rest->bytes > 0) {
        matrix_load(4, rest->x, MATRIX_ROW_BYTES);
        matrix_load(5, rest->w[0], LINE_BYTES);
        matrix_dot(0, 4, 5);
        matrix_load(6, rest->w[1], LINE_BYTES);
        matrix_dot(1, 4, 6);
        matrix_load(7, rest->w[2], LINE_BYTES);
        matrix_dot(2, 4, 7);
        matrix_load(5, rest->w[3], LINE_BYTES);
        matrix_dot(3, 4, 5);
    }
    const int64_t sums_stride = 4 * LATTICE_PANEL;
    matrix_store(0, sums, sums_stride * 4);
    matrix_store(1, sums + LATTICE_PANEL, sums_stride * 4);
    matrix_store(2, sums + 2 * LATTICE_PANEL, sums_stride * 4);
    matrix_store(3, sums + 3 * LATTICE_PANEL, sums_stride * 4);
}

/* sums[16][16]: one tile of rows by one panel. */
static void multiply_one_by_one(const char *x, int64_t stride, const int8_t *w, int64_t steps, const matrix_rest *rest,
                                int32_t *sums)
{
    matrix_zero(0);
    for (int64_t i = 0; i < steps; i++) {
        matrix_load(4, x + i * MATRIX_ROW_BYTES, stride);
        matrix_load(6, w + i * STEP_BYTES, LINE_BYTES);
        matrix_dot(0, 4, 6);
    }
    if (rest->bytes > 0) {
        matrix_load(4, rest->x, MATRIX_ROW_BYTES);
        matrix_load(6, rest->w[0], LINE_BYTES);
        matrix_dot(0, 4, 6);
    }
    matrix_store(0, sums, LATTICE_PANEL * 4);
}

/* How many of `panels` panels are multiplied at once by `rows` rows. */
LATTICE_INLINE int64_t matrix_panels(int64_t rows, int64_t panels)
{
    const int64_t most = rows > MATRIX_ROWS ? 2 : 4;
    return panels >= most ? most : 1;
}

/* sums[rows][16 panels] of so many rows and panels as shape_for_rows and matrix_panels say; w: the first panel's lines. */
LATTICE_INLINE void matrix_multiply(const char *x, int64_t stride, int64_t rows, const int8_t *w, int64_t panel_bytes,
                                    int64_t panels, int64_t steps, matrix_rest *rest, int32_t *sums)
{
    if (rest->bytes > 0)
        for (int64_t p = 0; p < panels; p++)
            memcpy(rest->w[p], w + p * panel_bytes + steps * STEP_BYTES, (size_t)rest->bytes * LATTICE_PANEL);
    if (rows > MATRIX_ROWS && panels == 2)
        multiply_two_by_two(x, stride, w, panel_bytes, steps, rest, sums);
    else if (rows > MATRIX_ROWS)
        multiply_two_by_one(x, stride, w, steps, rest, sums);
    else if (panels == 4)
        multiply_one_by_four(x, stride, w, panel_bytes, steps, rest, sums);
    else
        multiply_one_by_one(x, stride, w, steps, rest, sums);
}
#endif

#endif
