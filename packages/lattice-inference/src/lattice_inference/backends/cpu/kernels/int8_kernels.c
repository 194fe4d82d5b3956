/* Linears with int8 weights, of one instruction set: this file is compiled once for each, apart from kernels.c for speed of
 * building.
 *
 *     y[t, n] = activation(((sum over k of (q[t, k] - zero[t]) * w[n, k]) * w_scale[n]) * scale[t] + bias[n]) + residual
 *
 * The sum is an exact integer: sum q w - zero * sum w, the latter kept with the panel. Sum, scales, bias and what follows are
 * one float32 operation each, so tile, thread and level change no bit.
 */
#include "int8_kernels.h"

#include "activations.h"
#include "int8_linear.h"
#include "int8_tiles.h"

#define BLOCK_BYTES (192 * 1024) /* of rows of integers that a task keeps in L2 */

LATTICE_INLINE integer_row_form row_form(const lattice_step *step)
{
    return step->dot ? DOT_ROW_FORM : PLAIN_ROW_FORM;
}

void LATTICE_FN(lattice_quantize_row)(const float *x, int64_t n, const float *fixed, int dot, float *row)
{
    quantize_row(x, n, fixed, dot ? DOT_ROW_FORM : PLAIN_ROW_FORM, row);
}

int64_t LATTICE_FN(lattice_quantize_rows_tasks)(const lattice_op *op, const lattice_step *step)
{
    return row_tasks(op, step);
}

void LATTICE_FN(lattice_quantize_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                           int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++)
        quantize_row(lattice_row(step, &op->input[0], row), op->k, op->range, row_form(step),
                     lattice_row(step, &op->output, row));
}

typedef struct {
    int64_t row_blocks, column_groups;
} int8_grid;

/* How a linear is cut: blocks of rows times groups of panels. */
LATTICE_INLINE int8_grid int8_cut(const lattice_op *op, const lattice_step *step)
{
    const int64_t rows = lattice_rows(op, step), panels = lattice_divide_up(op->n, LATTICE_PANEL);
    int64_t block = BLOCK_BYTES / (op->input[0].stride * (int64_t)sizeof(float));
    block = block < 4 * INT8_TILE_ROWS ? 4 * INT8_TILE_ROWS : block / INT8_TILE_ROWS * INT8_TILE_ROWS;
    int8_grid grid = {lattice_divide_up(rows, block), 1};
    if (step->threads > 1) {
        grid.column_groups = lattice_divide_up(4 * step->threads, grid.row_blocks);
        const int64_t most = lattice_divide_up(panels, 2);
        if (grid.column_groups > most)
            grid.column_groups = most;
    }
    return grid;
}

int64_t LATTICE_FN(lattice_int8_linear_tasks)(const lattice_op *op, const lattice_step *step)
{
    const int8_grid grid = int8_cut(op, step);
    return grid.row_blocks * grid.column_groups;
}

/* Sums [rows][16] of a panel to y, whose first element is `output`'s. */
static void finish_sums(const int32_t *sums, int64_t rows, const char *x, int64_t stride, const char *panel,
                        const lattice_output *output)
{
    const int64_t columns = output->columns < LATTICE_PANEL ? output->columns : LATTICE_PANEL;
    const f32x16 scales = f32x16_load((const float *)panel);
    const i32x16 weight_sums = i32x16_load((const int32_t *)(panel + LATTICE_PANEL * sizeof(float)));
    const f32x16 bias = output->bias != NULL ? load_part(output->bias, 0, columns) : f32x16_zero();
    for (int64_t r = 0; r < rows; r++) {
        const i32x16 moved = i32x16_mul(weight_sums, i32x16_set1(integer_row_zero(x + r * stride)));
        const f32x16 sum = f32x16_from_i32x16(i32x16_sub(i32x16_load(sums + r * LATTICE_PANEL), moved));
        f32x16 value = f32x16_mul(f32x16_mul(sum, scales), f32x16_set1(integer_row_scale(x + r * stride)));
        if (output->bias != NULL)
            value = f32x16_add(value, bias);
        if (output->residual != NULL)
            value = f32x16_add(value, load_part(output->residual + r * output->residual_stride, 0, columns));
        store_part(output->y + r * output->stride, 0, columns, value);
    }
    if (output->activation != LATTICE_ACTIVATION_NONE)
        activate_rows(output->activation, output->y, output->stride, output->y, output->stride, rows, columns);
}

void LATTICE_FN(lattice_int8_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                         int thread)
{
    (void)thread;
    (void)tasks;
    const int8_grid grid = int8_cut(op, step);
    int64_t row, row_end, panel, panel_end;
    task_rows(lattice_rows(op, step), task / grid.column_groups, grid.row_blocks, &row, &row_end);
    task_rows(lattice_divide_up(op->n, LATTICE_PANEL), task % grid.column_groups, grid.column_groups, &panel, &panel_end);
    if (row == row_end)
        return;
    const int8_tile *tiles = plain_tiles;
#if defined(DOT_TILE)
    if (step->dot)
        tiles = dot_tiles;
#endif
    const char *x = (const char *)lattice_row(step, &op->input[0], row) + INTEGER_ROW_HEADER;
    const int64_t stride = op->input[0].stride * (int64_t)sizeof(float), groups = lattice_round_up(op->k, 16) / GROUP;
    const int64_t panel_bytes = lattice_int8_panel_bytes(op->k), row_tiles = lattice_divide_up(row_end - row, INT8_TILE_ROWS);
    int32_t sums[INT8_TILE_ROWS * LATTICE_PANEL] __attribute__((aligned(64)));
    for (; panel < panel_end; panel++) {
        const char *weights = (const char *)op->weight + panel * panel_bytes;
        const int64_t column = panel * LATTICE_PANEL;
        lattice_output output = {
            .stride = op->output.stride,
            .columns = op->n - column,
            .bias = op->bias != NULL ? op->bias + column : NULL,
            .residual_stride = op->residual.stride,
            .activation = op->activation,
        };
        for (int64_t t = 0; t < row_tiles; t++) {
            int64_t first, end;
            task_rows(row_end - row, t, row_tiles, &first, &end);
            output.y = lattice_row(step, &op->output, row + first) + column;
            if (op->residual.slot >= 0)
                output.residual = lattice_row(step, &op->residual, row + first) + column;
            tiles[end - first - 1](x + first * stride, stride, (const int8_t *)weights + 2 * LATTICE_PANEL * 4, groups, sums);
            finish_sums(sums, end - first, x + first * stride, stride, weights, &output);
        }
    }
}
