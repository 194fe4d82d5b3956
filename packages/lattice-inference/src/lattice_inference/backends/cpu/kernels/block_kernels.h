/* What block_kernels.c and kernels.c offer to other kernels of their level. */
#ifndef LATTICE_BLOCK_KERNELS_H
#define LATTICE_BLOCK_KERNELS_H

#include "lattice/simd.h"
#include "linear_output.h"
#include "step.h"

/* Row `id` of a table that lies in block panels, k floats, to y; plus `residual`, which may be y, if not NULL. */
void LATTICE_FN(lattice_block_table_row)(const lattice_op *op, int64_t id, const float *residual, float *y);

/* Of kernels.c: rows of floats by one panel of float32 weights, [k][16]. */
void LATTICE_FN(lattice_multiply_panel)(const float *x, int64_t x_stride, int64_t rows, const float *panel, int64_t k,
                                        const lattice_output *output);

#endif
