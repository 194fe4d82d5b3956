/* A convolution over the last rows of a sequence, for each column: y[t] = sum over i of x[t - taps + 1 + i] * w[i], one chain.
 *
 * Weights lie as [taps][columns]. A task takes columns of all sequences, so it reads and writes its own columns of the slots
 * only. Rows before the sequence are left out of the chain, which starts at 0: that is what they would add.
 *
 * Bound by memory: each row is read `taps` times, but from cache after the first.
 */
#ifndef LATTICE_SHORT_CONV_H
#define LATTICE_SHORT_CONV_H

#include "recurrent/slot_layout.h"
#include "rows/rows.h"

#define CONV_COLUMNS 64 /* that a task takes at least */

int64_t LATTICE_FN(short_conv_tasks)(const lattice_op *op, const lattice_step *step)
{
    const int64_t most = lattice_divide_up(op->n, CONV_COLUMNS);
    if (step->threads == 1 || step->tokens <= step->sizes->row_task_rows)
        return 1;
    return most < 4 * step->threads ? most : 4 * step->threads;
}

/* Of one sequence: its first row in the step, the tokens before, and its slots from the task's first column on. */
typedef struct {
    const lattice_op *op;
    const lattice_step *step;
    int64_t row, context, column;
    float *read, *write;
} conv_sequence;

/* The input at a position, from the task's first column on; NULL before the sequence. */
LATTICE_INLINE const float *conv_input(const conv_sequence *s, int64_t position)
{
    if (position >= s->context)
        return lattice_row(s->step, &s->op->input[0], s->row + position - s->context) + s->column;
    const int64_t base = s->context - s->context % LATTICE_DELTA_BLOCK;
    return position < 0 ? NULL : s->read + (position - base + s->op->short_conv.taps - 1) * s->op->n;
}

static void conv_keep(const conv_sequence *s, float *slot, int64_t base, int64_t first, int64_t end, int64_t columns)
{
    for (int64_t position = first; position < end; position++)
        memcpy(slot + (position - base + s->op->short_conv.taps - 1) * s->op->n, conv_input(s, position),
               (size_t)columns * sizeof(float));
}

static void conv_one_sequence(const conv_sequence *s, int64_t rows, int64_t columns)
{
    const int64_t taps = s->op->short_conv.taps, end = s->context + rows;
    const float *weight = s->op->short_conv.weight + s->column;
    for (int64_t position = s->context; position < end; position++) {
        const float *inputs[LATTICE_MOST_TAPS];
        const int64_t missing = position - taps + 1 < 0 ? taps - 1 - position : 0;
        for (int64_t i = missing; i < taps; i++)
            inputs[i] = conv_input(s, position - taps + 1 + i);
        float *y = lattice_row(s->step, &s->op->output, s->row + position - s->context) + s->column;
        for (int64_t c = 0; c < columns; c += 16) {
            f32x16 sum = f32x16_zero();
            for (int64_t i = missing; i < taps; i++)
                sum = f32x16_fma(load_part(inputs[i], c, columns), load_part(weight + i * s->op->n, c, columns), sum);
            store_part(y, c, columns, sum);
        }
    }
    const int64_t base = s->context - s->context % LATTICE_DELTA_BLOCK, next = end - end % LATTICE_DELTA_BLOCK;
    if (next != base) /* first, as it may read rows of the other slot */
        conv_keep(s, s->write, next, next - taps + 1, end, columns);
    conv_keep(s, s->read, base, s->context, end < base + LATTICE_DELTA_BLOCK ? end : base + LATTICE_DELTA_BLOCK, columns);
}

void LATTICE_FN(short_conv_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_divide_up(op->n, LATTICE_PANEL), task, tasks, &first, &end);
    first *= LATTICE_PANEL;
    end = end * LATTICE_PANEL < op->n ? end * LATTICE_PANEL : op->n;
    for (int64_t sequence = 0; sequence < step->sequences; sequence++) {
        const int64_t row = step->cu_seqlens[sequence];
        float *kept = step->recurrent[op->short_conv.state] + first;
        const conv_sequence here = {op, step, row, step->context[sequence], first,
                                    kept + step->read_slots[sequence] * step->slot_floats,
                                    kept + step->write_slots[sequence] * step->slot_floats};
        conv_one_sequence(&here, step->cu_seqlens[sequence + 1] - row, end - first);
    }
}

#endif
