/* Activations, element by element. One definition each, used alone and in the epilogue of a linear. */
#ifndef LATTICE_ACTIVATIONS_H
#define LATTICE_ACTIVATIONS_H

#include "lattice/vector_math.h"
#include "step.h"

/* h + h erf(x / sqrt 2), h = x / 2 */
LATTICE_INLINE void gelu_erf_each(int count, const f32x16 *x, f32x16 *y)
{
    f32x16 scaled[LATTICE_SIDE_BY_SIDE], erf[LATTICE_SIDE_BY_SIDE];
    for (int j = 0; j < count; j++)
        scaled[j] = f32x16_mul(x[j], f32x16_set1(0.70710678f));
    lattice_erf_each(count, scaled, erf);
    for (int j = 0; j < count; j++) {
        const f32x16 half = f32x16_mul(x[j], f32x16_set1(0.5f));
        y[j] = f32x16_fma(half, erf[j], half);
    }
}

LATTICE_INLINE f32x16 gelu_erf(f32x16 x)
{
    f32x16 y;
    gelu_erf_each(1, &x, &y);
    return y;
}

/* h + h tanh(sqrt(2 / pi) (x + 0.044715 x^3)) */
LATTICE_INLINE f32x16 gelu_tanh(f32x16 x)
{
    const f32x16 half = f32x16_mul(x, f32x16_set1(0.5f));
    const f32x16 u = f32x16_mul(x, f32x16_set1(0.79788456f));
    const f32x16 v = f32x16_mul(f32x16_mul(x, x), f32x16_set1(0.044715f));
    return f32x16_fma(half, f32x16_tanh(f32x16_fma(u, v, u)), half);
}

LATTICE_INLINE f32x16 silu(f32x16 x)
{
    return f32x16_div(x, f32x16_add(f32x16_set1(1.0f), f32x16_exp(f32x16_neg(x))));
}

LATTICE_INLINE f32x16 sigmoid(f32x16 x)
{
    return f32x16_div(f32x16_set1(1.0f), f32x16_add(f32x16_set1(1.0f), f32x16_exp(f32x16_neg(x))));
}

LATTICE_INLINE f32x16 activate(int activation, f32x16 x)
{
    switch (activation) {
    case LATTICE_ACTIVATION_GELU_ERF:
        return gelu_erf(x);
    case LATTICE_ACTIVATION_GELU_TANH:
        return gelu_tanh(x);
    case LATTICE_ACTIVATION_RELU:
        return f32x16_max(f32x16_zero(), x);
    case LATTICE_ACTIVATION_SILU:
        return silu(x);
    case LATTICE_ACTIVATION_TANH:
        return f32x16_tanh(x);
    case LATTICE_ACTIVATION_SIGMOID:
        return sigmoid(x);
    default:
        return x;
    }
}

/* How many vectors are best activated side by side: one where the chain of operations is short. */
LATTICE_INLINE int activated_together(int activation)
{
    return activation == LATTICE_ACTIVATION_GELU_ERF ? LATTICE_SIDE_BY_SIDE : 1;
}

/* activate, of `count` vectors. */
LATTICE_INLINE void activate_each(int activation, int count, f32x16 *x)
{
    if (activation == LATTICE_ACTIVATION_GELU_ERF) {
        gelu_erf_each(count, x, x);
        return;
    }
    for (int j = 0; j < count; j++)
        x[j] = activate(activation, x[j]);
}

/* y = activation(x) over `rows` rows of `n` columns. Of whole vectors of sixteen each column of them goes down all rows, which
 * is one long loop for a tile of few columns too. */
LATTICE_INLINE void activate_rows_by(int activation, const float *x, int64_t x_stride, float *y, int64_t y_stride,
                                     int64_t rows, int64_t n)
{
    int64_t i = 0;
    const int together = activated_together(activation);
    for (; i + 16 <= n; i += 16) {
        int64_t row = 0;
        for (; row + together <= rows; row += together) {
            f32x16 value[LATTICE_SIDE_BY_SIDE];
            for (int j = 0; j < together; j++)
                value[j] = f32x16_load(x + (row + j) * x_stride + i);
            activate_each(activation, together, value);
            for (int j = 0; j < together; j++)
                f32x16_store(y + (row + j) * y_stride + i, value[j]);
        }
        for (; row < rows; row++)
            f32x16_store(y + row * y_stride + i, activate(activation, f32x16_load(x + row * x_stride + i)));
    }
    if (i < n)
        for (int64_t row = 0; row < rows; row++) {
            const f32x16 value = f32x16_load_tail(x + row * x_stride + i, (size_t)(n - i));
            f32x16_store_tail(y + row * y_stride + i, activate(activation, value), (size_t)(n - i));
        }
}

/* One loop for each activation, so that nothing is decided in it. Not every file that includes this one calls it. */
static __attribute__((unused)) void activate_rows(int activation, const float *x, int64_t x_stride, float *y, int64_t y_stride,
                                                  int64_t rows, int64_t n)
{
    switch (activation) {
    case LATTICE_ACTIVATION_GELU_ERF:
        activate_rows_by(LATTICE_ACTIVATION_GELU_ERF, x, x_stride, y, y_stride, rows, n);
        return;
    case LATTICE_ACTIVATION_GELU_TANH:
        activate_rows_by(LATTICE_ACTIVATION_GELU_TANH, x, x_stride, y, y_stride, rows, n);
        return;
    case LATTICE_ACTIVATION_RELU:
        activate_rows_by(LATTICE_ACTIVATION_RELU, x, x_stride, y, y_stride, rows, n);
        return;
    case LATTICE_ACTIVATION_SILU:
        activate_rows_by(LATTICE_ACTIVATION_SILU, x, x_stride, y, y_stride, rows, n);
        return;
    case LATTICE_ACTIVATION_TANH:
        activate_rows_by(LATTICE_ACTIVATION_TANH, x, x_stride, y, y_stride, rows, n);
        return;
    case LATTICE_ACTIVATION_SIGMOID:
        activate_rows_by(LATTICE_ACTIVATION_SIGMOID, x, x_stride, y, y_stride, rows, n);
        return;
    default:
        return;
    }
}

#endif
