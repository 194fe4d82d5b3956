/* The kernels of block_kernels.c for the table of their level. */
#ifndef LATTICE_BLOCK_KERNELS_H
#define LATTICE_BLOCK_KERNELS_H

#include "lattice/simd.h"
#include "linear_output.h"
#include "step.h"

int64_t LATTICE_FN(lattice_quantize_blocks_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(lattice_quantize_blocks_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                             int thread);
int64_t LATTICE_FN(lattice_block_linear_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(lattice_block_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                          int thread);
void LATTICE_FN(lattice_dequantized_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                                int thread);

/* Row `id` of a table that lies in block panels, k floats, to y; plus `residual`, which may be y, if not NULL. */
void LATTICE_FN(lattice_block_table_row)(const lattice_op *op, int64_t id, const float *residual, float *y);

/* Of kernels.c: rows of floats by one panel of float32 weights, [k][16]. */
void LATTICE_FN(lattice_multiply_panel)(const float *x, int64_t x_stride, int64_t rows, const float *panel, int64_t k,
                                        const lattice_output *output);

#endif
