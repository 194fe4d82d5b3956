/* Rows of a matrix as they are stored, a query made ready for them, and the table of kernels that score the two.
 *
 *     kind       a value is                            query
 *     float32    itself                                float32
 *     bfloat16   the upper half of a float32           float32
 *     float16    IEEE binary16                         float32
 *     int8       step * q, q in -127 to 127            int16 y, a component being query.step * y;
 *                                                      query.high and query.low hold their bytes
 *     int4       step * q - offset, q in 0 to 15,      int8 y: those of even components, from the next multiple of
 *                even components in the high nibble    LATTICE_QUERY_PADDING on those of odd ones
 *     binary     one bit, the first the highest        as stored
 *
 * With q the query's integers and r the row's, for int8 and int4
 *
 *     dot = step_r (step_q sum q r  -  offset_q sum r)  -  offset_r total_q  +  constant_q
 *
 * in double precision, each sum an exact integer, in the order written: the same bits on every instruction set.
 *
 * A query's integers are padded with zeros to a multiple of LATTICE_QUERY_PADDING. Rows are never read past their end.
 */
#ifndef LATTICE_STORED_ROWS_H
#define LATTICE_STORED_ROWS_H

#include "matrix_product.h"
#include "vector_kernels.h"

#define LATTICE_QUERY_PADDING 64
#define LATTICE_MAX_DIMENSIONS 65536

typedef enum {
    LATTICE_FLOAT32 = 0,
    LATTICE_BFLOAT16 = 1,
    LATTICE_FLOAT16 = 2,
    LATTICE_INT8 = 3,
    LATTICE_INT4 = 4,
    LATTICE_BINARY = 5,
    LATTICE_KIND_COUNT = 6
} lattice_kind;

/* For binary rows LATTICE_COSINE is 1 - 2 differing / width, and this one the number of differing bits. */
#define LATTICE_HAMMING 5

typedef struct {
    int kind;
    size_t count, width, row_bytes; /* width in components */
    const void *data;
    const float *steps, *offsets; /* one a row; offsets for int4 only */
    const int32_t *sums;          /* of each row's integers; int4 only */
    const float *inverse_norms;   /* int8, int4: 1 / length, 0 for a row without; read for cosine only */
    const double *squares;        /* int8, int4: squared lengths of the rows as stored; read for distances only */
} lattice_rows;

typedef struct {
    int metric;
    const void *data;
    double step, offset, total, constant;
    double inverse_norm, square;
    const int8_t *high;  /* for int8 rows: y as bytes where all fit (`is_byte`), else y >> 8 */
    const uint8_t *low;  /* y & 255 */
    int is_byte;
    uint32_t excess;     /* what rows without a sign, r + 128, add to the sum of y r, modulo 2^32 */
} lattice_query;

/* scores[i] = metric(query, row first + i). */
typedef void (*lattice_score_rows)(const lattice_rows *rows, const lattice_query *query, size_t first, size_t count,
                                   float *scores);

typedef struct {
    lattice_score_rows score_int8, score_int4;
    int32_t (*dot_int8)(const int8_t *a, const int8_t *b, size_t width);
    int32_t (*dot_int4)(const uint8_t *a, const uint8_t *b, size_t bytes);
} lattice_integer_kernels;

typedef struct {
    lattice_score_rows score_binary;
    int64_t (*hamming)(const uint8_t *a, const uint8_t *b, size_t bytes);
} lattice_binary_kernels;

typedef struct {
    lattice_score_rows score_float32, score_bfloat16, score_float16;
} lattice_row_kernels;

typedef struct {
    /* Row by row to int8 (scale 127 / largest), to int4 (15 / (2 largest)), to bits (value >= threshold). Values are finite. */
    void (*to_int8)(const float *rows, size_t count, size_t width, int8_t *data, float *scales);
    void (*to_int4)(const float *rows, size_t count, size_t width, uint8_t *data, float *scales, float *largest);
    void (*to_binary)(const float *rows, size_t count, size_t width, float threshold, uint8_t *data);
    /* The row of the first value that is NaN or infinite, or -1. */
    int64_t (*find_not_finite)(const float *rows, size_t count, size_t width);
} lattice_storing_kernels;

/* What is chosen for a CPU: an instruction set, and single instructions beyond it. */
typedef struct {
    const lattice_vector_kernels *vectors;
    const lattice_product_kernels *products;
    const lattice_integer_kernels *integers;
    const lattice_binary_kernels *bits;
    const lattice_storing_kernels *storing;
    lattice_score_rows score[LATTICE_KIND_COUNT];
} lattice_kernel_choice;

/* `extensions` 0 leaves out the bodies for single instructions (VNNI, VPOPCNTDQ, SDOT) even where the CPU has them. */
void lattice_choose_kernels(int isa, int extensions, lattice_kernel_choice *choice);

#endif
