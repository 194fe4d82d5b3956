/* The kernels of bfloat16_kernels.c and tile_attention.c for the table of their level. */
#ifndef LATTICE_BFLOAT16_KERNELS_H
#define LATTICE_BFLOAT16_KERNELS_H

#include "lattice/simd.h"
#include "step.h"

int64_t LATTICE_FN(lattice_bfloat16_linear_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(lattice_bfloat16_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                             int thread);
int64_t LATTICE_FN(lattice_tile_attention_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(lattice_tile_attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                            int thread);

#endif
