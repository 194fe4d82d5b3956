/* y = activation(x W^T + bias) + residual: a GEMM whose epilogue works on a finished tile while it lies in L1.
 *
 * The epilogue applies exactly the operations that the unfused ops would, in the same order, so fusing changes no bit.
 */
#ifndef LATTICE_LINEAR_H
#define LATTICE_LINEAR_H

#include "elementwise.h"
#include "gemm.h"

#define BLOCK_BYTES (256 * 1024) /* of A rows that a task keeps in L2 */
#define FEW_ROWS 32              /* up to here reading the weights once is what counts */

typedef struct {
    int64_t row_blocks, column_groups;
} linear_grid;

/* How a linear is cut: blocks of rows times groups of panels. */
LATTICE_INLINE linear_grid linear_cut(const lattice_op *op, const lattice_step *step)
{
    const int64_t rows = lattice_rows(op, step), panels = lattice_divide_up(op->n, LATTICE_PANEL);
    int64_t block = BLOCK_BYTES / (op->k * (int64_t)sizeof(float));
    block = block < 4 * TILE_ROWS ? 4 * TILE_ROWS : block / TILE_ROWS * TILE_ROWS;
    linear_grid grid = {lattice_divide_up(rows, block), 1};
    if (step->threads > 1) {
        /* a few tasks a thread even out the ends; with few rows, longer runs of panels stream better */
        const int64_t wanted = (rows <= FEW_ROWS ? 2 : 4) * step->threads;
        grid.column_groups = lattice_divide_up(wanted, grid.row_blocks);
        const int64_t most = lattice_divide_up(panels, 2);
        if (grid.column_groups > most)
            grid.column_groups = most;
    }
    return grid;
}

static int64_t linear_tasks(const lattice_op *op, const lattice_step *step)
{
    const linear_grid grid = linear_cut(op, step);
    return grid.row_blocks * grid.column_groups;
}

typedef struct {
    const lattice_op *op;
    const lattice_step *step;
    int64_t first_row, first_panel;
} linear_context;

LATTICE_INLINE f32x16 linear_epilogue(const lattice_op *op, f32x16 value, f32x16 bias, f32x16 residual)
{
    if (op->bias != NULL)
        value = f32x16_add(value, bias);
    value = activate(op->activation, value);
    if (op->residual.slot >= 0)
        value = f32x16_add(value, residual);
    return value;
}

LATTICE_INLINE void linear_store(const void *opaque, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                                 const float *c)
{
    const linear_context *context = opaque;
    const lattice_op *op = context->op;
    const int has_residual = op->residual.slot >= 0;
    for (int64_t p = 0; p < panels; p++) {
        const int64_t column = (context->first_panel + panel + p) * LATTICE_PANEL;
        const int64_t width = op->n - column;
        f32x16 bias = f32x16_zero(), residual = f32x16_zero();
        if (op->bias != NULL)
            bias = width >= 16 ? f32x16_load(op->bias + column) : f32x16_load_tail(op->bias + column, width);
        for (int64_t r = 0; r < rows; r++) {
            const f32x16 value = f32x16_load(c + (r * panels + p) * LATTICE_PANEL);
            const int64_t global = context->first_row + row + r;
            float *y = lattice_row(context->step, &op->output, global) + column;
            const float *add = has_residual ? lattice_row(context->step, &op->residual, global) + column : NULL;
            if (width >= 16) {
                if (has_residual)
                    residual = f32x16_load(add);
                f32x16_store(y, linear_epilogue(op, value, bias, residual));
            } else {
                if (has_residual)
                    residual = f32x16_load_tail(add, width);
                f32x16_store_tail(y, linear_epilogue(op, value, bias, residual), width);
            }
        }
    }
}

static void linear_run(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    (void)tasks;
    const linear_grid grid = linear_cut(op, step);
    int64_t row, row_end, panel, panel_end;
    task_rows(lattice_rows(op, step), task / grid.column_groups, grid.row_blocks, &row, &row_end);
    task_rows(lattice_divide_up(op->n, LATTICE_PANEL), task % grid.column_groups, grid.column_groups, &panel, &panel_end);
    if (row == row_end || panel == panel_end)
        return;
    const linear_context context = {op, step, row, panel};
    const int64_t panel_stride = op->k * LATTICE_PANEL;
    gemm(lattice_row(step, &op->input[0], row), op->input[0].stride, row_end - row, op->weight + panel * panel_stride,
         panel_stride, panel_end - panel, op->k, linear_store, &context);
}

#endif
