/* What int8_kernels.c offers to other kernels of its level. */
#ifndef LATTICE_INT8_KERNELS_H
#define LATTICE_INT8_KERNELS_H

#include "lattice/simd.h"
#include "step.h"

/* x [n] as a row of integer_rows.h, within the range that is fixed, or its own where that is NULL; `dot`: in the form that
 * the level's dot product instruction takes. */
void LATTICE_FN(lattice_quantize_row)(const float *x, int64_t n, const float *fixed, int dot, float *row);

#endif
