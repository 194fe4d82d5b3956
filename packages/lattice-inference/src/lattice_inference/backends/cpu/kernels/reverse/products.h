/* C[r][i] += sum over j of A[r][j] B[j][i], for matrices that lie in place: the products of the reverse pass.
 *
 *     A[r][j] at a[r * a_row + j * a_step]: rows of A (a_step 1), or a matrix whose columns they are (a_row 1)
 *     B[j][i] at b[j * b_step + i], C[r][i] at c[r * c_stride + i]
 *
 * An element goes on from its value as one chain of fused multiply-adds over ascending j. No sum is split and each lane has its
 * own, so neither tiles nor levels show in a bit. Columns that fill no vector run on copies padded with zeros.
 */
#ifndef LATTICE_REVERSE_PRODUCTS_H
#define LATTICE_REVERSE_PRODUCTS_H

#include "rows/rows.h"

#define PRODUCT_PANEL_VECTORS (LATTICE_PANEL / VF_LANES)
#if defined(LATTICE_ISA_AVX512)
#define PRODUCT_ROWS 8
#define PRODUCT_PANELS 2
#else
#define PRODUCT_ROWS 4
#define PRODUCT_PANELS 1
#endif

typedef struct {
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_step, depth;
    float *c;
    int64_t c_stride;
} lattice_product;

#define PRODUCT_TILE(NAME, R, P)                                                                                       \
    static void NAME(const lattice_product *restrict of, const float *restrict a, const float *restrict b,             \
                     float *restrict c)                                                                                \
    {                                                                                                                  \
        const int64_t a_row = of->a_row, a_step = of->a_step, b_step = of->b_step, c_stride = of->c_stride;            \
        vf sum[R][(P) * PRODUCT_PANEL_VECTORS];                                                                        \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int v = 0; v < (P) * PRODUCT_PANEL_VECTORS; v++)                                       \
                sum[r][v] = vf_load(c + r * c_stride + v * VF_LANES);                                                  \
        for (int64_t j = of->depth; j > 0; j--, a += a_step, b += b_step) {                                            \
            vf columns[(P) * PRODUCT_PANEL_VECTORS];                                                                   \
            LATTICE_UNROLL for (int v = 0; v < (P) * PRODUCT_PANEL_VECTORS; v++)                                       \
                columns[v] = vf_load(b + v * VF_LANES);                                                                \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                const vf factor = vf_set1(a[r * a_row]);                                                               \
                LATTICE_UNROLL for (int v = 0; v < (P) * PRODUCT_PANEL_VECTORS; v++)                                   \
                    vf_accumulate(&sum[r][v], factor, columns[v]);                                                     \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int v = 0; v < (P) * PRODUCT_PANEL_VECTORS; v++)                                       \
                vf_store(c + r * c_stride + v * VF_LANES, sum[r][v]);                                                  \
    }

PRODUCT_TILE(product_wide, PRODUCT_ROWS, PRODUCT_PANELS)
PRODUCT_TILE(product_wide_row, 1, PRODUCT_PANELS)
#if PRODUCT_PANELS > 1
PRODUCT_TILE(product_panel, PRODUCT_ROWS, 1)
PRODUCT_TILE(product_panel_row, 1, 1)
#else
#define product_panel product_wide
#define product_panel_row product_wide_row
#endif

/* A panel of fewer than sixteen columns. */
static void product_tail(const lattice_product *of, int64_t rows, int64_t i, size_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        float *c = of->c + r * of->c_stride + i;
        f32x16 sum = f32x16_load_tail(c, columns);
        for (int64_t j = 0; j < of->depth; j++)
            sum = f32x16_fma(f32x16_set1(of->a[r * of->a_row + j * of->a_step]),
                             f32x16_load_tail(of->b + j * of->b_step + i, columns), sum);
        f32x16_store_tail(c, sum, columns);
    }
}

/* Adds to `rows` rows of `columns` columns. */
static void add_product(const lattice_product *of, int64_t rows, int64_t columns)
{
    int64_t i = 0;
    while (i + LATTICE_PANEL <= columns) {
        const int wide = i + PRODUCT_PANELS * LATTICE_PANEL <= columns;
        int64_t r = 0;
        for (; r + PRODUCT_ROWS <= rows; r += PRODUCT_ROWS)
            (wide ? product_wide : product_panel)(of, of->a + r * of->a_row, of->b + i, of->c + r * of->c_stride + i);
        for (; r < rows; r++)
            (wide ? product_wide_row : product_panel_row)(of, of->a + r * of->a_row, of->b + i, of->c + r * of->c_stride + i);
        i += (wide ? PRODUCT_PANELS : 1) * LATTICE_PANEL;
    }
    if (i < columns)
        product_tail(of, rows, i, (size_t)(columns - i));
}

#endif
