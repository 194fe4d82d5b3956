/* y = activation(x W^T + bias), or y = x W^T + bias + residual, by the GEMM of gemm.h: cut into tasks here.
 *
 * What is fused applies exactly the operations that the unfused ops would, in the same order, so fusing changes no bit.
 */
#ifndef LATTICE_LINEAR_H
#define LATTICE_LINEAR_H

#include "linear/gemm.h"
#if defined(LATTICE_ISA_AVX512)
#include "linear/gemm_packed.h"
#endif

typedef struct {
    int64_t row_blocks, column_groups;
} linear_grid;

/* How a linear is cut: blocks of rows times groups of panels. */
LATTICE_INLINE linear_grid linear_cut(const lattice_op *op, const lattice_step *step)
{
    const lattice_tile_sizes *sizes = step->sizes;
    const int64_t rows = lattice_rows(op, step), panels = lattice_divide_up(op->n, LATTICE_PANEL);
    int64_t block = sizes->linear_block_bytes / (op->k * (int64_t)sizeof(float));
    block = block < 4 * TILE_ROWS ? 4 * TILE_ROWS : block / TILE_ROWS * TILE_ROWS;
    linear_grid grid = {lattice_divide_up(rows, block), 1};
    if (step->threads == 1 || rows == 0)
        return grid;
    int64_t most = lattice_divide_up(panels, 2); /* groups of columns */
#if defined(LATTICE_ISA_AVX512)
    if (op->linear.weight_type == LATTICE_WEIGHT_FLOAT32 && rows > sizes->linear_few_rows) {
        /* every task packs the rows it multiplies: rather more blocks of rows than groups of columns */
        const int64_t most_blocks = rows / sizes->linear_few_rows;
        const int64_t blocks = most_blocks < 2 * step->threads ? most_blocks : 2 * step->threads;
        grid.row_blocks = max_of(grid.row_blocks, blocks);
        const int64_t packing = max_of(panels / sizes->linear_packing_panels, lattice_divide_up(step->threads, grid.row_blocks));
        most = packing < most ? packing : most;
    }
#endif
    if (grid.row_blocks > step->threads) /* as many for each thread */
        grid.row_blocks = lattice_round_up(grid.row_blocks, step->threads);
    /* a few tasks a thread even out the ends; with few rows, longer runs of panels stream better */
    const int64_t wanted = (rows <= sizes->linear_few_rows ? sizes->linear_few_rows_tasks : sizes->linear_tasks) * step->threads;
    grid.column_groups = lattice_divide_up(wanted, grid.row_blocks);
    if (grid.column_groups > most)
        grid.column_groups = most;
    return grid;
}

int64_t LATTICE_FN(linear_tasks)(const lattice_op *op, const lattice_step *step)
{
    const linear_grid grid = linear_cut(op, step);
    return grid.row_blocks * grid.column_groups;
}

void LATTICE_FN(linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread; /* of levels that pack no rows */
    (void)tasks;
    const linear_grid grid = linear_cut(op, step);
    int64_t row, row_end, panel, panel_end;
    task_rows(lattice_rows(op, step), task / grid.column_groups, grid.row_blocks, &row, &row_end);
    task_rows(lattice_divide_up(op->n, LATTICE_PANEL), task % grid.column_groups, grid.column_groups, &panel, &panel_end);
    if (row == row_end || panel == panel_end)
        return;
    const int64_t column = panel * LATTICE_PANEL, panel_stride = op->k * LATTICE_PANEL;
    const int has_residual = op->linear.residual.slot >= 0;
    const lattice_output output = {
        .y = lattice_row(step, &op->output, row) + column,
        .stride = op->output.stride,
        .columns = op->n - column,
        .bias = op->linear.bias != NULL ? op->linear.bias + column : NULL,
        .residual = has_residual ? lattice_row(step, &op->linear.residual, row) + column : NULL,
        .residual_stride = op->linear.residual.stride,
        .activation = op->linear.activation,
    };
    const float *x = lattice_row(step, &op->input[0], row);
    const int64_t x_stride = op->input[0].stride, rows = row_end - row, panels = panel_end - panel;
    switch (op->linear.weight_type) {
    case LATTICE_WEIGHT_BFLOAT16:
        gemm_bfloat16(x, x_stride, rows, (const uint16_t *)op->linear.weight + panel * panel_stride, panel_stride, panels, op->k,
                      &output, 1);
        return;
    case LATTICE_WEIGHT_FLOAT16:
        gemm_float16(x, x_stride, rows, (const uint16_t *)op->linear.weight + panel * panel_stride, panel_stride, panels, op->k,
                     &output, 1);
        return;
    default:
#if defined(LATTICE_ISA_AVX512)
        if (can_pack(rows) && panels >= step->sizes->linear_packing_panels) {
            gemm_packed(x, x_stride, rows, (const float *)op->linear.weight + panel * panel_stride, panel_stride, panels, op->k,
                        &output, (float *)(step->scratch + thread * step->scratch_bytes));
            return;
        }
#endif
        gemm_float32(x, x_stride, rows, (const float *)op->linear.weight + panel * panel_stride, panel_stride, panels, op->k,
                     &output, 1);
    }
}

#endif
