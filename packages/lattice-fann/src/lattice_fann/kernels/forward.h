/* The forward pass: rows of input through every layer, checked for values that are not finite. */
#ifndef LATTICE_FANN_FORWARD_H
#define LATTICE_FANN_FORWARD_H

#include "activations.h"
#include "multiply.h"

/* The sums of a layer for `rows` rows: start from the bias, add the products. */
LATTICE_INLINE void layer_sums(const fann_layer *layer, const float *x, int64_t x_stride, int64_t rows, float *z,
                               int64_t z_stride)
{
    multiply(BY_ROWS, x, x_stride, rows, layer->weights, layer->stride, layer->stride / FANN_PANEL, layer->inputs,
             layer->biases, 0, z, z_stride);
}

/* x -> (x - mean) scale, or a plain copy; the padding is not written. */
LATTICE_INLINE void scale_row(const fann_network *network, const float *x, float *scaled, int64_t n)
{
    if (network->input_mean == NULL) {
        memcpy(scaled, x, (size_t)n * sizeof(float));
        return;
    }
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        f32x16_store(scaled + i, f32x16_mul(f32x16_sub(f32x16_load(x + i), f32x16_load(network->input_mean + i)),
                                            f32x16_load(network->input_scale + i)));
    if (i < n) {
        const int64_t here = n - i;
        const f32x16 centred = f32x16_sub(f32x16_load_tail(x + i, here), f32x16_load_tail(network->input_mean + i, here));
        f32x16_store_tail(scaled + i, f32x16_mul(centred, f32x16_load_tail(network->input_scale + i, here)), here);
    }
}

LATTICE_INLINE int row_is_finite(const float *x, int64_t n)
{
    f32x16 defects = f32x16_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const f32x16 value = f32x16_load(x + i);
        defects = f32x16_add(defects, f32x16_sub(value, value));
    }
    if (i < n) {
        const f32x16 value = f32x16_load_tail(x + i, n - i);
        defects = f32x16_add(defects, f32x16_sub(value, value));
    }
    return f32x16_fold_add(defects) == 0.0f;
}

/* The first value of rows that is not finite. Only called when there is one. */
static void find_fault(const float *values, int64_t stride, int64_t rows, int64_t n, int64_t layer, fann_fault *fault)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < n; i++) {
            const float value = values[row * stride + i];
            if (!(value - value == 0.0f)) {
                *fault = (fann_fault){layer, row, i};
                return;
            }
        }
}

static int forward_rows(const fann_network *network, const float *x, int64_t x_stride, int64_t rows, float *y,
                        int64_t y_stride, float *scratch, fann_fault *fault)
{
    const int64_t width = network->layers[0].inputs;
    float *current = scratch, *next = scratch + rows * network->widest;
    for (int64_t row = 0; row < rows; row++)
        if (!row_is_finite(x + row * x_stride, width)) {
            find_fault(x + row * x_stride, x_stride, 1, width, -1, fault);
            fault->row = row;
            return 0;
        }
    const float *input = x;
    int64_t input_stride = x_stride;
    if (network->input_mean != NULL) {
        for (int64_t row = 0; row < rows; row++)
            scale_row(network, x + row * x_stride, current + row * network->widest, width);
        input = current;
        input_stride = network->widest;
    }
    for (int64_t l = 0; l < network->count; l++) {
        const fann_layer *layer = &network->layers[l];
        layer_sums(layer, input, input_stride, rows, next, layer->stride);
        if (!activate_rows(layer->activation, layer->alpha, next, next, rows, layer->outputs, layer->stride)) {
            find_fault(next, layer->stride, rows, layer->outputs, l, fault);
            return 0;
        }
        float *const spare = current;
        current = next;
        next = spare;
        input = current;
        input_stride = layer->stride;
    }
    const fann_layer *last = &network->layers[network->count - 1];
    for (int64_t row = 0; row < rows; row++)
        memcpy(y + row * y_stride, current + row * last->stride, (size_t)last->outputs * sizeof(float));
    return 1;
}

#endif
