/* Row-wise normalisations: layer norm, root mean square norm, and scaling to Euclidean length 1.
 *
 * A sum over a row goes through sixteen lanes in ascending order and one fixed fold; a row's tail is a copy padded with
 * zeros. Square root and division are the correctly rounded instructions, so every level gives the same bits.
 */
#ifndef LATTICE_NORMALIZE_H
#define LATTICE_NORMALIZE_H

#include "rows/elementwise.h"
#include "kernel_functions.h"

static float square_root(float x)
{
    float lanes[16];
    f32x16_store(lanes, f32x16_sqrt(f32x16_set1(x)));
    return lanes[0];
}

/* To a row of floats, and to one of bfloat16, whose elements are a multiple of 32; either may be NULL. */
LATTICE_INLINE void store_normalized(float *y, uint16_t *rounded, int64_t i, int64_t n, f32x16 value)
{
    if (y != NULL)
        store_part(y, i, n, value);
    if (rounded != NULL)
        store_bfloat16(rounded + i, value);
}

void LATTICE_FN(layer_norm_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const int64_t n = op->n;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++) {
        const float *x = lattice_row(step, &op->input[0], row);
        float *y = op->output.slot >= 0 ? lattice_row(step, &op->output, row) : NULL;
        uint16_t *rounded = op->rounded.slot >= 0 ? bfloat16_row(step, &op->rounded, row) : NULL;
        f32x16 sum = f32x16_zero(), squares = f32x16_zero();
        for (int64_t i = 0; i < n; i += 16)
            sum = f32x16_add(sum, load_part(x, i, n));
        const f32x16 mean = f32x16_set1(f32x16_fold_add(sum) / (float)n);
        int64_t i = 0;
        for (; i + 16 <= n; i += 16) {
            const f32x16 centred = f32x16_sub(f32x16_load(x + i), mean);
            squares = f32x16_fma(centred, centred, squares);
        }
        if (i < n) { /* the padding must stay zero after the mean is taken off */
            const f32x16 centred = f32x16_keep(f32x16_sub(f32x16_load_tail(x + i, n - i), mean), n - i);
            squares = f32x16_fma(centred, centred, squares);
        }
        const float variance = f32x16_fold_add(squares) / (float)n;
        const f32x16 inverse = f32x16_set1(1.0f / square_root(variance + op->norm.epsilon));
        for (i = 0; i < n; i += 16) {
            const f32x16 scaled = f32x16_mul(f32x16_sub(load_part(x, i, n), mean), inverse);
            store_normalized(y, rounded, i, n,
                             f32x16_fma(scaled, load_part(op->norm.weight, i, n), load_part(op->norm.bias, i, n)));
        }
        if (op->norm.quantized.slot >= 0)
            LATTICE_FN(lattice_quantize_row)(y, n, op->norm.range, step->dot, lattice_row(step, &op->norm.quantized, row));
    }
}

void LATTICE_FN(rms_norm_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const int64_t heads = op->norm.heads > 1 ? op->norm.heads : 1, n = op->n / heads;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++) {
        const float *x = lattice_row(step, &op->input[0], row);
        float *y = op->output.slot >= 0 ? lattice_row(step, &op->output, row) : NULL;
        uint16_t *rounded = op->rounded.slot >= 0 ? bfloat16_row(step, &op->rounded, row) : NULL; /* of one head */
        for (int64_t head = 0; head < heads; head++, x += n) {
            f32x16 squares = f32x16_zero();
            for (int64_t i = 0; i < n; i += 16) {
                const f32x16 value = load_part(x, i, n);
                squares = f32x16_fma(value, value, squares);
            }
            const f32x16 inverse =
                f32x16_set1(1.0f / square_root(f32x16_fold_add(squares) / (float)n + op->norm.epsilon));
            for (int64_t i = 0; i < n; i += 16)
                store_normalized(y, rounded, i, n,
                                 f32x16_mul(f32x16_mul(load_part(x, i, n), inverse), load_part(op->norm.weight, i, n)));
            if (y != NULL)
                y += n;
        }
    }
}

void LATTICE_FN(l2_normalize_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const int64_t n = op->n;
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++) {
        const float *x = lattice_row(step, &op->input[0], row);
        float *y = lattice_row(step, &op->output, row);
        f32x16 squares = f32x16_zero();
        for (int64_t i = 0; i < n; i += 16) {
            const f32x16 value = load_part(x, i, n);
            squares = f32x16_fma(value, value, squares);
        }
        const float length = square_root(f32x16_fold_add(squares));
        const f32x16 divisor = f32x16_set1(1e-12f > length ? 1e-12f : length);
        for (int64_t i = 0; i < n; i += 16)
            store_part(y, i, n, f32x16_div(load_part(x, i, n), divisor));
    }
}

#endif
