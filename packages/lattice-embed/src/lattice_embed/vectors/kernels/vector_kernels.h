/* The table of float32 kernels that every instruction set fills. */
#ifndef LATTICE_VECTOR_KERNELS_H
#define LATTICE_VECTOR_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "lattice/cpu.h"

/* What is measured between two vectors. The numbers index `pair`. */
typedef enum {
    LATTICE_DOT = 0,
    LATTICE_COSINE = 1,
    LATTICE_EUCLIDEAN = 2,
    LATTICE_SQUARED_EUCLIDEAN = 3,
    LATTICE_MANHATTAN = 4,
    LATTICE_METRIC_COUNT = 5
} lattice_metric;

typedef struct {
    /* One pair of vectors of `width` floats. */
    float (*pair[LATTICE_METRIC_COUNT])(const float *a, const float *b, size_t width);

    /* scores[i] = metric(a + i * a_step, b + i * width), the bits of pair[metric]. `a_step` is 0 for one vector against
     * many, `width` for row i against row i. */
    void (*score_rows)(int metric, const float *a, size_t a_step, const float *b, size_t count, size_t width,
                       float *scores);

    /* 1 / length of rows; 0 for those that need double precision: too small, too large, or not finite. */
    void (*invert_lengths)(const float *rows, size_t count, size_t width, float *inverses);

    /* Each row divided by its length; rows of zeros stay. `target` may be `source`. */
    void (*normalize)(const float *source, float *target, size_t count, size_t width);

    /* The first position from `start` on whose score is not worse than `worst`, or `count`. NaN is worse than everything. */
    size_t (*find_candidate)(const float *scores, size_t start, size_t count, float worst, int largest);
} lattice_vector_kernels;

#endif
