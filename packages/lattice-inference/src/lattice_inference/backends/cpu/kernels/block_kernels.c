/* Linears with block-quantized or int8 weights over float activations, and with block-quantized weights over integers; of one
 * instruction set: this file is compiled once for each, apart from kernels.c for speed of building.
 *
 * With integer activations: block_tiles.h. With float ones a panel is widened to float32 in the thread's scratch, and
 * multiplied as any float32 panel is: the bits are those of a float32 model with the weights' values, and no more than one
 * panel a thread is ever float32.
 */
#include "block_kernels.h"

#include "activations.h"
#include "block_values.h"
#include "int8_linear.h"

#define BLOCK_BYTES (192 * 1024) /* of rows that a task keeps in L2 */

int64_t LATTICE_FN(lattice_quantize_blocks_tasks)(const lattice_op *op, const lattice_step *step)
{
    return row_tasks(op, step);
}

void LATTICE_FN(lattice_quantize_blocks_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                             int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++)
        quantize_block_row(lattice_row(step, &op->input[0], row), op->k, lattice_row(step, &op->output, row));
}

typedef struct {
    int64_t row_blocks, column_groups;
    int64_t unit; /* panels that stay together */
} block_grid;

/* How a linear is cut: blocks of rows times groups of panels. */
LATTICE_INLINE block_grid block_cut(const lattice_op *op, const lattice_step *step)
{
    const int64_t rows = lattice_rows(op, step), panels = lattice_divide_up(op->n, LATTICE_PANEL);
    int64_t block = BLOCK_BYTES / (op->input[0].stride * (int64_t)sizeof(float)) / BLOCK_TILE_ROWS * BLOCK_TILE_ROWS;
    if (block < 8 * BLOCK_TILE_ROWS)
        block = 8 * BLOCK_TILE_ROWS;
    block_grid grid = {lattice_divide_up(rows, block), 1, 1};
    if (step->threads > 1) {
        if (rows == 1 && panels >= 2 * BLOCK_STRIP_PANELS * step->threads)
            grid.unit = BLOCK_STRIP_PANELS;
        /* a few tasks a thread even out the ends */
        const int64_t units = lattice_divide_up(panels, grid.unit);
        grid.column_groups = lattice_divide_up(4 * step->threads, grid.row_blocks);
        if (grid.column_groups > units)
            grid.column_groups = units;
    }
    return grid;
}

int64_t LATTICE_FN(lattice_block_linear_tasks)(const lattice_op *op, const lattice_step *step)
{
    const block_grid grid = block_cut(op, step);
    return grid.row_blocks * grid.column_groups;
}

/* The part of a linear that a task works on. */
typedef struct {
    int64_t row, row_end, panel, panel_end;
} block_task;

LATTICE_INLINE block_task task_part(const lattice_op *op, const lattice_step *step, int64_t task)
{
    const block_grid grid = block_cut(op, step);
    block_task part;
    task_rows(lattice_rows(op, step), task / grid.column_groups, grid.row_blocks, &part.row, &part.row_end);
    const int64_t panels = lattice_divide_up(op->n, LATTICE_PANEL);
    task_rows(lattice_divide_up(panels, grid.unit), task % grid.column_groups, grid.column_groups, &part.panel, &part.panel_end);
    part.panel *= grid.unit;
    part.panel_end = part.panel_end * grid.unit < panels ? part.panel_end * grid.unit : panels;
    return part;
}

/* Where the sums of rows from `row` on by a panel go. */
LATTICE_INLINE lattice_output panel_output(const lattice_op *op, const lattice_step *step, int64_t row, int64_t panel)
{
    const int64_t column = panel * LATTICE_PANEL;
    return (lattice_output){
        .y = lattice_row(step, &op->output, row) + column,
        .stride = op->output.stride,
        .columns = op->n - column < LATTICE_PANEL ? op->n - column : LATTICE_PANEL,
        .bias = op->bias != NULL ? op->bias + column : NULL,
        .residual = op->residual.slot >= 0 ? lattice_row(step, &op->residual, row) + column : NULL,
        .residual_stride = op->residual.stride,
        .activation = op->activation,
    };
}

static void finish_sums(const float *sums, int64_t rows, const lattice_output *output)
{
    const int64_t columns = output->columns;
    for (int64_t r = 0; r < rows; r++) {
        f32x16 value = f32x16_load(sums + r * LATTICE_PANEL);
        if (output->bias != NULL)
            value = f32x16_add(value, load_part(output->bias, 0, columns));
        if (output->residual != NULL)
            value = f32x16_add(value, load_part(output->residual + r * output->residual_stride, 0, columns));
        store_part(output->y + r * output->stride, 0, columns, value);
    }
    if (output->activation != LATTICE_ACTIVATION_NONE)
        activate_rows(output->activation, output->y, output->stride, output->y, output->stride, rows, columns);
}

void LATTICE_FN(lattice_block_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                          int thread)
{
    (void)thread;
    (void)tasks;
    const int format = op->weight_type - LATTICE_WEIGHT_BLOCKS;
    const block_tile_set *set = &plain_block_tiles[format];
#if !defined(LATTICE_ISA_BASELINE)
    if (step->dot)
        set = &dot_block_tiles[format];
#endif
    const block_task part = task_part(op, step, task);
    const int64_t panel_bytes = lattice_block_panel_bytes(format, op->k), rows = part.row_end - part.row;
    const int64_t stride = op->input[0].stride;
    if (rows == 0)
        return;
    const float *x = lattice_row(step, &op->input[0], part.row);
    float sums[(BLOCK_TILE_ROWS > BLOCK_STRIP_PANELS ? BLOCK_TILE_ROWS : BLOCK_STRIP_PANELS) * LATTICE_PANEL]
        __attribute__((aligned(64)));
    int64_t panel = part.panel;
    for (; rows == 1 && panel + BLOCK_STRIP_PANELS <= part.panel_end; panel += BLOCK_STRIP_PANELS) {
        set->strip((const uint8_t *)op->weight + panel * panel_bytes, op->k, x, stride, sums);
        for (int p = 0; p < BLOCK_STRIP_PANELS; p++) {
            const lattice_output output = panel_output(op, step, part.row, panel + p);
            finish_sums(sums + p * LATTICE_PANEL, 1, &output);
        }
    }
    for (; panel < part.panel_end; panel++) {
        const uint8_t *weights = (const uint8_t *)op->weight + panel * panel_bytes;
        for (int64_t first = 0, height; first < rows; first += height) {
            height = rows - first >= BLOCK_TILE_ROWS ? BLOCK_TILE_ROWS : rows - first == 1 ? 1 : 2;
            const lattice_output output = panel_output(op, step, part.row + first, panel);
            set->tiles[height - 1](weights, op->k, x + first * stride, stride, sums);
            finish_sums(sums, height, &output);
        }
    }
}

/* An int8 panel of int8_linear.h as float32 [k][16]: scale * integer. */
static void widen_int8_panel(const char *panel, int64_t k, float *y)
{
    const f32x16 scale = f32x16_load((const float *)panel);
    const int8_t *integers = (const int8_t *)panel + 2 * LATTICE_PANEL * 4;
    for (int64_t i = 0; i < k; i++) {
        int8_t step[LATTICE_PANEL];
        for (int c = 0; c < LATTICE_PANEL; c++)
            step[c] = integers[i / 4 * 64 + 4 * c + i % 4];
        f32x16_store(y + i * LATTICE_PANEL, f32x16_mul(f32x16_from_i32x16(i32x16_load_int8(step)), scale));
    }
}

void LATTICE_FN(lattice_dequantized_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                                int thread)
{
    (void)tasks;
    const block_task part = task_part(op, step, task);
    if (part.row == part.row_end)
        return;
    float *widened = (float *)(step->scratch + thread * step->scratch_bytes);
    const float *x = lattice_row(step, &op->input[0], part.row);
    for (int64_t panel = part.panel; panel < part.panel_end; panel++) {
        if (op->weight_type == LATTICE_WEIGHT_INT8) {
            widen_int8_panel((const char *)op->weight + panel * lattice_int8_panel_bytes(op->k), op->k, widened);
        } else {
            const int format = op->weight_type - LATTICE_WEIGHT_BLOCKS;
            dequantize_panel(format, (const uint8_t *)op->weight + panel * lattice_block_panel_bytes(format, op->k), op->k,
                             widened);
        }
        const lattice_output output = panel_output(op, step, part.row, panel);
        LATTICE_FN(lattice_multiply_panel)(x, op->input[0].stride, part.row_end - part.row, widened, op->k, &output);
    }
}

void LATTICE_FN(lattice_block_table_row)(const lattice_op *op, int64_t id, const float *residual, float *y)
{
    const int format = op->weight_type - LATTICE_WEIGHT_BLOCKS;
    const uint8_t *panel = (const uint8_t *)op->weight + id / LATTICE_PANEL * lattice_block_panel_bytes(format, op->k);
    dequantize_column(format, panel, (int)(id % LATTICE_PANEL), op->k, residual, y);
}
