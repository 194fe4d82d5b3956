/* The table of vector kernels that every instruction set fills, and the choice among them. */
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

    /* Lengths of rows, for score_block; 0 for those that cosine must do in double. */
    void (*fill_norms)(const float *rows, size_t count, size_t width, double *norms);

    /* scores[i * stride + j] = metric(a[i], b[j]). The norms are read for cosine only. */
    void (*score_block)(int metric, const float *a, size_t a_count, const float *b, size_t b_count, size_t width,
                        const double *a_norms, const double *b_norms, float *scores, size_t stride);

    /* Each row divided by its length; rows of zeros stay. `target` may be `source`. */
    void (*normalize)(const float *source, float *target, size_t count, size_t width);
} lattice_vector_kernels;

extern const lattice_vector_kernels lattice_vector_kernels_baseline;
#if defined(__x86_64__)
extern const lattice_vector_kernels lattice_vector_kernels_avx2;
extern const lattice_vector_kernels lattice_vector_kernels_avx512;
#elif defined(__aarch64__)
extern const lattice_vector_kernels lattice_vector_kernels_neon;
#endif

static inline const lattice_vector_kernels *lattice_vector_kernels_for(int isa)
{
    switch (isa) {
#if defined(__x86_64__)
    case LATTICE_AVX2:
        return &lattice_vector_kernels_avx2;
    case LATTICE_AVX512:
        return &lattice_vector_kernels_avx512;
#elif defined(__aarch64__)
    case LATTICE_NEON:
        return &lattice_vector_kernels_neon;
#endif
    default:
        return &lattice_vector_kernels_baseline;
    }
}

/* Writes the positions and values of the `wanted` best of `count` scores, best first. `largest` says which end is best;
 * equal scores go by the lower position; NaN is worse than everything. wanted <= count. */
void lattice_select_best(const float *scores, int64_t count, int64_t wanted, int largest, int64_t *positions,
                         float *values);

#endif
