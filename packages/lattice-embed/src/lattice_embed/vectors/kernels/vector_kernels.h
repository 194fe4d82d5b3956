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

    /* scores[i] = metric(query, rows[i]), the bits of pair[metric](query, rows[i]). */
    void (*one_vs_many)(int metric, const float *query, const float *rows, size_t count, size_t width, float *scores);

    /* scores[i] = metric(a[i], b[i]), the bits of pair[metric]. */
    void (*row_by_row)(int metric, const float *a, const float *b, size_t count, size_t width, float *scores);

    /* scores[i * b_count + j] = metric(a[i], b[j]). `norms` is room for a_count + b_count doubles. */
    void (*many_vs_many)(int metric, const float *a, size_t a_count, const float *b, size_t b_count, size_t width,
                         double *norms, float *scores);

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
