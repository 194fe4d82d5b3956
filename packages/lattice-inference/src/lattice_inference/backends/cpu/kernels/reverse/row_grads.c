/* Gradients of what works row by row, and noise: graph/reverse_ops.py has each formula. Of one instruction set: this
 * file is compiled once for each. A task writes its own rows only. */
#include "lattice/vector_math.h"
#include "reverse/draws.h"
#include "rows/rows.h"

#define FOR_ROWS(row, count)                                                                                           \
    int64_t row, end_row_;                                                                                             \
    (void)thread;                                                                                                      \
    task_rows(count, task, tasks, &row, &end_row_);                                                                    \
    for (; row < end_row_; row++)

static float root(float x)
{
    float lanes[16];
    f32x16_store(lanes, f32x16_sqrt(f32x16_set1(x)));
    return lanes[0];
}

LATTICE_INLINE f32x16 gelu_erf_slope(f32x16 x)
{
    const f32x16 half = f32x16_set1(0.5f);
    const f32x16 h = f32x16_fma(half, f32x16_erf(f32x16_mul(x, f32x16_set1(0.70710678f))), half);
    const f32x16 bell = f32x16_exp(f32x16_mul(f32x16_mul(x, x), f32x16_set1(-0.5f)));
    return f32x16_fma(f32x16_mul(x, bell), f32x16_set1(0.39894228f), h);
}

LATTICE_INLINE f32x16 gelu_tanh_slope(f32x16 x)
{
    const f32x16 half = f32x16_set1(0.5f), root_of = f32x16_set1(0.79788456f);
    const f32x16 u = f32x16_mul(x, root_of), w = f32x16_mul(f32x16_mul(x, x), f32x16_set1(0.044715f));
    const f32x16 a = f32x16_tanh(f32x16_fma(u, w, u)), h = f32x16_fma(half, a, half);
    const f32x16 b = f32x16_fma(f32x16_mul(w, f32x16_set1(3.0f)), root_of, root_of);
    return f32x16_fma(f32x16_mul(f32x16_mul(x, half), f32x16_fma(f32x16_neg(a), a, f32x16_set1(1.0f))), b, h);
}

LATTICE_INLINE f32x16 silu_slope(f32x16 x)
{
    const f32x16 one = f32x16_set1(1.0f), s = f32x16_div(one, f32x16_add(one, f32x16_exp(f32x16_neg(x))));
    return f32x16_fma(f32x16_mul(x, s), f32x16_sub(one, s), s);
}

LATTICE_INLINE f32x16 activation_grad(int activation, f32x16 x, f32x16 dy)
{
    switch (activation) {
    case LATTICE_ACTIVATION_GELU_ERF:
        return f32x16_mul(dy, gelu_erf_slope(x));
    case LATTICE_ACTIVATION_GELU_TANH:
        return f32x16_mul(dy, gelu_tanh_slope(x));
    case LATTICE_ACTIVATION_RELU:
        return f32x16_select(f32x16_less(f32x16_zero(), x), dy, f32x16_zero());
    case LATTICE_ACTIVATION_SILU:
        return f32x16_mul(dy, silu_slope(x));
    case LATTICE_ACTIVATION_TANH: /* of y, and not of x */
        return f32x16_mul(dy, f32x16_fma(f32x16_neg(x), x, f32x16_set1(1.0f)));
    default:
        return dy;
    }
}

LATTICE_INLINE void activation_grad_row(int activation, const float *x, const float *dy, float *dx, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        store_part(dx, i, n, activation_grad(activation, load_part(x, i, n), load_part(dy, i, n)));
}

void LATTICE_FN(activation_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    FOR_ROWS(row, lattice_rows(op, step))
    {
        const float *x = lattice_row(step, &op->input[0], row), *dy = lattice_row(step, &op->input[1], row);
        float *dx = lattice_row(step, &op->output, row);
        switch (op->activation) { /* one loop for each, so that nothing is decided in it */
#define ONE_ACTIVATION(id, name)                                                                                       \
    case id:                                                                                                           \
        activation_grad_row(id, x, dy, dx, op->n);                                                                     \
        break;
            LATTICE_ACTIVATIONS(ONE_ACTIVATION)
#undef ONE_ACTIVATION
        }
    }
}

void LATTICE_FN(layer_norm_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    const int64_t n = op->n;
    FOR_ROWS(row, lattice_rows(op, step))
    {
        const float *x = lattice_row(step, &op->input[0], row), *dy = lattice_row(step, &op->input[1], row);
        float *dx = lattice_row(step, &op->output, row);
        f32x16 sum = f32x16_zero(), squares = f32x16_zero(), gradients = f32x16_zero(), products = f32x16_zero();
        for (int64_t i = 0; i < n; i += 16)
            sum = f32x16_add(sum, load_part(x, i, n));
        const f32x16 mean = f32x16_set1(f32x16_fold_add(sum) / (float)n);
        for (int64_t i = 0; i < n; i += 16) {
            f32x16 centred = f32x16_sub(load_part(x, i, n), mean);
            if (i + 16 > n) /* the padding must stay zero after the mean is taken off */
                centred = f32x16_keep(centred, (size_t)(n - i));
            squares = f32x16_fma(centred, centred, squares);
        }
        const f32x16 inverse = f32x16_set1(1.0f / root(f32x16_fold_add(squares) / (float)n + op->norm.epsilon));
        for (int64_t i = 0; i < n; i += 16) { /* where x is padded, dy is zero */
            const f32x16 g = f32x16_mul(load_part(dy, i, n), load_part(op->norm.weight, i, n));
            gradients = f32x16_add(gradients, g);
            products = f32x16_fma(g, f32x16_mul(f32x16_sub(load_part(x, i, n), mean), inverse), products);
        }
        const f32x16 a = f32x16_set1(f32x16_fold_add(gradients) / (float)n);
        const f32x16 b = f32x16_set1(f32x16_fold_add(products) / (float)n);
        for (int64_t i = 0; i < n; i += 16) {
            const f32x16 g = f32x16_mul(load_part(dy, i, n), load_part(op->norm.weight, i, n));
            const f32x16 e = f32x16_mul(f32x16_sub(load_part(x, i, n), mean), inverse);
            store_part(dx, i, n, f32x16_mul(inverse, f32x16_fma(f32x16_neg(e), b, f32x16_sub(g, a))));
        }
    }
}

void LATTICE_FN(rms_norm_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    const int64_t heads = op->norm.heads > 1 ? op->norm.heads : 1, n = op->n / heads;
    FOR_ROWS(row, lattice_rows(op, step))
    {
        const float *x = lattice_row(step, &op->input[0], row), *dy = lattice_row(step, &op->input[1], row);
        float *dx = lattice_row(step, &op->output, row);
        for (int64_t head = 0; head < heads; head++, x += n, dy += n, dx += n) {
            f32x16 squares = f32x16_zero(), products = f32x16_zero();
            for (int64_t i = 0; i < n; i += 16) {
                const f32x16 value = load_part(x, i, n);
                squares = f32x16_fma(value, value, squares);
            }
            const f32x16 inverse = f32x16_set1(1.0f / root(f32x16_fold_add(squares) / (float)n + op->norm.epsilon));
            for (int64_t i = 0; i < n; i += 16) {
                const f32x16 g = f32x16_mul(load_part(dy, i, n), load_part(op->norm.weight, i, n));
                products = f32x16_fma(g, f32x16_mul(load_part(x, i, n), inverse), products);
            }
            const f32x16 b = f32x16_set1(f32x16_fold_add(products) / (float)n);
            for (int64_t i = 0; i < n; i += 16) {
                const f32x16 g = f32x16_mul(load_part(dy, i, n), load_part(op->norm.weight, i, n));
                const f32x16 e = f32x16_mul(load_part(x, i, n), inverse);
                store_part(dx, i, n, f32x16_mul(inverse, f32x16_fma(f32x16_neg(e), b, g)));
            }
        }
    }
}

void LATTICE_FN(l2_normalize_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    const int64_t n = op->n;
    FOR_ROWS(row, lattice_rows(op, step))
    {
        const float *x = lattice_row(step, &op->input[0], row), *dy = lattice_row(step, &op->input[1], row);
        float *dx = lattice_row(step, &op->output, row);
        f32x16 squares = f32x16_zero(), products = f32x16_zero();
        for (int64_t i = 0; i < n; i += 16) {
            const f32x16 value = load_part(x, i, n);
            squares = f32x16_fma(value, value, squares);
        }
        const float length = root(f32x16_fold_add(squares));
        const int is_short = !(length > 1e-12f);
        const f32x16 divisor = f32x16_set1(is_short ? 1e-12f : length);
        for (int64_t i = 0; i < n; i += 16)
            products = f32x16_fma(f32x16_div(load_part(x, i, n), divisor), load_part(dy, i, n), products);
        const f32x16 b = f32x16_set1(is_short ? 0.0f : f32x16_fold_add(products));
        for (int64_t i = 0; i < n; i += 16) {
            const f32x16 y = f32x16_div(load_part(x, i, n), divisor);
            store_part(dx, i, n, f32x16_div(f32x16_fma(f32x16_neg(y), b, load_part(dy, i, n)), divisor));
        }
    }
}

void LATTICE_FN(pool_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    FOR_ROWS(sequence, step->sequences)
    {
        const int64_t begin = step->cu_seqlens[sequence], stop = step->cu_seqlens[sequence + 1];
        const float *dy = lattice_row(step, &op->input[0], sequence);
        const f32x16 count = f32x16_set1((float)(stop - begin));
        for (int64_t row = begin; row < stop; row++) {
            float *dx = lattice_row(step, &op->output, row);
            if (op->pool == LATTICE_POOL_MEAN)
                for (int64_t i = 0; i < op->n; i += 16)
                    store_part(dx, i, op->n, f32x16_div(load_part(dy, i, op->n), count));
            else if (row == (op->pool == LATTICE_POOL_CLS ? begin : stop - 1))
                memcpy(dx, dy, (size_t)op->n * sizeof(float));
            else
                memset(dx, 0, (size_t)op->n * sizeof(float));
        }
    }
}

void LATTICE_FN(scatter_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(step->tokens, task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++)
        memset(lattice_row(step, &op->output, row), 0, (size_t)op->n * sizeof(float));
    for (int64_t r = 0; r < step->logit_count; r++) {
        const int64_t row = step->logit_rows[r];
        if (row < first || row >= end)
            continue;
        const float *dy = lattice_row(step, &op->input[0], r);
        float *dx = lattice_row(step, &op->output, row);
        for (int64_t i = 0; i < op->n; i += 16)
            store_part(dx, i, op->n, f32x16_add(load_part(dx, i, op->n), load_part(dy, i, op->n)));
    }
}

/* NEFTune: y = x + a draw, uniform within alpha / sqrt(tokens of the sequence x columns). */
void LATTICE_FN(add_noise_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    const lattice_draws *noise = &step->training->noise;
    int64_t sequence = 0;
    FOR_ROWS(row, step->tokens)
    {
        while (row >= step->cu_seqlens[sequence + 1])
            sequence++;
        const float *x = lattice_row(step, &op->input[0], row);
        float *y = lattice_row(step, &op->output, row);
        if (!noise->is_on) {
            memmove(y, x, (size_t)op->n * sizeof(float));
            continue;
        }
        const double elements = (double)(step->cu_seqlens[sequence + 1] - step->cu_seqlens[sequence]) * (double)op->n;
        const float most = (float)(noise->alpha / __builtin_sqrt(elements));
        for (int64_t first = 0; first < op->n; first += DRAWS_OF_BLOCK) {
            uint32_t words[DRAWS_OF_BLOCK];
            draw_columns(noise, 2, 0, row, op->n, first, DRAWS_OF_BLOCK, words);
            for (int64_t i = first; i < first + DRAWS_OF_BLOCK && i < op->n; i++) {
                const float share = 2.0f * (float)(words[i - first] >> 8) * 0x1p-24f - 1.0f;
                y[i] = x[i] + share * most;
            }
        }
    }
}
