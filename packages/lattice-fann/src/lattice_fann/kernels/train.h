/* A training step in tasks that write only their own outputs: any number of threads gives the same bits.
 *
 *     transpose   a block of a layer's weights, by output        every layer but the first
 *     rows        a stretch of the batch: gather, forward, loss, and deltas down to the first layer
 *     gradient    a block of a layer's gradient, over the whole batch in order
 *     update      the same block's parameters (optimizers.h)
 */
#ifndef LATTICE_FANN_TRAIN_H
#define LATTICE_FANN_TRAIN_H

#include "forward.h"
#include "losses.h"

static void transpose_block(const fann_step *step, int64_t index)
{
    const fann_block *block = &step->blocks[index];
    const fann_layer *layer = &step->network->layers[block->layer];
    const fann_layer_state *state = &step->states[block->layer];
    if (block->layer == 0)
        return;
    for (int64_t i0 = block->first; i0 < block->first + block->rows; i0 += 16) {
        const int64_t end = i0 + 16 < block->first + block->rows ? i0 + 16 : block->first + block->rows;
        for (int64_t o = 0; o < layer->outputs; o++)
            for (int64_t i = i0; i < end; i++)
                state->weights_by_output[o * state->input_stride + i] = layer->weights[i * layer->stride + o];
    }
}

static inline uint32_t scramble(uint32_t h)
{
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    return h ^ (h >> 16);
}

/* Input dropout: which entries go depends on the step's seed, the row of the data set and the position, not on threads. */
static void drop_inputs(const fann_step *step, int64_t row, float *x, int64_t width)
{
    const uint32_t key = scramble(scramble(step->drop_seed) + (uint32_t)row), below = step->drop_below;
    const float keep = step->keep_scale;
    for (int64_t i = 0; i < width; i++)
        x[i] = scramble(key + (uint32_t)i * 0x9e3779b9u) < below ? 0.0f : x[i] * keep;
}

static void train_rows(const fann_step *step, int64_t task)
{
    const fann_network *network = step->network;
    const int64_t first = step->rows * task / step->row_tasks, end = step->rows * (task + 1) / step->row_tasks;
    const int64_t rows = end - first, width = network->layers[0].inputs, last = network->count - 1;
    int finite = 1;
    for (int64_t row = first; row < end; row++) {
        const float *source = step->inputs + step->order[row] * width;
        float *target = step->x + row * step->x_stride;
        if (step->row_weights[row] != 0.0f) {
            scale_row(network, source, target, width);
            finite &= row_is_finite(target, width);
            if (step->drop_below)
                drop_inputs(step, step->order[row], target, width);
        } else { /* takes no part: whatever it holds must not reach a sum */
            memset(target, 0, (size_t)width * sizeof(float));
        }
    }
    const float *input = step->x + first * step->x_stride;
    int64_t input_stride = step->x_stride;
    for (int64_t l = 0; l <= last; l++) {
        const fann_layer *layer = &network->layers[l];
        const fann_layer_state *state = &step->states[l];
        float *sums = state->sums + first * state->stride, *outputs = state->outputs + first * state->stride;
        layer_sums(layer, input, input_stride, rows, sums, state->stride);
        finite &= activate_rows(layer->activation, layer->alpha, sums, outputs, rows, layer->outputs, state->stride);
        input = outputs;
        input_stride = state->stride;
    }
    step->row_faults[task] = !finite;
    if (!finite)
        return;
    const fann_layer *output_layer = &network->layers[last];
    const fann_layer_state *output = &step->states[last];
    for (int64_t row = first; row < end; row++) {
        const float *z = output->sums + row * output->stride, *y = output->outputs + row * output->stride;
        const float *t = step->targets + step->order[row] * output_layer->outputs;
        float *delta = output->deltas + row * output->stride;
        if (step->row_weights[row] == 0.0f) {
            step->row_losses[row] = 0.0f;
            memset(delta, 0, (size_t)output->stride * sizeof(float));
            continue;
        }
        step->row_losses[row] = loss_row(step->loss, step->loss_parameter, step->hard_share, z, y, t, output_layer->outputs);
        loss_gradient_row(step->loss, step->loss_parameter, step->hard_share, output_layer->activation,
                          output_layer->alpha, z, y, t, output_layer->outputs, step->row_weights[row], delta);
    }
    for (int64_t l = last; l > 0; l--) {
        const fann_layer *below = &network->layers[l - 1];
        const fann_layer_state *state = &step->states[l], *lower = &step->states[l - 1];
        const int64_t offset = first * lower->stride;
        const int64_t panels = state->input_stride / FANN_PANEL;
        for (int64_t row = first; row < end; row++)
            memset(lower->deltas + row * lower->stride, 0, (size_t)lower->stride * sizeof(float));
        multiply(BY_ROWS, state->deltas + first * state->stride, state->stride, rows, state->weights_by_output,
                 state->input_stride, panels, network->layers[l].outputs, lower->deltas + offset, lower->stride,
                 lower->deltas + offset, lower->stride);
        multiply_by_derivative(below->activation, below->alpha, lower->sums + offset, lower->outputs + offset,
                               lower->deltas + offset, rows, below->outputs, lower->stride);
    }
}

/* Sum of squares of a stretch of gradients; sets *fault if one is not finite, or clears such values when sanitizing. */
static double inspect_gradients(float *gradient, int64_t count, int sanitize, int *fault)
{
    double squares = 0.0;
    f32x16 defects = f32x16_zero();
    for (int64_t first = 0; first < count; first += 4096) {
        const int64_t end = first + 4096 < count ? first + 4096 : count;
        f32x16 sum = f32x16_zero();
        for (int64_t i = first; i < end; i += 16) {
            f32x16 g = f32x16_load(gradient + i);
            const f32x16 defect = f32x16_sub(g, g);
            if (sanitize) {
                g = f32x16_select(f32x16_equal(defect, f32x16_zero()), g, f32x16_zero());
                f32x16_store(gradient + i, g);
            } else {
                defects = f32x16_add(defects, defect);
            }
            sum = f32x16_fma(g, g, sum);
        }
        squares += (double)f32x16_fold_add(sum);
    }
    if (!(f32x16_fold_add(defects) == 0.0f)) {
        *fault = 1;
    } else if (!(squares - squares == 0.0)) { /* the squares overflowed, the gradients did not */
        squares = 0.0;
        for (int64_t i = 0; i < count; i++)
            squares += (double)gradient[i] * (double)gradient[i];
    }
    return squares;
}

static void gradient_block(const fann_step *step, int64_t index)
{
    const fann_block *block = &step->blocks[index];
    const fann_layer *layer = &step->network->layers[block->layer];
    const fann_layer_state *state = &step->states[block->layer];
    const float *x = block->layer == 0 ? step->x : step->states[block->layer - 1].outputs;
    const int64_t x_stride = block->layer == 0 ? step->x_stride : step->states[block->layer - 1].stride;
    float *gradient = state->weight_gradient + block->first * layer->stride;
    const int64_t count = block->rows * layer->stride;
    memset(gradient, 0, (size_t)count * sizeof(float));
    multiply(BY_COLUMNS, x + block->first, x_stride, block->rows, state->deltas, state->stride, layer->stride / FANN_PANEL,
             step->rows, gradient, layer->stride, gradient, layer->stride);
    int fault = 0;
    double squares = inspect_gradients(gradient, count, step->sanitize, &fault);
    if (block->first == 0) {
        for (int64_t i = 0; i < layer->stride; i += 16) {
            f32x16 sum = f32x16_zero();
            for (int64_t row = 0; row < step->rows; row++)
                sum = f32x16_add(sum, f32x16_load(state->deltas + row * state->stride + i));
            f32x16_store(state->bias_gradient + i, sum);
        }
        squares += inspect_gradients(state->bias_gradient, layer->stride, step->sanitize, &fault);
    }
    step->block_squares[index] = squares;
    step->block_faults[index] = fault;
}

#endif
