/* All rows of one matrix against all rows of another: kernels over packed panels. See matrix_product.c. */
#ifndef LATTICE_MATRIX_PRODUCT_H
#define LATTICE_MATRIX_PRODUCT_H

#include <stddef.h>

#define LATTICE_PANEL 16

typedef struct {
    int metric;
    size_t width;
    const float *a, *b; /* rows */
    const float *tiles;  /* the rows of a by pack_tiles, or NULL: they are read in place */
    const float *panels; /* the rows of b by pack_panels */
    size_t a_count, b_count;
    const float *a_inverses, *b_inverses; /* by invert_lengths of vector_kernels.h; read for cosine only */
    float *scores;                        /* of row i of a and row j of b: [i * stride + j] */
    size_t stride;
} lattice_product;

typedef struct {
    /* `count` rows to panels of sixteen, each [width][16]; the last one is filled up with zeros. */
    void (*pack_panels)(const float *rows, size_t count, size_t width, float *panels);

    /* `count` rows to what `score` reads in one stream, count * width floats. NULL where that is no gain, and for metrics
     * but dot and cosine it is none. */
    void (*pack_tiles)(const float *rows, size_t count, size_t width, float *tiles);

    /* Scores of the metric between all rows. */
    void (*score)(const lattice_product *product);
} lattice_product_kernels;

#endif
