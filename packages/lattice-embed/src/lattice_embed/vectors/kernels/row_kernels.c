/* A float32 query against rows of float32, bfloat16 or float16. Half rows give the bits of their float32 copies: row_sums.h. */
#include "row_sums.h"

LATTICE_INLINE void score_floats(int kind, const lattice_rows *rows, const lattice_query *query, size_t first,
                                 size_t count, float *scores)
{
    const void *data = (const char *)rows->data + first * rows->width * bytes_of(kind);
    score_rows_of_kind(query->metric, kind, query->data, 0, data, count, rows->width, scores);
}

static void score_float32(const lattice_rows *rows, const lattice_query *query, size_t first, size_t count, float *scores)
{
    score_floats(LATTICE_FLOAT32, rows, query, first, count, scores);
}

static void score_bfloat16(const lattice_rows *rows, const lattice_query *query, size_t first, size_t count,
                           float *scores)
{
    score_floats(LATTICE_BFLOAT16, rows, query, first, count, scores);
}

static void score_float16(const lattice_rows *rows, const lattice_query *query, size_t first, size_t count, float *scores)
{
    score_floats(LATTICE_FLOAT16, rows, query, first, count, scores);
}

const lattice_row_kernels LATTICE_FN(lattice_row_kernels) = {
    .score_float32 = score_float32,
    .score_bfloat16 = score_bfloat16,
    .score_float16 = score_float16,
};
