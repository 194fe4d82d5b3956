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

/* Where a tile goes: the first row and column of the task's part of the output, and of the residual that is added. */
typedef struct {
    float *output;
    int64_t output_stride;
    const float *residual;
    int64_t residual_stride;
    const float *bias;
    int64_t columns; /* of the output that are left from the first one on */
} linear_target;

LATTICE_INLINE f32x16 linear_finish(f32x16 value, f32x16 bias, const float *residual, int64_t width, int activation,
                                    int has_bias, int has_residual)
{
    if (has_bias)
        value = f32x16_add(value, bias);
    value = activate(activation, value);
    if (has_residual)
        value = f32x16_add(value, width >= 16 ? f32x16_load(residual) : f32x16_load_tail(residual, width));
    return value;
}

/* The epilogue of one tile. The last three arguments are constants of each caller, so that nothing is decided in the loops. */
LATTICE_INLINE void linear_store(const linear_target *target, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                                 const float *c, int activation, int has_bias, int has_residual)
{
    for (int64_t p = 0; p < panels; p++) {
        const int64_t column = (panel + p) * LATTICE_PANEL, width = target->columns - column;
        float *y = target->output + row * target->output_stride + column;
        const float *add = has_residual ? target->residual + row * target->residual_stride + column : NULL;
        const float *sum = c + p * LATTICE_PANEL;
        if (width >= 16) {
            const f32x16 bias = has_bias ? f32x16_load(target->bias + column) : f32x16_zero();
            for (int64_t r = 0; r < rows; r++) {
                f32x16_store(y, linear_finish(f32x16_load(sum), bias, add, 16, activation, has_bias, has_residual));
                y += target->output_stride;
                sum += panels * LATTICE_PANEL;
                if (has_residual)
                    add += target->residual_stride;
            }
            continue;
        }
        const f32x16 bias = has_bias ? f32x16_load_tail(target->bias + column, width) : f32x16_zero();
        for (int64_t r = 0; r < rows; r++) {
            const f32x16 value = linear_finish(f32x16_load(sum + r * panels * LATTICE_PANEL), bias,
                                               has_residual ? add + r * target->residual_stride : NULL, width, activation,
                                               has_bias, has_residual);
            f32x16_store_tail(y + r * target->output_stride, value, width);
        }
    }
}

#define LINEAR_STORE(name, activation, has_bias, has_residual)                                                         \
    static void name(const void *target, int64_t row, int64_t rows, int64_t panel, int64_t panels, const float *c)     \
    {                                                                                                                  \
        linear_store(target, row, rows, panel, panels, c, activation, has_bias, has_residual);                         \
    }
#define LINEAR_STORES(suffix, activation)                                                                              \
    LINEAR_STORE(store_##suffix, activation, 0, 0)                                                                     \
    LINEAR_STORE(store_##suffix##_residual, activation, 0, 1)                                                          \
    LINEAR_STORE(store_##suffix##_bias, activation, 1, 0)                                                              \
    LINEAR_STORE(store_##suffix##_bias_residual, activation, 1, 1)
#define LINEAR_ROW(suffix)                                                                                             \
    {                                                                                                                  \
        {store_##suffix, store_##suffix##_residual}, { store_##suffix##_bias, store_##suffix##_bias_residual }         \
    }
LINEAR_STORES(plain, LATTICE_ACTIVATION_NONE)
LINEAR_STORES(gelu_erf, LATTICE_ACTIVATION_GELU_ERF)
LINEAR_STORES(gelu_tanh, LATTICE_ACTIVATION_GELU_TANH)
LINEAR_STORES(relu, LATTICE_ACTIVATION_RELU)
LINEAR_STORES(silu, LATTICE_ACTIVATION_SILU)
LINEAR_STORES(tanh, LATTICE_ACTIVATION_TANH)
/* by activation, bias, residual */
static const lattice_tile_store linear_stores[][2][2] = {LINEAR_ROW(plain), LINEAR_ROW(gelu_erf), LINEAR_ROW(gelu_tanh),
                                                         LINEAR_ROW(relu),  LINEAR_ROW(silu),     LINEAR_ROW(tanh)};

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
    const int64_t column = panel * LATTICE_PANEL, panel_stride = op->k * LATTICE_PANEL;
    const int has_residual = op->residual.slot >= 0;
    const linear_target target = {
        .output = lattice_row(step, &op->output, row) + column,
        .output_stride = op->output.stride,
        .residual = has_residual ? lattice_row(step, &op->residual, row) + column : NULL,
        .residual_stride = op->residual.stride,
        .bias = op->bias != NULL ? op->bias + column : NULL,
        .columns = op->n - column,
    };
    gemm(lattice_row(step, &op->input[0], row), op->input[0].stride, row_end - row, op->weight + panel * panel_stride,
         panel_stride, panel_end - panel, op->k, linear_stores[op->activation][op->bias != NULL][has_residual], &target);
}

#endif
