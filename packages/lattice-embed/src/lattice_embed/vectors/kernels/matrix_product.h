/* All rows of one matrix against all rows of another: kernels over packed panels. See matrix_product.c. */
#ifndef LATTICE_MATRIX_PRODUCT_H
#define LATTICE_MATRIX_PRODUCT_H

#include <stddef.h>

#define LATTICE_PANEL 16

typedef struct {
    /* `count` rows to panels of sixteen, each [width][16]; the last one is filled up with zeros. */
    void (*pack)(const float *rows, size_t count, size_t width, float *panels);

    /* scores[i * stride + j] = the metric's sum of terms between row i of a and row j of those packed. */
    void (*multiply)(int metric, const float *a, size_t a_count, const float *panels, size_t b_count, size_t width,
                     float *scores, size_t stride);

    /* Turns those sums into scores of the metric. The norms (fill_norms of vector_kernels.h) are read for cosine only. */
    void (*finish)(int metric, const float *a, size_t a_count, const float *b, size_t b_count, size_t width,
                   const double *a_norms, const double *b_norms, float *scores, size_t stride);
} lattice_product_kernels;

#endif
