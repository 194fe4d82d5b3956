/* Linears with int8 weights, of one instruction set: this file is compiled once for each, apart from kernels.c for speed of
 * building.
 *
 *     y[t, n] = activation(((sum over k of (q[t, k] - zero[t]) * w[n, k]) * w_scale[n]) * scale[t] + bias[n]) + residual
 *
 * The sum is an exact integer: sum q w - zero * sum w, the latter kept with the panel. Sum, scales, bias and what follows are
 * one float32 operation each, so tile, thread and level change no bit.
 */
#include "kernel_functions.h"

#include "rows/activations.h"
#include "linear/int8_linear.h"
#include "amx/amx_int8.h"
#include "linear/int8_tiles.h"

LATTICE_INLINE integer_row_form row_form(const lattice_step *step)
{
    return step->dot ? DOT_ROW_FORM : PLAIN_ROW_FORM;
}

void LATTICE_FN(lattice_quantize_row)(const float *x, int64_t n, const float *fixed, int dot, float *row)
{
    quantize_row(x, n, fixed, dot ? DOT_ROW_FORM : PLAIN_ROW_FORM, row);
}

void LATTICE_FN(quantize_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                           int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++)
        quantize_row(lattice_row(step, &op->input[0], row), op->k, op->quantize.range, row_form(step),
                     lattice_row(step, &op->output, row));
}

typedef struct {
    int64_t block_rows, row_blocks, column_groups;
    int64_t group_panels; /* a group has a multiple of so many panels */
} int8_grid;

LATTICE_INLINE int uses_amx(const lattice_op *op, const lattice_step *step)
{
    return LATTICE_AMX_INT8 && step->dot && step->amx && lattice_rows(op, step) >= step->sizes->int8_amx_least_rows;
}

/* How a linear is cut: blocks of rows times groups of panels. */
LATTICE_INLINE int8_grid int8_cut(const lattice_op *op, const lattice_step *step)
{
    const int64_t rows = lattice_rows(op, step), panels = lattice_divide_up(op->n, LATTICE_PANEL);
    int8_grid grid = {step->sizes->int8_amx_rows, 1, 1, 4};
    if (!uses_amx(op, step)) {
        const int64_t block = step->sizes->int8_block_bytes / (op->input[0].stride * (int64_t)sizeof(float));
        grid.block_rows = block < 4 * INT8_TILE_ROWS ? 4 * INT8_TILE_ROWS : block / INT8_TILE_ROWS * INT8_TILE_ROWS;
        grid.group_panels = 1;
    }
    grid.row_blocks = lattice_divide_up(rows, grid.block_rows);
    if (step->threads > 1 && rows > 0) {
        grid.column_groups = lattice_divide_up(step->sizes->int8_tasks * step->threads, grid.row_blocks);
        const int64_t most = lattice_divide_up(panels, uses_amx(op, step) ? grid.group_panels : 2);
        if (grid.column_groups > most)
            grid.column_groups = most;
    }
    return grid;
}

int64_t LATTICE_FN(int8_linear_tasks)(const lattice_op *op, const lattice_step *step)
{
    const int8_grid grid = int8_cut(op, step);
    return grid.row_blocks * grid.column_groups;
}

/* Part of a linear: rows of integers, and the panels that they are multiplied by. */
typedef struct {
    const char *x; /* elements of the first row */
    int64_t stride;
    const char *panels; /* the first one */
    int64_t panel_bytes, groups;
    lattice_output output; /* from the first row and the first panel's first column on */
} int8_part;

/* Sums of `count` rows of the first panel of a part to y. */
LATTICE_INLINE void finish_rows(int count, int activation, const int32_t *sums, int64_t sums_stride, int64_t row,
                                const int8_part *part, f32x16 scales, i32x16 weight_sums, f32x16 bias)
{
    const lattice_output *output = &part->output;
    const int64_t columns = output->columns < LATTICE_PANEL ? output->columns : LATTICE_PANEL;
    f32x16 value[LATTICE_SIDE_BY_SIDE];
    for (int j = 0; j < count; j++) {
        const char *x = part->x + (row + j) * part->stride;
        const i32x16 moved = i32x16_mul(weight_sums, i32x16_set1(integer_row_zero(x)));
        const f32x16 sum = f32x16_from_i32x16(i32x16_sub(i32x16_load(sums + (row + j) * sums_stride), moved));
        value[j] = f32x16_mul(f32x16_mul(sum, scales), f32x16_set1(integer_row_scale(x)));
        if (output->bias != NULL)
            value[j] = f32x16_add(value[j], bias);
        if (output->residual != NULL)
            value[j] = f32x16_add(value[j], load_part(output->residual + (row + j) * output->residual_stride, 0, columns));
    }
    activate_each(activation, count, value);
    for (int j = 0; j < count; j++)
        store_part(output->y + (row + j) * output->stride, 0, columns, value[j]);
}

/* Sums [rows][16] of the first panel of a part to y. */
LATTICE_INLINE void finish_sums_by(int activation, const int32_t *sums, int64_t sums_stride, int64_t rows, const int8_part *part)
{
    const lattice_output *output = &part->output;
    const f32x16 scales = f32x16_load((const float *)part->panels);
    const i32x16 weight_sums = i32x16_load((const int32_t *)(part->panels + LATTICE_PANEL * sizeof(float)));
    const f32x16 bias = output->bias != NULL ? load_part(output->bias, 0, output->columns) : f32x16_zero();
    const int together = activated_together(activation);
    int64_t row = 0;
    for (; row + together <= rows; row += together)
        finish_rows(together, activation, sums, sums_stride, row, part, scales, weight_sums, bias);
    for (; row < rows; row++)
        finish_rows(1, activation, sums, sums_stride, row, part, scales, weight_sums, bias);
}

/* One loop for each activation, so that nothing is decided in it. */
static void finish_sums(const int32_t *sums, int64_t sums_stride, int64_t rows, const int8_part *part)
{
    switch (part->output.activation) {
#define ONE_ACTIVATION(id, name)                                                                                       \
    case id:                                                                                                           \
        finish_sums_by(id, sums, sums_stride, rows, part);                                                             \
        return;
        LATTICE_ACTIVATIONS(ONE_ACTIVATION)
#undef ONE_ACTIVATION
    }
}

/* The part that begins so many rows and panels further on. */
LATTICE_INLINE int8_part moved_part(const int8_part *part, int64_t rows, int64_t panels)
{
    int8_part moved = *part;
    const int64_t column = panels * LATTICE_PANEL;
    moved.x += rows * part->stride;
    moved.panels += panels * part->panel_bytes;
    moved.output.columns -= column;
    moved.output.y += rows * part->output.stride + column;
    if (part->output.bias != NULL)
        moved.output.bias += column;
    if (part->output.residual != NULL)
        moved.output.residual += rows * part->output.residual_stride + column;
    return moved;
}

LATTICE_INLINE const int8_t *lines_of(const int8_part *part)
{
    return (const int8_t *)part->panels + 2 * LATTICE_PANEL * 4;
}

/* By the tiles of int8_tiles.h: panels are the outer loop, so that one stays in L1 while all rows go past it. */
static void multiply_by_vectors(const int8_part *part, int64_t rows, int64_t panels, const int8_tile *tiles)
{
    int32_t sums[INT8_TILE_ROWS * LATTICE_PANEL] __attribute__((aligned(64)));
    const int64_t row_tiles = lattice_divide_up(rows, INT8_TILE_ROWS);
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t t = 0; t < row_tiles; t++) {
            int64_t first, end;
            task_rows(rows, t, row_tiles, &first, &end);
            const int8_part here = moved_part(part, first, panel);
            tiles[end - first - 1](here.x, here.stride, lines_of(&here), here.groups, sums);
            finish_sums(sums, LATTICE_PANEL, end - first, &here);
        }
}

#if LATTICE_AMX_INT8
/* Tiles of `height` rows, which the registers are shaped for, by all panels. */
static void multiply_by_shaped_amx(const int8_part *part, int64_t rows, int64_t height, int64_t panels, amx_int8_rest *rest)
{
    int32_t sums[AMX_MOST_ROWS * 2 * LATTICE_PANEL] __attribute__((aligned(64)));
    const int64_t steps = part->groups / AMX_ROWS;
    for (int64_t panel = 0, width; panel < panels; panel += width) {
        width = amx_int8_panels(height, panels - panel);
        for (int64_t row = 0; row < rows; row += height) {
            const int8_part here = moved_part(part, row, panel);
            if (rest->bytes > 0)
                amx_keep_rest(rest, here.x + steps * AMX_ROW_BYTES, here.stride, height);
            amx_multiply_int8(here.x, here.stride, height, lines_of(&here), here.panel_bytes, width, steps, rest, sums);
            for (int64_t p = 0; p < width; p++) {
                const int8_part one = moved_part(&here, 0, p);
                finish_sums(sums + p * LATTICE_PANEL, width * LATTICE_PANEL, height, &one);
            }
        }
    }
}

/* By the tiles of amx_int8.h: whole ones first, then the rows that are left over. */
static void multiply_by_amx(const int8_part *part, int64_t rows, int64_t panels)
{
    amx_int8_rest rest;
    rest.bytes = part->groups * GROUP % AMX_ROW_BYTES;
    if (rest.bytes > 0) {
        memset(rest.x, 0, sizeof rest.x);
        memset(rest.w, 0, sizeof rest.w);
    }
    const int64_t whole = rows / AMX_MOST_ROWS * AMX_MOST_ROWS;
    if (whole > 0) {
        amx_shape_int8(AMX_MOST_ROWS);
        multiply_by_shaped_amx(part, whole, AMX_MOST_ROWS, panels, &rest);
    }
    if (rows > whole) {
        const int8_part left = moved_part(part, whole, 0);
        amx_shape_int8(rows - whole);
        multiply_by_shaped_amx(&left, rows - whole, rows - whole, panels, &rest);
    }
    amx_release();
}
#endif

void LATTICE_FN(int8_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                         int thread)
{
    (void)thread;
    (void)tasks;
    const int8_grid grid = int8_cut(op, step);
    const int64_t total = lattice_rows(op, step), panels = lattice_divide_up(op->n, LATTICE_PANEL);
    int64_t row, row_end, panel, panel_end;
    if (uses_amx(op, step)) { /* whole tiles in every block but the last */
        row = task / grid.column_groups * grid.block_rows;
        row_end = row + grid.block_rows < total ? row + grid.block_rows : total;
    } else {
        task_rows(total, task / grid.column_groups, grid.row_blocks, &row, &row_end);
    }
    task_rows(lattice_divide_up(panels, grid.group_panels), task % grid.column_groups, grid.column_groups, &panel, &panel_end);
    panel *= grid.group_panels;
    panel_end = panel_end * grid.group_panels < panels ? panel_end * grid.group_panels : panels;
    if (row == row_end || panel == panel_end)
        return;
    const int8_part whole = {
        .x = (const char *)lattice_row(step, &op->input[0], row) + INTEGER_ROW_HEADER,
        .stride = op->input[0].stride * (int64_t)sizeof(float),
        .panels = op->linear.weight,
        .panel_bytes = lattice_int8_panel_bytes(op->k),
        .groups = lattice_round_up(op->k, 16) / GROUP,
        .output =
            {
                .y = lattice_row(step, &op->output, row),
                .stride = op->output.stride,
                .columns = op->n,
                .bias = op->linear.bias,
                .residual = op->linear.residual.slot >= 0 ? lattice_row(step, &op->linear.residual, row) : NULL,
                .residual_stride = op->linear.residual.stride,
                .activation = op->linear.activation,
            },
    };
    const int8_part part = moved_part(&whole, 0, panel);
#if LATTICE_AMX_INT8
    if (uses_amx(op, step)) {
        multiply_by_amx(&part, row_end - row, panel_end - panel);
        return;
    }
#endif
    const int8_tile *tiles = plain_tiles;
#if defined(DOT_TILE)
    if (step->dot)
        tiles = dot_tiles;
#endif
    multiply_by_vectors(&part, row_end - row, panel_end - panel, tiles);
}
