/* Where tokens come in and go out: rows of an embedding table, pooling a sequence's rows into one, picking rows. */
#ifndef LATTICE_TOKENS_H
#define LATTICE_TOKENS_H

#include "kernel_functions.h"
#include "linear/int8_linear.h"
#include "lattice/half.h"
#include "lattice/simd_integer.h"
#include "rows/normalize.h"

/* The same as load_table from panels [row / 16][column][16]. */
static f32x16 load_packed(const lattice_op *op, int64_t id, int64_t i)
{
    const int64_t here = op->n - i < 16 ? op->n - i : 16;
    const int64_t first = (id / LATTICE_PANEL * op->n + i) * LATTICE_PANEL + id % LATTICE_PANEL;
    if (op->embed.weight_type == LATTICE_WEIGHT_FLOAT32) {
        float values[16] = {0};
        for (int64_t j = 0; j < here; j++)
            values[j] = ((const float *)op->embed.table)[first + j * LATTICE_PANEL];
        return f32x16_load(values);
    }
    uint16_t halves[16] = {0};
    for (int64_t j = 0; j < here; j++)
        halves[j] = ((const uint16_t *)op->embed.table)[first + j * LATTICE_PANEL];
    return op->embed.weight_type == LATTICE_WEIGHT_BFLOAT16 ? f32x16_load_bfloat16(halves) : f32x16_load_float16(halves);
}

/* Sixteen elements from `i` on of output `id` of an int8 linear, scale * integer: a table that shares a linear's panels. */
LATTICE_INLINE f32x16 load_int8_row(const void *panels, int64_t k, int64_t id, int64_t i)
{
    const char *panel = (const char *)panels + id / LATTICE_PANEL * lattice_int8_panel_bytes(k);
    const int64_t lane = id % LATTICE_PANEL;
    const int8_t *integers = (const int8_t *)panel + 2 * LATTICE_PANEL * 4 + i * LATTICE_PANEL + 4 * lane;
    int8_t part[16];
    for (int j = 0; j < 16; j++)
        part[j] = integers[j / 4 * 4 * LATTICE_PANEL + j % 4];
    const float scale = ((const float *)panel)[lane];
    return f32x16_mul(f32x16_from_i32x16(i32x16_load_int8(part)), f32x16_set1(scale));
}

/* Sixteen columns from `i` on of row `id` of an embedding's table, widened; zeros beyond its `n` columns. */
LATTICE_INLINE f32x16 load_table(const lattice_op *op, int64_t id, int64_t i)
{
    const int64_t n = op->n;
    if (op->embed.packed)
        return load_packed(op, id, i);
    if (op->embed.weight_type == LATTICE_WEIGHT_FLOAT32)
        return load_part((const float *)op->embed.table + id * n, i, n);
    if (op->embed.weight_type == LATTICE_WEIGHT_INT8)
        return load_int8_row(op->embed.table, n, id, i);
    const uint16_t *halves = (const uint16_t *)op->embed.table + id * n + i;
    uint16_t padded[16] = {0};
    if (n - i < 16)
        halves = memcpy(padded, halves, (size_t)(n - i) * sizeof(uint16_t));
    return op->embed.weight_type == LATTICE_WEIGHT_BFLOAT16 ? f32x16_load_bfloat16(halves) : f32x16_load_float16(halves);
}

/* y[t] = table[ids[t]], plus a residual row. Ids are checked against the table when the batch is made. */
void LATTICE_FN(embed_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(step->tokens, task, tasks, &first, &end);
    const int32_t *ids = step->ids[op->embed.ids];
    const int has_residual = op->embed.residual.slot >= 0;
    for (int64_t t = first; t < end; t++) {
        const float *residual = has_residual ? lattice_row(step, &op->embed.residual, t) : NULL;
        float *y = lattice_row(step, &op->output, t);
        if (op->embed.weight_type >= LATTICE_WEIGHT_BLOCKS) {
            LATTICE_FN(lattice_block_table_row)(op, ids[t], residual, y);
            continue;
        }
        for (int64_t i = 0; i < op->n; i += 16) {
            const f32x16 value = load_table(op, ids[t], i);
            store_part(y, i, op->n, has_residual ? f32x16_add(load_part(residual, i, op->n), value) : value);
        }
    }
}

void LATTICE_FN(gather_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(step->logit_count, task, tasks, &first, &end);
    for (int64_t r = first; r < end; r++)
        memcpy(lattice_row(step, &op->output, r), lattice_row(step, &op->input[0], step->logit_rows[r]),
               (size_t)op->n * sizeof(float));
}

void LATTICE_FN(input_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++)
        memcpy(lattice_row(step, &op->output, row), step->inputs[op->input_rows] + row * op->n, (size_t)op->n * sizeof(float));
}

int64_t LATTICE_FN(sequence_tasks)(const lattice_op *op, const lattice_step *step)
{
    (void)op;
    return step->threads == 1 ? 1 : lattice_divide_up(step->sequences, 4);
}

void LATTICE_FN(pool_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(step->sequences, task, tasks, &first, &end);
    for (int64_t sequence = first; sequence < end; sequence++) {
        const int64_t begin = step->cu_seqlens[sequence], stop = step->cu_seqlens[sequence + 1];
        float *y = lattice_row(step, &op->output, sequence);
        if (op->pool != LATTICE_POOL_MEAN) {
            const int64_t row = op->pool == LATTICE_POOL_CLS ? begin : stop - 1;
            memcpy(y, lattice_row(step, &op->input[0], row), op->n * sizeof(float));
            continue;
        }
        const f32x16 count = f32x16_set1((float)(stop - begin));
        for (int64_t i = 0; i < op->n; i += 16) {
            f32x16 sum = f32x16_zero();
            for (int64_t row = begin; row < stop; row++)
                sum = f32x16_add(sum, load_part(lattice_row(step, &op->input[0], row), i, op->n));
            store_part(y, i, op->n, f32x16_div(sum, count));
        }
    }
}

#endif
