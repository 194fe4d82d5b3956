/* A network, a forward pass and a training step as C structs: what the door fills and the kernels of each level read.
 *
 * Weights are stored by input: weights[i][o], rows `stride` floats apart, with `stride` a multiple of 16 and the columns
 * beyond `outputs` zero. In this form three of the four products of training read it in place:
 *
 *     forward   Y[m][o]  = sum over i of  X[m][i] W[i][o]      rows of W
 *     gradient  dW[i][o] = sum over m of  X[m][i] dY[m][o]     rows of dY, columns of X
 *     one row   y[o]     = sum over i of  x[i] W[i][o]         a stream through W
 *     backward  dX[m][i] = sum over o of  dY[m][o] W[i][o]     needs W by output: transposed once a step, and never for
 *                                                              the first layer, which is mostly the largest
 *
 * Every buffer of activations has rows padded with zeros to a multiple of 16 floats, so no kernel over them has a tail.
 */
#ifndef LATTICE_FANN_NETWORK_H
#define LATTICE_FANN_NETWORK_H

#include <stdint.h>

#define FANN_PANEL 16

/* Tags 0 to 5 are those of the file format. */
enum {
    FANN_LINEAR = 0,
    FANN_SIGMOID = 1,
    FANN_TANH = 2,
    FANN_RELU = 3,
    FANN_LEAKY_RELU = 4,
    FANN_SOFTMAX = 5,
    FANN_GELU = 6,
    FANN_SILU = 7,
};

enum {
    FANN_LOSS_MSE = 0,
    FANN_LOSS_HUBER = 1,
    FANN_LOSS_CROSS_ENTROPY = 2,        /* over softmax, from the logits; a temperature makes it the KL divergence's */
    FANN_LOSS_KL = 3,
    FANN_LOSS_BINARY_CROSS_ENTROPY = 4, /* over sigmoid, from the logits */
    FANN_LOSS_GIVEN_GRADIENT = 5,       /* the targets are dL/dy itself; its value is not known */
    FANN_LOSS_DISTILLATION = 6,         /* two cross-entropies, at a temperature and at 1, with one mixed target */
};

enum {
    FANN_SGD = 0,
    FANN_NESTEROV = 1,
    FANN_ADAM = 2,
    FANN_ADAMW = 3,
    FANN_RMSPROP = 4,
    FANN_RPROP = 5,
};

typedef struct {
    int64_t inputs, outputs, stride;
    float *weights; /* [inputs][stride] */
    float *biases;  /* [stride] */
    int activation;
    float alpha; /* slope of the leaky ReLU below zero */
} fann_layer;

typedef struct {
    const fann_layer *layers;
    int64_t count;
    const float *input_mean, *input_scale; /* x -> (x - mean) * scale, or NULL */
    int64_t widest; /* floats of the longest padded row, the input's included where it is scaled */
} fann_network;

/* Where the first value that is not finite stands; layer -1 is the input. */
typedef struct {
    int64_t layer, row, index;
} fann_fault;

/* One layer's buffers of a training step; rows `stride` floats apart (an odd multiple of 16, against cache conflicts). */
typedef struct {
    int64_t stride;
    float *sums;         /* before the activation */
    float *outputs;      /* after it */
    float *deltas;       /* the loss's derivative by the sums */
    float *weight_gradient, *bias_gradient;
    float *weights_by_output; /* [outputs][input_stride], of layers after the first */
    int64_t input_stride;     /* of that copy: the inputs padded to a multiple of 16 */
} fann_layer_state;

/* A stretch of rows of one layer's weights: the unit of work for gradients and updates. Row 0's block has the biases too. */
typedef struct {
    int64_t layer, first, rows;
} fann_block;

typedef struct {
    int kind;
    float learning_rate, momentum, beta2, rest1, rest2, epsilon, weight_decay; /* rest: 1 - beta, rounded once */
    float step_size, correction2_root; /* Adam's: rate / (1 - beta1^t), sqrt(1 - beta2^t) */
    float keep;                        /* AdamW's: 1 - rate * decay */
    float gradient_scale, gradient_limit;
    float shrink, grow, smallest_step, largest_step; /* Rprop */
    int decay_biases;
} fann_optimizer;

typedef struct {
    const fann_network *network;
    const fann_layer_state *states;
    const fann_block *blocks;
    int64_t block_count;
    /* the batch */
    const float *inputs, *targets; /* the whole data set, rows `network->layers[0].inputs` and `outputs` long */
    const int64_t *order;          /* rows of the data set in this batch */
    const float *row_weights;      /* [rows], already divided by their sum */
    int64_t rows, row_tasks;
    float *x; /* the batch's inputs, gathered and scaled */
    int64_t x_stride;
    float *row_losses; /* [rows] */
    int loss;
    float loss_parameter; /* Huber's delta, the temperature of KL divergence and distillation */
    float hard_share;     /* distillation: the weight of the cross-entropy at temperature 1 */
    uint32_t drop_seed;   /* input dropout: which entries are set to zero */
    uint32_t drop_below;  /* the part of them, times 2^32; 0 leaves all */
    float keep_scale;     /* what the others are multiplied by */
    /* what came out, one slot a task */
    int *row_faults;          /* [row_tasks] */
    double *block_squares;    /* [block_count]: sum of the squared gradients */
    int *block_faults;        /* [block_count] */
    int sanitize;             /* replace gradients that are not finite by zero */
    /* the update */
    fann_optimizer optimizer;
    float *parameters, *gradients, *moment1, *moment2; /* flat, laid out alike */
} fann_step;

typedef struct {
    int tile_rows;
    /* Rows of x through the network. `scratch` holds 2 * rows * network->widest floats. Returns 1 if all is finite. */
    int (*forward)(const fann_network *network, const float *x, int64_t x_stride, int64_t rows, float *y, int64_t y_stride,
                   float *scratch, fann_fault *fault);
    void (*transpose)(const fann_step *step, int64_t block);
    void (*rows)(const fann_step *step, int64_t task);
    void (*gradient)(const fann_step *step, int64_t block);
    void (*update)(const fann_step *step, int64_t block);
    /* `count` parameters, a multiple of 16, that belong to no network. */
    void (*update_flat)(const fann_optimizer *optimizer, float *parameters, const float *gradients, float *moment1,
                        float *moment2, int64_t count);
    void (*row_losses)(int loss, float parameter, float hard_share, const float *sums, const float *outputs,
                       const float *targets, int64_t n, int64_t rows, float *losses);
    void (*activation)(int activation, float alpha, const float *z, float *y, int64_t rows, int64_t n, int64_t stride);
} fann_kernel_table;

static inline int64_t fann_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t fann_padded(int64_t n)
{
    return fann_divide_up(n, FANN_PANEL) * FANN_PANEL;
}

#endif
