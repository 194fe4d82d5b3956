/* Where tokens come in and go out: rows of an embedding table, and pooling a sequence's rows into one. */
#ifndef LATTICE_TOKENS_H
#define LATTICE_TOKENS_H

#include "normalize.h"

/* y[t] = table[ids[t]], plus a residual row. Ids are checked against the table when the batch is made. */
static void embed_rows_run(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(step->tokens, task, tasks, &first, &end);
    const int32_t *ids = step->ids[op->mode];
    for (int64_t t = first; t < end; t++) {
        const float *row = op->weight + ids[t] * op->n;
        float *y = lattice_row(step, &op->output, t);
        if (op->residual.slot >= 0)
            add_row(lattice_row(step, &op->residual, t), row, y, op->n);
        else
            memcpy(y, row, op->n * sizeof(float));
    }
}

static int64_t sequence_tasks(const lattice_op *op, const lattice_step *step)
{
    (void)op;
    return step->threads == 1 ? 1 : lattice_divide_up(step->sequences, 4);
}

static void pool_run(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(step->sequences, task, tasks, &first, &end);
    for (int64_t sequence = first; sequence < end; sequence++) {
        const int64_t begin = step->cu_seqlens[sequence], stop = step->cu_seqlens[sequence + 1];
        float *y = lattice_row(step, &op->output, sequence);
        if (op->mode != LATTICE_POOL_MEAN) {
            const int64_t row = op->mode == LATTICE_POOL_CLS ? begin : stop - 1;
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
