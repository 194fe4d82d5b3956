/* The kernels of int8_kernels.c for the table of their level. */
#ifndef LATTICE_INT8_KERNELS_H
#define LATTICE_INT8_KERNELS_H

#include "lattice/simd.h"
#include "step.h"

/* x [n] as a row of integer_rows.h, within the range that is fixed, or its own where that is NULL; `dot`: in the form that
 * the level's dot product instruction takes. */
void LATTICE_FN(lattice_quantize_row)(const float *x, int64_t n, const float *fixed, int dot, float *row);

int64_t LATTICE_FN(lattice_quantize_rows_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(lattice_quantize_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                           int thread);
int64_t LATTICE_FN(lattice_int8_linear_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(lattice_int8_linear_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                         int thread);

#endif
