/* Linears with block-quantized or int8 weights over float activations, and with block-quantized weights over integers; of one
 * instruction set: this file is compiled once for each, apart from kernels.c for speed of building.
 *
 * With integer activations: block_tiles.h, and amx_blocks.h where there are many rows. With float ones a panel is widened to
 * float32 in the thread's scratch, and multiplied as any float32 panel is: the bits are those of a float32 model with the
 * weights' values, and no more than one panel a thread is ever float32.
 */
#include "kernel_functions.h"

#include "rows/activations.h"
#include "amx/amx_blocks.h"
#include "linear/block_values.h"
#include "linear/int8_linear.h"

#define BLOCK_BYTES (192 * 1024) /* of rows that a task keeps in L2 */
#define STREAMED_BYTES (4 << 20) /* of an output that leaves L2 before it is read: it need not be fetched to be written */

void LATTICE_FN(quantize_blocks_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
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
    int64_t unit;       /* panels that stay together */
    int64_t block_rows; /* of every block but the last; 0: rows are spread over the blocks */
} block_grid;

/* Whether a step's rows go through AMX. */
LATTICE_INLINE int uses_amx(const lattice_op *op, const lattice_step *step)
{
#if LATTICE_AMX_INT8
    return op->kernel == LATTICE_KERNEL_BLOCK_LINEAR && step->dot && step->amx && lattice_rows(op, step) >= AMX_BLOCK_LEAST_ROWS;
#else
    (void)op;
    (void)step;
    return 0;
#endif
}

/* How a linear is cut: blocks of rows times groups of panels. */
LATTICE_INLINE block_grid block_cut(const lattice_op *op, const lattice_step *step)
{
    const int64_t rows = lattice_rows(op, step), panels = lattice_divide_up(op->n, LATTICE_PANEL);
    int64_t block = BLOCK_BYTES / (op->input[0].stride * (int64_t)sizeof(float)) / BLOCK_TILE_ROWS * BLOCK_TILE_ROWS;
    if (block < 8 * BLOCK_TILE_ROWS)
        block = 8 * BLOCK_TILE_ROWS;
    block_grid grid = {lattice_divide_up(rows, block), 1, 1, 0};
    if (uses_amx(op, step)) {
        grid.row_blocks = lattice_divide_up(rows, lattice_amx_rows(op->input[0].stride));
        grid.block_rows = lattice_round_up(lattice_divide_up(rows, grid.row_blocks), LATTICE_PANEL);
        grid.unit = AMX_BLOCK_PANELS;
    }
    if (step->threads > 1) {
        if (rows <= BLOCK_STRIP_ROWS && panels >= 2 * BLOCK_STRIP_PANELS * step->threads)
            grid.unit = BLOCK_STRIP_PANELS;
        /* a few tasks a thread even out the ends */
        const int64_t units = lattice_divide_up(panels, grid.unit);
        grid.column_groups = lattice_divide_up(4 * step->threads, grid.row_blocks);
        if (grid.column_groups > units)
            grid.column_groups = units;
    }
    return grid;
}

int64_t LATTICE_FN(block_linear_tasks)(const lattice_op *op, const lattice_step *step)
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
    const int64_t rows = lattice_rows(op, step), row_block = task / grid.column_groups;
    task_rows(rows >> op->pairs, row_block, grid.row_blocks, &part.row, &part.row_end); /* both rows of a pair */
    part.row <<= op->pairs;
    part.row_end <<= op->pairs;
    if (grid.block_rows > 0) {
        part.row = row_block * grid.block_rows < rows ? row_block * grid.block_rows : rows;
        part.row_end = part.row + grid.block_rows < rows ? part.row + grid.block_rows : rows;
    }
    const int64_t panels = lattice_divide_up(op->n, LATTICE_PANEL);
    task_rows(lattice_divide_up(panels, grid.unit), task % grid.column_groups, grid.column_groups, &part.panel, &part.panel_end);
    part.panel *= grid.unit;
    part.panel_end = part.panel_end * grid.unit < panels ? part.panel_end * grid.unit : panels;
    return part;
}

/* Where the sums of rows from `row` on by a panel go. Both rows of a pair go to one. */
LATTICE_INLINE lattice_output panel_output(const lattice_op *op, const lattice_step *step, int64_t row, int64_t panel)
{
    const int64_t column = panel * LATTICE_PANEL;
    return (lattice_output){
        .y = lattice_row(step, &op->output, row >> op->pairs) + column,
        .stride = op->output.stride,
        .columns = op->n - column < LATTICE_PANEL ? op->n - column : LATTICE_PANEL,
        .bias = op->linear.bias != NULL ? op->linear.bias + column : NULL,
        .residual = op->linear.residual.slot >= 0 ? lattice_row(step, &op->linear.residual, row) + column : NULL,
        .residual_stride = op->linear.residual.stride,
        .activation = op->linear.activation,
    };
}

/* Stores first rows of pairs and adds second ones to them; `row` is the first of `rows`. */
static void finish_pairs(const float *sums, int64_t row, int64_t rows, const lattice_output *output)
{
    for (int64_t r = 0; r < rows; r++) {
        float *y = output->y + ((row + r) / 2 - row / 2) * output->stride;
        f32x16 value = f32x16_load(sums + r * LATTICE_PANEL);
        if ((row + r) % 2 != 0)
            value = f32x16_add(load_part(y, 0, output->columns), value);
        store_part(y, 0, output->columns, value);
    }
}

static void finish_sums(const lattice_op *op, const float *sums, int64_t row, int64_t rows, const lattice_output *output)
{
    const int64_t columns = output->columns;
    if (op->pairs) {
        finish_pairs(sums, row, rows, output);
        return;
    }
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

#if LATTICE_AMX_INT8
/* Asks for part `turn` of `turns` of the bytes of panels. */
LATTICE_INLINE void ask_for_panels(const uint8_t *panel, int64_t nbytes, int64_t turn, int64_t turns)
{
    int64_t first, end;
    task_rows(lattice_divide_up(nbytes, 64), turn, turns, &first, &end);
    for (; first < end; first++)
        __builtin_prefetch(panel + 64 * first, 0, 2);
}

/* Asks for the memory that sums are going to be written to. */
LATTICE_INLINE void ask_for_output(const lattice_output *output, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        __builtin_prefetch(output->y + r * output->stride, 1, 3);
}

/* Whether sums are stored past the caches: of a large output, of nothing but sums, in whole lines of memory. */
LATTICE_INLINE int streams_output(const lattice_op *op, const lattice_step *step)
{
    const int64_t row_bytes = op->output.stride * (int64_t)sizeof(float);
    const int only_sums = !op->pairs && op->linear.bias == NULL && op->linear.residual.slot < 0 &&
                          op->linear.activation == LATTICE_ACTIVATION_NONE;
    return only_sums && lattice_rows(op, step) * op->n * (int64_t)sizeof(float) >= STREAMED_BYTES &&
           ((uintptr_t)lattice_row(step, &op->output, 0) | (uintptr_t)row_bytes) % 64 == 0 && op->n % LATTICE_PANEL == 0;
}

/* Sixteen rows of panels that lie side by side. Such stores wait for no others: a fence follows the last one. */
LATTICE_INLINE void stream_rows(const float *sums, int64_t panels, float *y, int64_t stride)
{
    for (int64_t r = 0; r < AMX_ROWS; r++)
        for (int64_t p = 0; p < panels; p++) {
            const f32x16 value = f32x16_load(sums + p * PRODUCT_SUMS + r * LATTICE_PANEL);
#if defined(LATTICE_EMULATE_AVX512)
            f32x16_store(y + r * stride + p * LATTICE_PANEL, value);
#else
            _mm512_stream_ps(y + r * stride + p * LATTICE_PANEL, value);
#endif
        }
}

/* Which rows lie laid out at the beginning of a thread's scratch: the next task of the same op may find its own there. Other ops
 * write over it, or leave the number of a step that is over. Rows are told apart by where they lie, as those of an op that is
 * grouped by experts begin anew with each. */
typedef struct {
    int64_t serial, number;
    const float *x;
} laid_out;

static void multiply_by_amx(const lattice_op *op, const lattice_step *step, const block_task *part, char *scratch)
{
    const int format = op->linear.weight_type - LATTICE_WEIGHT_BLOCKS;
    const int64_t stride = op->input[0].stride, panel_bytes = lattice_block_panel_bytes(format, op->k);
    const float *x = lattice_row(step, &op->input[0], part->row);
    amx_block_operands operands = {.blocks = op->k / LATTICE_BLOCK, .rows = part->row_end - part->row};
    operands.row_tiles = lattice_divide_up(operands.rows, AMX_ROWS);
    laid_out *before = (laid_out *)scratch;
    operands.of_columns = (block_scales *)(scratch + 64);
    operands.of_rows = (row_scales *)(operands.of_columns + AMX_BLOCK_PANELS * operands.blocks);
    operands.rest = (int8_t *)(operands.of_rows + operands.row_tiles * operands.blocks);
    operands.lines = operands.rest + AMX_ROWS * op->k;
    const laid_out now = {step->serial, op->number, x};
    if (before->serial != now.serial || before->number != now.number || before->x != now.x)
        amx_lay_out_rows(&operands, format, x, stride, op->k);
    *before = now;
    amx_shape_blocks();
    const int streamed = streams_output(op, step);
    float sums[AMX_BLOCK_PANELS * PRODUCT_SUMS] __attribute__((aligned(64)));
    for (int64_t panel = part->panel, panels; panel < part->panel_end; panel += panels) {
        const int64_t left_panels = part->panel_end - panel;
        panels = left_panels < AMX_BLOCK_PANELS ? left_panels : AMX_BLOCK_PANELS;
        const int64_t next = left_panels - panels < AMX_BLOCK_PANELS ? left_panels - panels : AMX_BLOCK_PANELS;
        const uint8_t *weights = (const uint8_t *)op->linear.weight + panel * panel_bytes;
        for (int64_t p = 0; p < panels; p++)
            amx_unpack_panel(format, weights + p * panel_bytes, p, &operands);
        for (int64_t tile = 0; tile < operands.row_tiles; tile++) {
            const int64_t first = tile * AMX_ROWS, left = operands.rows - first;
            const row_scales *rows = operands.of_rows + tile * operands.blocks;
            ask_for_panels(weights + panels * panel_bytes, next * panel_bytes, tile, operands.row_tiles);
            const int whole = left >= AMX_ROWS;
            const int8_t *q = whole ? block_row_at(x + first * stride, op->k).q : operands.rest;
            if (streamed && whole) {
                for (int64_t p = 0; p < panels; p++)
                    amx_multiply_row_tile(format, p, &operands, q, stride * (int64_t)sizeof(float), rows, sums + p * PRODUCT_SUMS);
                stream_rows(sums, panels, lattice_row(step, &op->output, part->row + first) + panel * LATTICE_PANEL,
                            op->output.stride);
                continue;
            }
            for (int64_t p = 0; p < panels; p++) {
                const lattice_output output = panel_output(op, step, part->row + first, panel + p);
                ask_for_output(&output, (whole ? AMX_ROWS : left) >> op->pairs);
                amx_multiply_row_tile(format, p, &operands, q, whole ? stride * (int64_t)sizeof(float) : op->k, rows, sums);
                finish_sums(op, sums, part->row + first, whole ? AMX_ROWS : left, &output);
            }
        }
    }
    amx_release();
    if (streamed)
        _mm_sfence(); /* before others learn that the task is done */
}
#endif

void LATTICE_FN(block_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                          int thread)
{
    (void)tasks;
    const block_task part = task_part(op, step, task);
#if LATTICE_AMX_INT8
    if (uses_amx(op, step)) {
        if (part.row < part.row_end && part.panel < part.panel_end)
            multiply_by_amx(op, step, &part, step->scratch + thread * step->scratch_bytes);
        return;
    }
#else
    (void)thread;
#endif
    const int format = op->linear.weight_type - LATTICE_WEIGHT_BLOCKS;
    const block_tile_set *set = &plain_block_tiles[format];
#if !defined(LATTICE_ISA_BASELINE)
    if (step->dot)
        set = &dot_block_tiles[format];
#endif
    const int64_t panel_bytes = lattice_block_panel_bytes(format, op->k), rows = part.row_end - part.row;
    const int64_t stride = op->input[0].stride;
    if (rows == 0)
        return;
    const float *x = lattice_row(step, &op->input[0], part.row);
    float sums[(BLOCK_TILE_ROWS * BLOCK_WIDE_PANELS + BLOCK_STRIP_ROWS * BLOCK_STRIP_PANELS) * LATTICE_PANEL] __attribute__((aligned(64)));
    int64_t panel = part.panel;
    for (; rows <= BLOCK_STRIP_ROWS && panel + BLOCK_STRIP_PANELS <= part.panel_end; panel += BLOCK_STRIP_PANELS) {
        set->strips[rows - 1]((const uint8_t *)op->linear.weight + panel * panel_bytes, op->k, x, stride, sums);
        for (int p = 0; p < BLOCK_STRIP_PANELS; p++) {
            const lattice_output output = panel_output(op, step, part.row, panel + p);
            finish_sums(op, sums + p * rows * LATTICE_PANEL, part.row, rows, &output);
        }
    }
    for (int64_t panels; panel < part.panel_end; panel += panels) {
        const uint8_t *weights = (const uint8_t *)op->linear.weight + panel * panel_bytes;
        panels = rows >= BLOCK_TILE_ROWS && panel + BLOCK_WIDE_PANELS <= part.panel_end ? BLOCK_WIDE_PANELS : 1;
        int64_t first = 0;
        for (; panels > 1 && first + BLOCK_TILE_ROWS <= rows; first += BLOCK_TILE_ROWS) {
            set->wide(weights, op->k, x + first * stride, stride, sums);
            for (int p = 0; p < panels; p++) {
                const lattice_output output = panel_output(op, step, part.row + first, panel + p);
                finish_sums(op, sums + p * BLOCK_TILE_ROWS * LATTICE_PANEL, part.row + first, BLOCK_TILE_ROWS, &output);
            }
        }
        for (int64_t height; first < rows; first += height) {
            height = rows - first >= BLOCK_TILE_ROWS ? BLOCK_TILE_ROWS : rows - first == 1 ? 1 : 2;
            for (int p = 0; p < panels; p++) {
                const lattice_output output = panel_output(op, step, part.row + first, panel + p);
                set->tiles[height - 1](weights + p * panel_bytes, op->k, x + first * stride, stride, sums);
                finish_sums(op, sums, part.row + first, height, &output);
            }
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

void LATTICE_FN(dequantized_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                                int thread)
{
    (void)tasks;
    const block_task part = task_part(op, step, task);
    if (part.row == part.row_end)
        return;
    float *widened = (float *)(step->scratch + thread * step->scratch_bytes);
    const float *x = lattice_row(step, &op->input[0], part.row);
    for (int64_t panel = part.panel; panel < part.panel_end; panel++) {
        if (op->linear.weight_type == LATTICE_WEIGHT_INT8) {
            widen_int8_panel((const char *)op->linear.weight + panel * lattice_int8_panel_bytes(op->k), op->k, widened);
        } else {
            const int format = op->linear.weight_type - LATTICE_WEIGHT_BLOCKS;
            dequantize_panel(format, (const uint8_t *)op->linear.weight + panel * lattice_block_panel_bytes(format, op->k), op->k,
                             widened);
        }
        const lattice_output output = panel_output(op, step, part.row, panel);
        LATTICE_FN(lattice_multiply_panel)(x, op->input[0].stride, part.row_end - part.row, widened, op->k, &output);
    }
}

void LATTICE_FN(lattice_block_table_row)(const lattice_op *op, int64_t id, const float *residual, float *y)
{
    const int format = op->embed.weight_type - LATTICE_WEIGHT_BLOCKS;
    const uint8_t *panel = (const uint8_t *)op->embed.table + id / LATTICE_PANEL * lattice_block_panel_bytes(format, op->n);
    dequantize_column(format, panel, (int)(id % LATTICE_PANEL), op->n, residual, y);
}
