/* Scratch of the kernels of a reverse pass, and sizes that it follows from. */
#ifndef LATTICE_REVERSE_SCRATCH_H
#define LATTICE_REVERSE_SCRATCH_H

#include "linear/block_format.h"

/* Elements of k that turning a panel begins and ends with: a record of blocks, or one of their blocks' length. */
static inline int64_t lattice_turned_unit(int weight_type)
{
    return weight_type < LATTICE_WEIGHT_BLOCKS
               ? LATTICE_BLOCK
               : LATTICE_BLOCK * (int64_t)lattice_block_layout_of(weight_type - LATTICE_WEIGHT_BLOCKS).blocks;
}

/* The most elements of k that a task turns at once. */
static inline int64_t lattice_turned_columns(int weight_type)
{
    const int64_t unit = lattice_turned_unit(weight_type);
    return unit > LATTICE_TURNED_COLUMNS ? unit : LATTICE_TURNED_COLUMNS;
}

/* The outputs n of a linear that are turned at once, in whole panels. */
static inline int64_t lattice_turned_depth(int64_t n)
{
    return lattice_round_up(n < LATTICE_TURNED_DEPTH ? n : LATTICE_TURNED_DEPTH, LATTICE_PANEL);
}

/* Bytes of scratch that one thread needs for an op of a reverse pass; 0 for other ops. */
static inline int64_t lattice_reverse_scratch_bytes(const lattice_op *op)
{
    const int64_t width = lattice_round_up(op->factors.rank, LATTICE_PANEL);
    int64_t floats = 0;
    switch (op->kernel) {
    case LATTICE_KERNEL_LINEAR_INPUT_GRAD:
        floats = lattice_turned_columns(op->linear.weight_type) * (lattice_turned_depth(op->k) + LATTICE_PANEL);
        break;
    case LATTICE_KERNEL_LOW_RANK_INNER: /* A turned, and rows after dropout */
        floats = op->k * (lattice_round_up(op->n, LATTICE_PANEL) + LATTICE_FACTOR_ROWS);
        break;
    case LATTICE_KERNEL_LOW_RANK_OUTER: /* u scaled, and some rows of B turned */
        floats = op->k * (LATTICE_FACTOR_ROWS + LATTICE_FACTOR_COLUMNS);
        break;
    case LATTICE_KERNEL_LOW_RANK_INNER_GRAD: /* B with whole vectors */
        floats = op->k * lattice_round_up(op->n, LATTICE_PANEL);
        break;
    case LATTICE_KERNEL_LOW_RANK_INPUT_GRAD:
        floats = LATTICE_FACTOR_ROWS * LATTICE_FACTOR_COLUMNS;
        break;
    case LATTICE_KERNEL_LOW_RANK_GRAD: /* sums, and rows after dropout or of u with whole vectors */
        floats = LATTICE_FACTOR_SHARE * (width + (width > LATTICE_FACTOR_ROWS ? width : LATTICE_FACTOR_ROWS));
        break;
    case LATTICE_KERNEL_ATTENTION_GRAD:
    case LATTICE_KERNEL_ATTENTION_KEYS_GRAD: {
        const int64_t dim = op->attention_grad->head_dim;
        floats = 2 * LATTICE_GRAD_KEYS * (dim + LATTICE_GRAD_QUERIES + lattice_round_up(dim, LATTICE_PANEL));
        break;
    }
    case LATTICE_KERNEL_LINEAR_CROSS_ENTROPY: { /* logits, sums of a gradient, and panels widened, then turned */
        const int64_t depth = lattice_round_up(op->k, LATTICE_PANEL);
        floats = LATTICE_LOSS_ROWS * (LATTICE_LOSS_COLUMNS + depth) + 2 * LATTICE_LOSS_COLUMNS * depth;
        break;
    }
    default:
        break;
    }
    return lattice_round_up(floats * (int64_t)sizeof(float), 64);
}

#endif
