/* The sums of int8_tiles.h by AMX: 32 rows by two panels, or 16 rows by four, and what stays of them.
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
#ifndef LATTICE_AMX_INT8_H
#define LATTICE_AMX_INT8_H

#include "linear/int8_tiles.h"
#include "amx/amx_tiles.h"

#if LATTICE_AMX_INT8
#define STEP_BYTES (AMX_ROWS * LINE_BYTES) /* of a panel: 64 steps of k */
#define AMX_MOST_PANELS 4

/* What is left over of rows and panels after whole steps, filled up with zeros. */
typedef struct {
    int64_t bytes; /* of each row */
    uint8_t x[AMX_MOST_ROWS][AMX_ROW_BYTES] __attribute__((aligned(64)));
    int8_t w[AMX_MOST_PANELS][STEP_BYTES] __attribute__((aligned(64)));
} amx_int8_rest;

/* Shapes the registers for `rows` rows of x, at most AMX_MOST_ROWS. */
LATTICE_INLINE void amx_shape_int8(int64_t rows)
{
    amx_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    const int64_t first = rows < AMX_ROWS ? rows : AMX_ROWS, second = rows - first;
    const int64_t tall[AMX_REGISTERS] = {first,
                                            first,
                                            second > 0 ? second : first,
                                            second > 0 ? second : first,
                                            first,
                                            second > 0 ? second : AMX_ROWS,
                                            AMX_ROWS,
                                            AMX_ROWS};
    for (int tile = 0; tile < AMX_REGISTERS; tile++) {
        shapes.rows[tile] = (uint8_t)tall[tile];
        shapes.row_bytes[tile] = AMX_ROW_BYTES;
    }
    amx_shape(&shapes);
}

static void amx_keep_rest(amx_int8_rest *rest, const char *x, int64_t stride, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy(rest->x[r], x + r * stride, (size_t)rest->bytes);
}

/* sums[32][32]: two tiles of rows by two panels, panel_bytes apart. */
static void amx_int8_2x2(const char *x, int64_t stride, const int8_t *w, int64_t panel_bytes, int64_t steps,
                                const amx_int8_rest *rest, int32_t *sums)
{
    const char *second = x + AMX_ROWS * stride;
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (int64_t i = 0; i < steps; i++) {
        const int8_t *lines = w + i * STEP_BYTES;
        amx_load(6, lines, LINE_BYTES);
        amx_load(4, x + i * AMX_ROW_BYTES, stride);
        amx_dot_bytes(0, 4, 6);
        amx_load(7, lines + panel_bytes, LINE_BYTES);
        amx_dot_bytes(1, 4, 7);
        amx_load(5, second + i * AMX_ROW_BYTES, stride);
        amx_dot_bytes(2, 5, 6);
        amx_dot_bytes(3, 5, 7);
    }
    if (rest->bytes > 0) {
        amx_load(4, rest->x, AMX_ROW_BYTES);
        amx_load(5, rest->x + AMX_ROWS, AMX_ROW_BYTES);
        amx_load(6, rest->w[0], LINE_BYTES);
        amx_load(7, rest->w[1], LINE_BYTES);
        amx_dot_bytes(0, 4, 6);
        amx_dot_bytes(1, 4, 7);
        amx_dot_bytes(2, 5, 6);
        amx_dot_bytes(3, 5, 7);
    }
    const int64_t sums_stride = 2 * LATTICE_PANEL;
    int32_t *below = sums + AMX_ROWS * sums_stride;
    amx_store(0, sums, sums_stride * 4);
    amx_store(1, sums + LATTICE_PANEL, sums_stride * 4);
    amx_store(2, below, sums_stride * 4);
    amx_store(3, below + LATTICE_PANEL, sums_stride * 4);
}

/* sums[32][16] of one panel. */
static void amx_int8_2x1(const char *x, int64_t stride, const int8_t *w, int64_t steps, const amx_int8_rest *rest,
                                int32_t *sums)
{
    const char *second = x + AMX_ROWS * stride;
    amx_zero(0);
    amx_zero(2);
    for (int64_t i = 0; i < steps; i++) {
        amx_load(6, w + i * STEP_BYTES, LINE_BYTES);
        amx_load(4, x + i * AMX_ROW_BYTES, stride);
        amx_dot_bytes(0, 4, 6);
        amx_load(5, second + i * AMX_ROW_BYTES, stride);
        amx_dot_bytes(2, 5, 6);
    }
    if (rest->bytes > 0) {
        amx_load(4, rest->x, AMX_ROW_BYTES);
        amx_load(5, rest->x + AMX_ROWS, AMX_ROW_BYTES);
        amx_load(6, rest->w[0], LINE_BYTES);
        amx_dot_bytes(0, 4, 6);
        amx_dot_bytes(2, 5, 6);
    }
    amx_store(0, sums, LATTICE_PANEL * 4);
    amx_store(2, sums + AMX_ROWS * LATTICE_PANEL, LATTICE_PANEL * 4);
}

/* sums[16][64]: one tile of rows by four panels. Their weights come from memory; the loads of a register ask for 16 lines at
 * once, and asking ahead of them only took longer. */
static void amx_int8_1x4(const char *x, int64_t stride, const int8_t *w, int64_t panel_bytes, int64_t steps,
                                 const amx_int8_rest *rest, int32_t *sums)
{
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (int64_t i = 0; i < steps; i++) {
        const int8_t *lines = w + i * STEP_BYTES;
        amx_load(4, x + i * AMX_ROW_BYTES, stride);
        amx_load(5, lines, LINE_BYTES);
        amx_dot_bytes(0, 4, 5);
        amx_load(6, lines + panel_bytes, LINE_BYTES);
        amx_dot_bytes(1, 4, 6);
        amx_load(7, lines + 2 * panel_bytes, LINE_BYTES);
        amx_dot_bytes(2, 4, 7);
        amx_load(5, lines + 3 * panel_bytes, LINE_BYTES);
        amx_dot_bytes(3, 4, 5);
    }
    if (rest->bytes > 0) {
        amx_load(4, rest->x, AMX_ROW_BYTES);
        amx_load(5, rest->w[0], LINE_BYTES);
        amx_dot_bytes(0, 4, 5);
        amx_load(6, rest->w[1], LINE_BYTES);
        amx_dot_bytes(1, 4, 6);
        amx_load(7, rest->w[2], LINE_BYTES);
        amx_dot_bytes(2, 4, 7);
        amx_load(5, rest->w[3], LINE_BYTES);
        amx_dot_bytes(3, 4, 5);
    }
    const int64_t sums_stride = 4 * LATTICE_PANEL;
    amx_store(0, sums, sums_stride * 4);
    amx_store(1, sums + LATTICE_PANEL, sums_stride * 4);
    amx_store(2, sums + 2 * LATTICE_PANEL, sums_stride * 4);
    amx_store(3, sums + 3 * LATTICE_PANEL, sums_stride * 4);
}

/* sums[16][16]: one tile of rows by one panel. */
static void amx_int8_1x1(const char *x, int64_t stride, const int8_t *w, int64_t steps, const amx_int8_rest *rest,
                                int32_t *sums)
{
    amx_zero(0);
    for (int64_t i = 0; i < steps; i++) {
        amx_load(4, x + i * AMX_ROW_BYTES, stride);
        amx_load(6, w + i * STEP_BYTES, LINE_BYTES);
        amx_dot_bytes(0, 4, 6);
    }
    if (rest->bytes > 0) {
        amx_load(4, rest->x, AMX_ROW_BYTES);
        amx_load(6, rest->w[0], LINE_BYTES);
        amx_dot_bytes(0, 4, 6);
    }
    amx_store(0, sums, LATTICE_PANEL * 4);
}

/* How many of `panels` panels are multiplied at once by `rows` rows. */
LATTICE_INLINE int64_t amx_int8_panels(int64_t rows, int64_t panels)
{
    const int64_t most = rows > AMX_ROWS ? 2 : 4;
    return panels >= most ? most : 1;
}

/* sums[rows][16 panels] of so many rows and panels as amx_shape_int8 and amx_int8_panels say; w: the first panel's lines. */
LATTICE_INLINE void amx_multiply_int8(const char *x, int64_t stride, int64_t rows, const int8_t *w, int64_t panel_bytes,
                                    int64_t panels, int64_t steps, amx_int8_rest *rest, int32_t *sums)
{
    if (rest->bytes > 0)
        for (int64_t p = 0; p < panels; p++)
            memcpy(rest->w[p], w + p * panel_bytes + steps * STEP_BYTES, (size_t)rest->bytes * LATTICE_PANEL);
    if (rows > AMX_ROWS && panels == 2)
        amx_int8_2x2(x, stride, w, panel_bytes, steps, rest, sums);
    else if (rows > AMX_ROWS)
        amx_int8_2x1(x, stride, w, steps, rest, sums);
    else if (panels == 4)
        amx_int8_1x4(x, stride, w, panel_bytes, steps, rest, sums);
    else
        amx_int8_1x1(x, stride, w, steps, rest, sums);
}
#endif

#endif
