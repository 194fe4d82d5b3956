/* Linears with bfloat16 weights whose rows are rounded to bfloat16: compiled once for each instruction set.
 *
 *     y[t, n] = activation(sum over k of x[t, k] * w[n, k] + bias[n]) + residual       x, w bfloat16, the sum float32
 *
 * Where the next reader is such a linear too, y is written as rows of bfloat16 and as nothing else. The sum is one chain in
 * ascending k (bfloat16_tiles.h, amx_bfloat16.h), whatever the number of rows: a row's result depends on that row
 * only. Which instruction makes it is decided once a program, as two round in different places.
 */
#include "rows/activations.h"
#include "amx/amx_bfloat16.h"
#include "linear/bfloat16_tiles.h"

#define MOST_ROWS 32 /* of a tile, of any body */
#define MOST_PANELS 4

typedef struct {
    int64_t row_blocks, column_groups;
} bfloat16_grid;

/* How a linear is cut: blocks of rows times groups of panels. */
LATTICE_INLINE bfloat16_grid bfloat16_cut(const lattice_op *op, const lattice_step *step)
{
    const int64_t rows = lattice_rows(op, step), panels = lattice_divide_up(op->n, LATTICE_PANEL);
    int64_t block = step->sizes->bfloat16_block_bytes / (op->input[0].stride * (int64_t)sizeof(float));
    block = block < 2 * MOST_ROWS ? 2 * MOST_ROWS : block / MOST_ROWS * MOST_ROWS;
    bfloat16_grid grid = {lattice_divide_up(rows, block), 1};
    if (step->threads > 1 && rows > 0) {
        grid.column_groups = lattice_divide_up(step->sizes->bfloat16_tasks * step->threads, grid.row_blocks);
        const int64_t most = lattice_divide_up(panels, MOST_PANELS);
        if (grid.column_groups > most)
            grid.column_groups = most;
    }
    return grid;
}

int64_t LATTICE_FN(bfloat16_linear_tasks)(const lattice_op *op, const lattice_step *step)
{
    const bfloat16_grid grid = bfloat16_cut(op, step);
    return grid.row_blocks * grid.column_groups;
}

/* Where a block of sums goes: floats, or rows of bfloat16 (`rounded`), both from its first row and column on. */
typedef struct {
    lattice_output to;
    uint16_t *rounded;
    int64_t rounded_stride; /* in elements */
} bfloat16_output;

/* Sums of `count` rows, `stride` floats apart, and of the panel that begins with column `i`, to where they go. */
LATTICE_INLINE void finish_rows(int count, int activation, int is_rounded, const float *sums, int64_t stride, int64_t row,
                                int64_t i, int64_t columns, f32x16 bias, const bfloat16_output *output)
{
    const lattice_output *to = &output->to;
    f32x16 value[LATTICE_SIDE_BY_SIDE];
    for (int j = 0; j < count; j++) {
        value[j] = f32x16_load(sums + (row + j) * stride + i);
        if (to->bias != NULL)
            value[j] = f32x16_add(value[j], bias);
    }
    activate_each(activation, count, value);
    for (int j = 0; j < count; j++) {
        if (to->residual != NULL)
            value[j] = f32x16_add(value[j], load_part(to->residual + (row + j) * to->residual_stride, i, columns));
        if (is_rounded)
            store_bfloat16(output->rounded + (row + j) * output->rounded_stride + i, value[j]);
        else
            store_part(to->y + (row + j) * to->stride, i, columns, value[j]);
    }
}

/* Sums [rows][columns], `stride` floats apart, to where they go. */
LATTICE_INLINE void finish_by(int activation, int is_rounded, const float *sums, int64_t stride, int64_t rows,
                              int64_t columns, const bfloat16_output *output)
{
    const int together = activated_together(activation);
    for (int64_t i = 0; i < columns; i += LATTICE_PANEL) {
        const f32x16 bias = output->to.bias != NULL ? load_part(output->to.bias, i, columns) : f32x16_zero();
        int64_t row = 0;
        for (; row + together <= rows; row += together)
            finish_rows(together, activation, is_rounded, sums, stride, row, i, columns, bias, output);
        for (; row < rows; row++)
            finish_rows(1, activation, is_rounded, sums, stride, row, i, columns, bias, output);
    }
}

/* One loop for each activation, so that nothing is decided in it. */
static void finish(const float *sums, int64_t stride, int64_t rows, int64_t columns, const bfloat16_output *output)
{
    switch (output->to.activation) {
#define ONE_ACTIVATION(id, name)                                                                                       \
    case id:                                                                                                           \
        if (output->rounded != NULL)                                                                                   \
            finish_by(id, 1, sums, stride, rows, columns, output);                                                     \
        else                                                                                                           \
            finish_by(id, 0, sums, stride, rows, columns, output);                                                     \
        return;
        LATTICE_ACTIVATIONS(ONE_ACTIVATION)
#undef ONE_ACTIVATION
    }
}

/* What a task multiplies: rows [row, row_end) by panels [panel, panel_end). */
typedef struct {
    const lattice_op *op;
    const lattice_step *step;
    int64_t row, row_end, panel, panel_end;
} bfloat16_part;

/* Finishes the sums of rows from `row` and panels from `panel` on. */
LATTICE_INLINE void finish_part(const bfloat16_part *part, const float *sums, int64_t row, int64_t rows, int64_t panel,
                                int64_t panels)
{
    const lattice_op *op = part->op;
    const int64_t column = panel * LATTICE_PANEL, width = panels * LATTICE_PANEL;
    bfloat16_output output = {.to = {
                                  .stride = op->output.stride,
                                  .bias = op->linear.bias != NULL ? op->linear.bias + column : NULL,
                                  .residual_stride = op->linear.residual.stride,
                                  .activation = op->linear.activation,
                              }};
    if (op->linear.residual.slot >= 0)
        output.to.residual = lattice_row(part->step, &op->linear.residual, row) + column;
    if (op->rounded.slot >= 0) {
        output.rounded = bfloat16_row(part->step, &op->rounded, row) + column;
        output.rounded_stride = 2 * op->rounded.stride;
    } else {
        output.to.y = lattice_row(part->step, &op->output, row) + column;
    }
    finish(sums, width, rows, op->n - column < width ? op->n - column : width, &output);
}

/* Tile by tile: each panel, or two, by all rows. */
static void multiply_by_dots(const bfloat16_part *part)
{
    const lattice_op *op = part->op;
    const int64_t stride = 2 * op->input[0].stride, depth = lattice_bfloat16_depth(op->k);
    const int64_t panel_elements = depth * LATTICE_PANEL;
#if defined(BFLOAT16_DOT)
    const int dots = part->step->bfloat16 == LATTICE_BFLOAT16_DOT;
    const int64_t most = dots ? BFLOAT16_TILE_ROWS : 4;
#else
    const int64_t most = 4;
#endif
    const int64_t rows = part->row_end - part->row, row_tiles = lattice_divide_up(rows, most);
    float sums[BFLOAT16_TILE_ROWS * BFLOAT16_TILE_PANELS * LATTICE_PANEL] __attribute__((aligned(64)));
    for (int64_t panel = part->panel; panel < part->panel_end;) {
        const uint16_t *weights = (const uint16_t *)op->linear.weight + panel * panel_elements;
        int64_t width = 1;
#if defined(BFLOAT16_DOT)
        if (dots && panel + 2 <= part->panel_end && dot_tiles[lattice_divide_up(rows, row_tiles) - 1][1] != NULL)
            width = 2;
#endif
        for (int64_t t = 0; t < row_tiles; t++) {
            int64_t first, end;
            task_rows(rows, t, row_tiles, &first, &end);
            bfloat16_tile tile = widened_tiles[(end - first - 1) & 3];
#if defined(BFLOAT16_DOT)
            if (dots)
                tile = dot_tiles[end - first - 1][width - 1];
#endif
            tile(bfloat16_row(part->step, &op->input[0], part->row + first), stride, weights, panel_elements, depth / 2,
                 sums);
            finish_part(part, sums, part->row + first, end - first, panel, width);
        }
        panel += width;
    }
}

#if defined(LATTICE_AMX_BFLOAT16)
/* Panels in twos, or in fours where the rows are few, by blocks of up to 32 rows; the last block has other shapes. */
static void multiply_by_amx(const bfloat16_part *part)
{
    const lattice_op *op = part->op;
    const int64_t stride = op->input[0].stride * (int64_t)sizeof(float), panel_bytes = lattice_bfloat16_panel_bytes(op->k);
    const int64_t steps = lattice_bfloat16_depth(op->k) / LATTICE_BFLOAT16_DEPTH;
    float sums[AMX_MOST_ROWS * MOST_PANELS * LATTICE_PANEL] __attribute__((aligned(64)));
    for (int64_t row = part->row; row < part->row_end;) {
        const int64_t left = part->row_end - row, rows = left < AMX_MOST_ROWS ? left : AMX_MOST_ROWS;
        const int64_t end = row + left / rows * rows;
        amx_shape_bfloat16(rows);
        const int64_t most = rows > 16 ? 2 : 4;
        for (int64_t panel = part->panel; panel < part->panel_end; panel += most) {
            const int64_t panels = part->panel_end - panel < most ? part->panel_end - panel : most;
            const char *weights = (const char *)op->linear.weight + panel * panel_bytes;
            for (int64_t first = row; first < end; first += rows) {
                amx_multiply_bfloat16(bfloat16_row(part->step, &op->input[0], first), stride, rows, weights, panel_bytes, panels,
                             steps, sums, panels * LATTICE_PANEL * (int64_t)sizeof(float));
                finish_part(part, sums, first, rows, panel, panels);
            }
        }
        row = end;
    }
    amx_release();
}
#endif

static void multiply_part(const bfloat16_part *part)
{
    if (part->row == part->row_end || part->panel == part->panel_end)
        return;
#if defined(LATTICE_AMX_BFLOAT16)
    if (part->step->bfloat16 == LATTICE_BFLOAT16_AMX) {
        multiply_by_amx(part);
        return;
    }
#endif
    multiply_by_dots(part);
}

void LATTICE_FN(lattice_multiply_pairs)(const lattice_op *op, const lattice_step *step)
{
    const bfloat16_grid grid = bfloat16_cut(op, step);
    for (int64_t block = 0; block < grid.row_blocks; block++) {
        bfloat16_part part = {.op = op, .step = step, .panel_end = lattice_divide_up(op->n, LATTICE_PANEL)};
        task_rows(lattice_rows(op, step), block, grid.row_blocks, &part.row, &part.row_end);
        multiply_part(&part);
    }
}

void LATTICE_FN(bfloat16_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                             int thread)
{
    (void)thread;
    (void)tasks;
    const bfloat16_grid grid = bfloat16_cut(op, step);
    bfloat16_part part = {.op = op, .step = step};
    task_rows(lattice_rows(op, step), task / grid.column_groups, grid.row_blocks, &part.row, &part.row_end);
    task_rows(lattice_divide_up(op->n, LATTICE_PANEL), task % grid.column_groups, grid.column_groups, &part.panel,
              &part.panel_end);
    multiply_part(&part);
}
