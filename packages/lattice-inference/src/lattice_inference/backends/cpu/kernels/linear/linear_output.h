/* Where the sums of a linear go, whatever its weights are kept in. */
#ifndef LATTICE_LINEAR_OUTPUT_H
#define LATTICE_LINEAR_OUTPUT_H

#include "lattice/simd.h"

/* Where sums go, and what is added to them: bias and residual may be NULL. With an activation there is no residual. */
typedef struct {
    float *y;
    int64_t stride;
    int64_t columns; /* of y; the last panel may be wider than what is left of them */
    const float *bias;
    const float *residual;
    int64_t residual_stride;
    int activation;
} lattice_output;

#endif
