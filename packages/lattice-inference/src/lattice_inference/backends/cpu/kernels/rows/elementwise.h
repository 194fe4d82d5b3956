/* Activations and sums as ops: y = f(x), y = a + b. */
#ifndef LATTICE_ELEMENTWISE_H
#define LATTICE_ELEMENTWISE_H

#include "rows/activations.h"
#include "rows/bfloat16_rows.h"
#include "rows/rows.h"

void LATTICE_FN(activation_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    const int64_t most = step->sizes->row_task_rows; /* of more, the first would have left the cache before their next column */
    for (int64_t row = first; row < end; row += most)
        activate_rows(op->activation, lattice_row(step, &op->input[0], row), op->input[0].stride,
                      lattice_row(step, &op->output, row), op->output.stride, end - row < most ? end - row : most, op->n);
}

/* y = a + b over one row */
LATTICE_INLINE void add_row(const float *a, const float *b, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        f32x16_store(y + i, f32x16_add(f32x16_load(a + i), f32x16_load(b + i)));
    if (i < n)
        f32x16_store_tail(y + i, f32x16_add(f32x16_load_tail(a + i, n - i), f32x16_load_tail(b + i, n - i)), n - i);
}

void LATTICE_FN(add_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++)
        add_row(lattice_row(step, &op->input[0], row), lattice_row(step, &op->input[1], row),
                lattice_row(step, &op->output, row), op->n);
}

/* A pass of its own for rows that nobody rounds as they are made. */
void LATTICE_FN(round_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++)
        round_row(lattice_row(step, &op->input[0], row), op->k, bfloat16_row(step, &op->rounded, row));
}

/* y = a * b, or silu(a) * b, over one row */
LATTICE_INLINE void multiply_row(int activation, const float *a, const float *b, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        f32x16_store(y + i, f32x16_mul(activate(activation, f32x16_load(a + i)), f32x16_load(b + i)));
    if (i < n) {
        const f32x16 left = activate(activation, f32x16_load_tail(a + i, n - i));
        f32x16_store_tail(y + i, f32x16_mul(left, f32x16_load_tail(b + i, n - i)), n - i);
    }
}

/* The same as a row of bfloat16, of a multiple of 32 elements. */
LATTICE_INLINE void multiply_rounded_row(int activation, const float *a, const float *b, uint16_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        store_bfloat16(y + i, f32x16_mul(activate(activation, f32x16_load(a + i)), f32x16_load(b + i)));
}

void LATTICE_FN(multiply_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++) {
        const float *a = lattice_row(step, &op->input[0], row), *b = lattice_row(step, &op->input[1], row);
        if (op->rounded.slot >= 0) {
            multiply_rounded_row(LATTICE_ACTIVATION_SILU, a, b, bfloat16_row(step, &op->rounded, row), op->n);
            continue;
        }
        float *y = lattice_row(step, &op->output, row);
        if (op->kernel == LATTICE_KERNEL_SILU_MUL)
            multiply_row(LATTICE_ACTIVATION_SILU, a, b, y, op->n);
        else
            multiply_row(LATTICE_ACTIVATION_NONE, a, b, y, op->n);
    }
}

/* The functions of vector_math.h over an array, for the tests of their accuracy. */
static void elementwise_run(int function, const float *x, float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i += 16) {
        const int64_t here = count - i < 16 ? count - i : 16;
        const f32x16 value = f32x16_load_tail(x + i, here);
        f32x16 result;
        switch (function) {
#define ONE_FUNCTION(id, name, of_lanes)                                                                               \
    case id:                                                                                                           \
        result = of_lanes(value);                                                                                      \
        break;
            LATTICE_FUNCTIONS(ONE_FUNCTION)
#undef ONE_FUNCTION
        default:
            __builtin_unreachable();
        }
        f32x16_store_tail(y + i, result, here);
    }
}

#endif
