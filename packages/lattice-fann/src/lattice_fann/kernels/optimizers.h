/* The update rules, element by element, in the form PyTorch gives them; the gradient is the batch's mean.
 *
 * Weight decay w: added to the gradient as w * parameter (L2), or, for AdamW, parameter *= 1 - rate * w. Either way it does
 * not depend on the batch size. Clipping by norm arrives as `gradient_scale`, clipping by value as `gradient_limit`.
 */
#ifndef LATTICE_FANN_OPTIMIZERS_H
#define LATTICE_FANN_OPTIMIZERS_H

#include "lattice/simd.h"
#include "network.h"

LATTICE_INLINE void update_stretch(const fann_optimizer *o, float weight_decay, float *parameters, const float *gradients,
                                   float *moment1, float *moment2, int64_t count, int kind, int plain)
{
    const f32x16 decay = f32x16_set1(weight_decay), one = f32x16_set1(1.0f);
    const f32x16 rate = f32x16_set1(o->learning_rate), momentum = f32x16_set1(o->momentum);
    const f32x16 beta2 = f32x16_set1(o->beta2), epsilon = f32x16_set1(o->epsilon);
    const f32x16 rest1 = f32x16_set1(o->rest1), rest2 = f32x16_set1(o->rest2);
    const f32x16 step_size = f32x16_set1(o->step_size);
    const f32x16 correction2 = f32x16_set1(o->correction2_root);
    const f32x16 scale = f32x16_set1(o->gradient_scale), limit = f32x16_set1(o->gradient_limit);
    const f32x16 keep = f32x16_set1(weight_decay == 0.0f ? 1.0f : o->keep);
    for (int64_t i = 0; i < count; i += 16) {
        f32x16 w = f32x16_load(parameters + i), g = f32x16_load(gradients + i);
        if (!plain) {
            g = f32x16_mul(g, scale);
            g = f32x16_min(limit, f32x16_max(f32x16_neg(limit), g));
        }
        if (kind == FANN_ADAMW)
            w = f32x16_mul(w, keep);
        else
            g = f32x16_fma(decay, w, g);
        switch (kind) {
        case FANN_SGD: {
            const f32x16 velocity = f32x16_fma(momentum, f32x16_load(moment1 + i), g);
            f32x16_store(moment1 + i, velocity);
            w = f32x16_fma(f32x16_neg(rate), velocity, w);
            break;
        }
        case FANN_NESTEROV: {
            const f32x16 velocity = f32x16_fma(momentum, f32x16_load(moment1 + i), g);
            f32x16_store(moment1 + i, velocity);
            w = f32x16_fma(f32x16_neg(rate), f32x16_fma(momentum, velocity, g), w);
            break;
        }
        case FANN_ADAM:
        case FANN_ADAMW: {
            const f32x16 m = f32x16_load(moment1 + i);
            const f32x16 first = f32x16_fma(f32x16_sub(g, m), rest1, m);
            const f32x16 second = f32x16_fma(f32x16_mul(rest2, g), g, f32x16_mul(beta2, f32x16_load(moment2 + i)));
            f32x16_store(moment1 + i, first);
            f32x16_store(moment2 + i, second);
            const f32x16 spread = f32x16_add(f32x16_div(f32x16_sqrt(second), correction2), epsilon);
            w = f32x16_sub(w, f32x16_div(f32x16_mul(step_size, first), spread));
            break;
        }
        case FANN_RMSPROP: { /* beta2 smooths the squares */
            const f32x16 second = f32x16_fma(f32x16_mul(rest2, g), g, f32x16_mul(beta2, f32x16_load(moment2 + i)));
            f32x16_store(moment2 + i, second);
            w = f32x16_sub(w, f32x16_div(f32x16_mul(rate, g), f32x16_add(f32x16_sqrt(second), epsilon)));
            break;
        }
        default: { /* Rprop: moment1 is the last gradient, moment2 the step of each parameter */
            const f32x16 product = f32x16_mul(g, f32x16_load(moment1 + i));
            const m16 turned = f32x16_less(product, f32x16_zero()), went_on = f32x16_less(f32x16_zero(), product);
            const f32x16 factor =
                f32x16_select(turned, f32x16_set1(o->shrink), f32x16_select(went_on, f32x16_set1(o->grow), one));
            f32x16 size = f32x16_mul(f32x16_load(moment2 + i), factor);
            size = f32x16_min(f32x16_set1(o->largest_step), f32x16_max(f32x16_set1(o->smallest_step), size));
            f32x16_store(moment2 + i, size);
            g = f32x16_select(turned, f32x16_zero(), g);
            f32x16_store(moment1 + i, g);
            const f32x16 signed_size = f32x16_copysign(size, g);
            w = f32x16_sub(w, f32x16_select(f32x16_equal(g, f32x16_zero()), f32x16_zero(), signed_size));
            break;
        }
        }
        f32x16_store(parameters + i, w);
    }
}

static void update_any(const fann_optimizer *o, float decay, float *w, const float *g, float *m1, float *m2, int64_t count)
{
    const int plain = o->gradient_scale == 1.0f && o->gradient_limit == __builtin_inff();
#define KIND(constant)                                                                                                 \
    case constant:                                                                                                     \
        if (plain)                                                                                                     \
            update_stretch(o, decay, w, g, m1, m2, count, constant, 1);                                                \
        else                                                                                                           \
            update_stretch(o, decay, w, g, m1, m2, count, constant, 0);                                                \
        break
    switch (o->kind) {
        KIND(FANN_SGD);
        KIND(FANN_NESTEROV);
        KIND(FANN_ADAM);
        KIND(FANN_ADAMW);
        KIND(FANN_RMSPROP);
    default:
        update_stretch(o, decay, w, g, m1, m2, count, FANN_RPROP, 0);
    }
#undef KIND
}

static void update_flat(const fann_optimizer *optimizer, float *parameters, const float *gradients, float *moment1,
                        float *moment2, int64_t count)
{
    update_any(optimizer, optimizer->weight_decay, parameters, gradients, moment1, moment2, count);
}

static void update_block(const fann_step *step, int64_t index)
{
    const fann_block *block = &step->blocks[index];
    const fann_layer *layer = &step->network->layers[block->layer];
    const fann_optimizer *optimizer = &step->optimizer;
    const int64_t weights = layer->weights - step->parameters + block->first * layer->stride;
    update_any(optimizer, optimizer->weight_decay, step->parameters + weights, step->gradients + weights,
               step->moment1 + weights, step->moment2 + weights, block->rows * layer->stride);
    if (block->first == 0) {
        const int64_t biases = layer->biases - step->parameters;
        update_any(optimizer, optimizer->decay_biases ? optimizer->weight_decay : 0.0f, step->parameters + biases,
                   step->gradients + biases, step->moment1 + biases, step->moment2 + biases, layer->stride);
    }
}

#endif
