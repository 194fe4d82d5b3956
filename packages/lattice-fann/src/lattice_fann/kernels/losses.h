/* The loss of one row and its derivative by the sums of the last layer (dL/dz).
 *
 * With n outputs, z the sums, y the outputs and t the targets:
 *
 *     MSE                    sum (y - t)^2 / n
 *     Huber(d)               sum (|e| <= d ? e^2 / 2 : d (|e| - d / 2)) / n,  e = y - t
 *     cross-entropy          - sum t log softmax(z)
 *     KL(T)                  T^2 sum t (log t - log softmax(z / T))
 *     binary cross-entropy   sum (max(z, 0) - z t + log(1 + exp(-|z|))) / n
 *     distillation(T, w)     - (1 - w) T^2 sum t log softmax(z / T) - w sum h log softmax(z)
 *
 * Distillation is linear in both targets, the teacher's t and the hard h, so one row c = (1 - w) T t + w h holds them:
 * with sum t = sum h = 1 the loss is (1 - w) T^2 lse(z / T) + w lse(z) - sum c z, where lse = log sum exp.
 *
 * The last four work on the logits: softmax or sigmoid and logarithm are one expression, so nothing is lost where an output
 * rounds to 0 or 1, and dL/dz is the simple difference of the two distributions.
 */
#ifndef LATTICE_FANN_LOSSES_H
#define LATTICE_FANN_LOSSES_H

#include "activations.h"

/* sum of t (lse - z/T) [+ t log t] over a row, with lse = log sum exp(z/T) */
LATTICE_INLINE float cross_entropy_row(const float *z, const float *t, int64_t n, float scale, int entropy, float maximum,
                                       float total)
{
    float logarithm[16];
    f32x16_store(logarithm, f32x16_log(f32x16_set1(total)));
    const f32x16 log_total = f32x16_set1(logarithm[0]);
    f32x16 sum = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t here = n - i < 16 ? n - i : 16;
        const f32x16 target = f32x16_load_tail(t + i, here); /* zero beyond the row */
        const f32x16 shifted = f32x16_mul(f32x16_sub(f32x16_load(z + i), f32x16_set1(maximum)), f32x16_set1(scale));
        f32x16 term = f32x16_sub(log_total, shifted); /* - log softmax */
        if (entropy) /* t log t is 0 at 0 */
            term = f32x16_add(term, f32x16_log(f32x16_max(f32x16_set1(0x1p-126f), target)));
        term = f32x16_select(lanes_of_row(i, n), f32x16_mul(target, term), f32x16_zero());
        sum = f32x16_add(sum, term);
    }
    return f32x16_fold_add(sum);
}

/* sum of exp((z - maximum) scale) over a row */
LATTICE_INLINE float exponential_sum(const float *z, int64_t n, float scale, float maximum)
{
    f32x16 sum = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 shifted = f32x16_mul(f32x16_sub(f32x16_load(z + i), f32x16_set1(maximum)), f32x16_set1(scale));
        sum = f32x16_add(sum, f32x16_select(lanes_of_row(i, n), f32x16_exp(shifted), f32x16_zero()));
    }
    return f32x16_fold_add(sum);
}

static float distillation_row(float temperature, float hard_share, const float *z, const float *mixed, int64_t n)
{
    const float maximum = row_maximum(z, n);
    float soft[16], hard[16];
    f32x16_store(soft, f32x16_log(f32x16_set1(exponential_sum(z, n, 1.0f / temperature, maximum))));
    f32x16_store(hard, f32x16_log(f32x16_set1(exponential_sum(z, n, 1.0f, maximum))));
    f32x16 product = f32x16_zero(); /* with z - maximum: the maximum cancels, as the mixed target sums to (1 - w) T + w */
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 target = f32x16_load_tail(mixed + i, n - i < 16 ? n - i : 16);
        const f32x16 shifted = f32x16_sub(f32x16_load(z + i), f32x16_set1(maximum));
        product = f32x16_add(product, f32x16_select(lanes_of_row(i, n), f32x16_mul(target, shifted), f32x16_zero()));
    }
    return (1.0f - hard_share) * temperature * temperature * soft[0] + hard_share * hard[0] - f32x16_fold_add(product);
}

static float loss_row(int loss, float parameter, float hard_share, const float *z, const float *y, const float *t, int64_t n)
{
    if (loss == FANN_LOSS_DISTILLATION)
        return distillation_row(parameter, hard_share, z, t, n);
    if (loss == FANN_LOSS_GIVEN_GRADIENT)
        return 0.0f;
    if (loss == FANN_LOSS_CROSS_ENTROPY || loss == FANN_LOSS_KL) {
        const float scale = loss == FANN_LOSS_KL ? 1.0f / parameter : 1.0f;
        const float maximum = row_maximum(z, n);
        const float total = exponential_sum(z, n, scale, maximum);
        const float value = cross_entropy_row(z, t, n, scale, loss == FANN_LOSS_KL, maximum, total);
        return loss == FANN_LOSS_KL ? parameter * parameter * value : value;
    }
    const f32x16 delta = f32x16_set1(parameter), half = f32x16_set1(0.5f), one = f32x16_set1(1.0f);
    f32x16 sum = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t here = n - i < 16 ? n - i : 16;
        const f32x16 target = f32x16_load_tail(t + i, here);
        f32x16 term;
        if (loss == FANN_LOSS_BINARY_CROSS_ENTROPY) {
            const f32x16 logit = f32x16_load(z + i);
            const f32x16 tail = f32x16_log(f32x16_add(one, f32x16_exp(f32x16_neg(f32x16_abs(logit)))));
            const f32x16 linear = f32x16_sub(f32x16_max(f32x16_zero(), logit), f32x16_mul(logit, target));
            term = f32x16_add(linear, tail);
        } else {
            const f32x16 error = f32x16_sub(f32x16_load(y + i), target);
            const f32x16 square = f32x16_mul(error, error);
            if (loss == FANN_LOSS_HUBER) {
                const f32x16 magnitude = f32x16_abs(error);
                const f32x16 linear = f32x16_mul(delta, f32x16_sub(magnitude, f32x16_mul(half, delta)));
                term = f32x16_select(f32x16_less(delta, magnitude), linear, f32x16_mul(half, square));
            } else {
                term = square;
            }
        }
        sum = f32x16_add(sum, f32x16_select(lanes_of_row(i, n), term, f32x16_zero()));
    }
    return f32x16_fold_add(sum) / (float)n;
}

/* Writes weight * dL/dz to `delta`, zeros in the padding. */
static void loss_gradient_row(int loss, float parameter, float hard_share, int activation, float slope, const float *z,
                              const float *y, const float *t, int64_t n, float weight, float *delta)
{
    if (loss == FANN_LOSS_DISTILLATION) {
        /* (1 - w) T softmax(z / T) + w softmax(z) - c */
        const f32x16 soft = f32x16_set1((1.0f - hard_share) * parameter), hard = f32x16_set1(hard_share);
        const f32x16 factor = f32x16_set1(weight);
        softmax_row(z, delta, n, 1.0f / parameter, row_maximum(z, n));
        for (int64_t i = 0; i < n; i += 16) {
            const f32x16 target = f32x16_load_tail(t + i, n - i < 16 ? n - i : 16);
            const f32x16 student = f32x16_fma(soft, f32x16_load(delta + i), f32x16_mul(hard, f32x16_load(y + i)));
            f32x16_store(delta + i, f32x16_mul(factor, f32x16_sub(student, target)));
        }
        return;
    }
    if (loss == FANN_LOSS_CROSS_ENTROPY || loss == FANN_LOSS_KL) {
        /* T (s softmax(z / T) - t) with s = sum t: s is 1 for distributions, and this is exact for any t */
        const float temperature = loss == FANN_LOSS_KL ? parameter : 1.0f;
        f32x16 sum = f32x16_zero();
        for (int64_t i = 0; i < n; i += 16)
            sum = f32x16_add(sum, f32x16_load_tail(t + i, n - i < 16 ? n - i : 16));
        const f32x16 mass = f32x16_set1(f32x16_fold_add(sum)), factor = f32x16_set1(weight * temperature);
        if (loss == FANN_LOSS_KL) {
            softmax_row(z, delta, n, 1.0f / temperature, row_maximum(z, n));
            y = delta;
        }
        for (int64_t i = 0; i < n; i += 16) {
            const f32x16 target = f32x16_load_tail(t + i, n - i < 16 ? n - i : 16);
            const f32x16 difference = f32x16_sub(f32x16_mul(mass, f32x16_load(y + i)), target);
            f32x16_store(delta + i, f32x16_mul(factor, difference));
        }
        return;
    }
    const float scale = loss == FANN_LOSS_GIVEN_GRADIENT ? weight : weight / (float)n;
    const f32x16 bound = f32x16_set1(parameter), below = f32x16_neg(bound), alpha = f32x16_set1(slope);
    f32x16 projection = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 output = f32x16_load(y + i);
        const f32x16 error = f32x16_sub(output, f32x16_load_tail(t + i, n - i < 16 ? n - i : 16));
        f32x16 g;
        if (loss == FANN_LOSS_HUBER) /* the error within [-d, d]; a NaN stays one, as the second argument */
            g = f32x16_mul(f32x16_set1(scale), f32x16_min(bound, f32x16_max(below, error)));
        else if (loss == FANN_LOSS_MSE)
            g = f32x16_mul(f32x16_set1(2.0f * scale), error);
        else if (loss == FANN_LOSS_GIVEN_GRADIENT)
            g = f32x16_mul(f32x16_set1(scale), f32x16_load_tail(t + i, n - i < 16 ? n - i : 16));
        else /* binary cross-entropy: already dL/dz */
            g = f32x16_mul(f32x16_set1(scale), error);
        if (loss != FANN_LOSS_BINARY_CROSS_ENTROPY && activation != FANN_SOFTMAX)
            g = f32x16_mul(g, derivative(activation, alpha, f32x16_load(z + i), output));
        g = f32x16_select(lanes_of_row(i, n), g, f32x16_zero());
        projection = f32x16_fma(g, output, projection);
        f32x16_store(delta + i, g);
    }
    if (activation == FANN_SOFTMAX) { /* dz_j = y_j (g_j - sum_k g_k y_k) */
        const f32x16 mean = f32x16_set1(f32x16_fold_add(projection));
        for (int64_t i = 0; i < n; i += 16)
            f32x16_store(delta + i, f32x16_mul(f32x16_load(y + i), f32x16_sub(f32x16_load(delta + i), mean)));
    }
}

#endif
