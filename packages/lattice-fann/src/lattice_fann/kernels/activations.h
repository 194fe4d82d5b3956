/* y = f(z) over padded rows, and dL/dz = dL/dy f'(z, y).
 *
 * A NaN goes through every function, and y - y is summed on the way: the sum is zero unless a value is NaN or infinite.
 * That one test is the policy on every instruction set; nothing replaces a bad value by a good one.
 */
#ifndef LATTICE_FANN_ACTIVATIONS_H
#define LATTICE_FANN_ACTIVATIONS_H

#include "lattice/vector_math.h"
#include "network.h"

LATTICE_INLINE f32x16 sigmoid(f32x16 z)
{
    const f32x16 one = f32x16_set1(1.0f);
    return f32x16_div(one, f32x16_add(one, f32x16_exp(f32x16_neg(z))));
}

/* Phi(z) = (1 + erf(z / sqrt 2)) / 2, the normal distribution */
LATTICE_INLINE f32x16 normal_distribution(f32x16 z)
{
    const f32x16 half = f32x16_set1(0.5f);
    return f32x16_fma(half, f32x16_erf(f32x16_mul(z, f32x16_set1(0.70710678f))), half);
}

LATTICE_INLINE f32x16 activate(int activation, f32x16 alpha, f32x16 z)
{
    switch (activation) {
    case FANN_SIGMOID:
        return sigmoid(z);
    case FANN_TANH:
        return f32x16_tanh(z);
    case FANN_RELU:
        return f32x16_max(f32x16_zero(), z); /* max returns its second argument when either is NaN */
    case FANN_LEAKY_RELU:
        return f32x16_select(f32x16_less(z, f32x16_zero()), f32x16_mul(alpha, z), z);
    case FANN_GELU:
        return f32x16_mul(z, normal_distribution(z));
    case FANN_SILU:
        return f32x16_mul(z, sigmoid(z));
    default:
        return z;
    }
}

/* f'(z), from z or y, whichever is cheaper. At zero the ReLUs take the slope of the left. */
LATTICE_INLINE f32x16 derivative(int activation, f32x16 alpha, f32x16 z, f32x16 y)
{
    const f32x16 one = f32x16_set1(1.0f);
    switch (activation) {
    case FANN_SIGMOID:
        return f32x16_mul(y, f32x16_sub(one, y));
    case FANN_TANH:
        return f32x16_fma(f32x16_neg(y), y, one);
    case FANN_RELU:
        return f32x16_select(f32x16_less(f32x16_zero(), z), one, f32x16_zero());
    case FANN_LEAKY_RELU:
        return f32x16_select(f32x16_less(f32x16_zero(), z), one, alpha);
    case FANN_GELU: {
        /* Phi(z) + z phi(z), phi(z) = exp(-z^2 / 2) / sqrt(2 pi) */
        const f32x16 density = f32x16_mul(f32x16_exp(f32x16_mul(f32x16_mul(z, z), f32x16_set1(-0.5f))),
                                          f32x16_set1(0.39894228f));
        return f32x16_fma(z, density, normal_distribution(z));
    }
    case FANN_SILU: {
        const f32x16 s = sigmoid(z);
        return f32x16_mul(s, f32x16_fma(z, f32x16_sub(one, s), one));
    }
    default:
        return one;
    }
}

/* Lanes 0 to count - 1 of a row's vector at `i` belong to its n values. */
LATTICE_INLINE m16 lanes_of_row(int64_t i, int64_t n)
{
    static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t count = n - i < 16 ? n - i : 16;
    return f32x16_less(f32x16_load(lane), f32x16_set1((float)count));
}

/* The largest of z / temperature over one row. */
LATTICE_INLINE float row_maximum(const float *z, int64_t n)
{
    f32x16 largest = f32x16_set1(-__builtin_inff());
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 value = f32x16_select(lanes_of_row(i, n), f32x16_load(z + i), f32x16_set1(-__builtin_inff()));
        largest = f32x16_max(largest, value);
    }
    return f32x16_fold_max(largest);
}

/* y = softmax(z scale) over one row, zeros in the padding; returns the sum of exp(scale (z - max)). z and y may be one. */
static float softmax_row(const float *z, float *y, int64_t n, float scale, float maximum)
{
    f32x16 sum = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 shifted = f32x16_mul(f32x16_sub(f32x16_load(z + i), f32x16_set1(maximum)), f32x16_set1(scale));
        const f32x16 e = f32x16_select(lanes_of_row(i, n), f32x16_exp(shifted), f32x16_zero());
        f32x16_store(y + i, e);
        sum = f32x16_add(sum, e);
    }
    const float total = f32x16_fold_add(sum);
    for (int64_t i = 0; i < n; i += 16)
        f32x16_store(y + i, f32x16_div(f32x16_load(y + i), f32x16_set1(total)));
    return total;
}

/* Rows of `z` through an activation into `y` (which may be z). Returns 1 if every result is finite. */
static int activate_rows(int activation, float slope, const float *z, float *y, int64_t rows, int64_t n,
                         int64_t stride)
{
    const f32x16 alpha = f32x16_set1(slope);
    f32x16 defects = f32x16_zero();
#define OVER_ROWS(constant)                                                                                            \
    for (int64_t row = 0; row < rows; row++)                                                                           \
        for (int64_t i = row * stride; i < row * stride + n; i += 16) {                                                \
            const f32x16 value = activate(constant, alpha, f32x16_load(z + i));                                        \
            f32x16_store(y + i, value);                                                                                \
            defects = f32x16_add(defects, f32x16_sub(value, value));                                                   \
        }                                                                                                              \
    break
    switch (activation) {
    case FANN_SIGMOID:
        OVER_ROWS(FANN_SIGMOID);
    case FANN_TANH:
        OVER_ROWS(FANN_TANH);
    case FANN_RELU:
        OVER_ROWS(FANN_RELU);
    case FANN_LEAKY_RELU:
        OVER_ROWS(FANN_LEAKY_RELU);
    case FANN_GELU:
        OVER_ROWS(FANN_GELU);
    case FANN_SILU:
        OVER_ROWS(FANN_SILU);
    case FANN_SOFTMAX:
        for (int64_t row = 0; row < rows; row++) {
            const float *logits = z + row * stride;
            float *result = y + row * stride;
            softmax_row(logits, result, n, 1.0f, row_maximum(logits, n));
            for (int64_t i = 0; i < n; i += 16) {
                const f32x16 value = f32x16_load(result + i);
                defects = f32x16_add(defects, f32x16_sub(value, value));
            }
        }
        break;
    default:
        OVER_ROWS(FANN_LINEAR);
    }
#undef OVER_ROWS
    return f32x16_fold_add(defects) == 0.0f;
}

/* deltas *= f'(z, y) over rows: not for softmax, whose derivative is a matrix. */
static void multiply_by_derivative(int activation, float slope, const float *z, const float *y, float *deltas,
                                   int64_t rows, int64_t n, int64_t stride)
{
    const f32x16 alpha = f32x16_set1(slope);
#define OVER_ROWS(constant)                                                                                            \
    for (int64_t row = 0; row < rows; row++)                                                                           \
        for (int64_t i = row * stride; i < row * stride + n; i += 16)                                                  \
            f32x16_store(deltas + i, f32x16_mul(f32x16_load(deltas + i),                                               \
                                                derivative(constant, alpha, f32x16_load(z + i), f32x16_load(y + i)))); \
    break
    switch (activation) {
    case FANN_SIGMOID:
        OVER_ROWS(FANN_SIGMOID);
    case FANN_TANH:
        OVER_ROWS(FANN_TANH);
    case FANN_RELU:
        OVER_ROWS(FANN_RELU);
    case FANN_LEAKY_RELU:
        OVER_ROWS(FANN_LEAKY_RELU);
    case FANN_GELU:
        OVER_ROWS(FANN_GELU);
    case FANN_SILU:
        OVER_ROWS(FANN_SILU);
    default:
        break;
    }
#undef OVER_ROWS
}

#endif
