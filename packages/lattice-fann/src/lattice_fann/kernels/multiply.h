/* C[r][n] = start[r][n] + sum over k of A(r, k) * B[k][n], each output one fused multiply-add chain in ascending k.
 *
 * B has rows of whole panels of 16 columns. A is read in place, by rows (A(r, k) = a[r * stride + k], the forward product)
 * or by columns (A(r, k) = a[k * stride + r], the product that makes weight gradients); each gets a tile of its own so that
 * one of the two strides is a constant. `start` is the bias (row stride 0), zeros, or C itself.
 *
 *                 16 P columns
 *     row 0     [ c c c c ... ]      for each k:  load B[k][16 P],
 *     row 1     [ c c c c ... ]                   broadcast A(r, k) for each row,
 *       ...                                       c[r] = fma(a, b, c[r])
 *     row R-1   [ c c c c ... ]
 *
 * For many rows, B is taken in blocks of K_BLOCK rows by one panel, copied side by side so that the copy stays in L1 for
 * all row tiles; C then carries the chain from block to block. Copying and blocking move data, never the order of
 * additions: an output's bits depend neither on the rows beside it nor on the tile, the block or the thread.
 *
 * Bound by FMA throughput for many rows, by reading B for one.
 */
#ifndef LATTICE_FANN_MULTIPLY_H
#define LATTICE_FANN_MULTIPLY_H

#include "lattice/simd.h"
#include "network.h"

#define PANEL_VECTORS (FANN_PANEL / VF_LANES)
#define UNROLL _Pragma("GCC unroll 16")

typedef void (*fann_tile)(const float *a, int64_t stride, const float *b, int64_t b_stride, int64_t k, const float *start,
                          int64_t start_stride, float *c, int64_t c_stride);

#define FANN_TILE_BODY(R, P, A_ELEMENT)                                                                                \
    {                                                                                                                  \
        vf sum[R][(P) * PANEL_VECTORS];                                                                                \
        UNROLL for (int r = 0; r < (R); r++)                                                                           \
            UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                                       \
                sum[r][j] = vf_load(start + r * start_stride + j * VF_LANES);                                          \
        for (int64_t i = 0; i < k; i++) {                                                                              \
            vf columns[(P) * PANEL_VECTORS];                                                                           \
            UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                                       \
                columns[j] = vf_load(b + i * b_stride + j * VF_LANES);                                                 \
            UNROLL for (int r = 0; r < (R); r++)                                                                       \
            {                                                                                                          \
                const vf x = vf_set1(A_ELEMENT);                                                                       \
                UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                                   \
                    sum[r][j] = vf_fma(x, columns[j], sum[r][j]);                                                      \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int r = 0; r < (R); r++)                                                                           \
            UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                                       \
                vf_store(c + r * c_stride + j * VF_LANES, sum[r][j]);                                                  \
    }

#define FANN_TILE(R, P)                                                                                                \
    static void rows_##R##x##P(const float *a, int64_t stride, const float *b, int64_t b_stride, int64_t k,            \
                               const float *start, int64_t start_stride, float *c, int64_t c_stride)                   \
        FANN_TILE_BODY(R, P, a[r * stride + i])                                                                        \
    static void columns_##R##x##P(const float *a, int64_t stride, const float *b, int64_t b_stride, int64_t k,         \
                                  const float *start, int64_t start_stride, float *c, int64_t c_stride)                \
        FANN_TILE_BODY(R, P, a[i * stride + r])

/* Tiles for each number of rows: one panel wide, and as wide as the registers allow. */
typedef struct {
    fann_tile narrow[2], wide[2]; /* by rows, by columns */
    int wide_panels;
} fann_tile_choice;

#define NARROW(R) {rows_##R##x1, columns_##R##x1}
#define WIDE(R, P) {rows_##R##x##P, columns_##R##x##P}, P

#if defined(LATTICE_ISA_AVX512)
#define TILE_ROWS 12
#define PACKED_PANELS 2
FANN_TILE(1, 1) FANN_TILE(2, 1) FANN_TILE(3, 1) FANN_TILE(4, 1) FANN_TILE(5, 1) FANN_TILE(6, 1)
FANN_TILE(7, 1) FANN_TILE(8, 1) FANN_TILE(9, 1) FANN_TILE(10, 1) FANN_TILE(11, 1) FANN_TILE(12, 1)
FANN_TILE(1, 8) FANN_TILE(2, 4) FANN_TILE(3, 4) FANN_TILE(4, 4) FANN_TILE(5, 4) FANN_TILE(6, 4)
FANN_TILE(7, 2) FANN_TILE(8, 2) FANN_TILE(9, 2) FANN_TILE(10, 2) FANN_TILE(11, 2) FANN_TILE(12, 2)
static const fann_tile_choice tiles[TILE_ROWS + 1] = {
    {{0}, {0}, 0},
    {NARROW(1), WIDE(1, 8)}, {NARROW(2), WIDE(2, 4)}, {NARROW(3), WIDE(3, 4)}, {NARROW(4), WIDE(4, 4)},
    {NARROW(5), WIDE(5, 4)}, {NARROW(6), WIDE(6, 4)}, {NARROW(7), WIDE(7, 2)}, {NARROW(8), WIDE(8, 2)},
    {NARROW(9), WIDE(9, 2)}, {NARROW(10), WIDE(10, 2)}, {NARROW(11), WIDE(11, 2)}, {NARROW(12), WIDE(12, 2)},
};
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
#define TILE_ROWS 6
#define PACKED_PANELS 1
FANN_TILE(1, 1) FANN_TILE(2, 1) FANN_TILE(3, 1) FANN_TILE(4, 1) FANN_TILE(5, 1) FANN_TILE(6, 1)
FANN_TILE(1, 4) FANN_TILE(2, 2) FANN_TILE(3, 2)
static const fann_tile_choice tiles[TILE_ROWS + 1] = {
    {{0}, {0}, 0},           {NARROW(1), WIDE(1, 4)}, {NARROW(2), WIDE(2, 2)}, {NARROW(3), WIDE(3, 2)},
    {NARROW(4), WIDE(4, 1)}, {NARROW(5), WIDE(5, 1)}, {NARROW(6), WIDE(6, 1)},
};
#else
#define TILE_ROWS 3
#define PACKED_PANELS 1
FANN_TILE(1, 1) FANN_TILE(2, 1) FANN_TILE(3, 1)
FANN_TILE(1, 2)
static const fann_tile_choice tiles[TILE_ROWS + 1] = {
    {{0}, {0}, 0}, {NARROW(1), WIDE(1, 2)}, {NARROW(2), WIDE(2, 1)}, {NARROW(3), WIDE(3, 1)}};
#endif

#define K_BLOCK 256

enum { BY_ROWS = 0, BY_COLUMNS = 1 };

/* One row tile against `panels` adjacent panels. */
LATTICE_INLINE void multiply_row_tile(int by, const float *a, int64_t stride, int64_t height, const float *b,
                                      int64_t b_stride, int64_t panels, int64_t k, const float *start,
                                      int64_t start_stride, float *c, int64_t c_stride)
{
    const fann_tile_choice *choice = &tiles[height];
    for (int64_t panel = 0; panel < panels;) {
        const int wide = choice->wide_panels <= panels - panel;
        const int64_t column = panel * FANN_PANEL;
        (wide ? choice->wide : choice->narrow)[by](a, stride, b + column, b_stride, k, start + column, start_stride,
                                                   c + column, c_stride);
        panel += wide ? choice->wide_panels : 1;
    }
}

LATTICE_INLINE void multiply(int by, const float *a, int64_t stride, int64_t rows, const float *b, int64_t b_stride,
                             int64_t panels, int64_t k, const float *start, int64_t start_stride, float *c,
                             int64_t c_stride)
{
    if (rows <= TILE_ROWS) {
        if (rows > 0)
            multiply_row_tile(by, a, stride, rows, b, b_stride, panels, k, start, start_stride, c, c_stride);
        return;
    }
    float packed[K_BLOCK * PACKED_PANELS * FANN_PANEL] __attribute__((aligned(64)));
    /* rows are split evenly over tiles: 16 rows are 6 + 5 + 5, not 6 + 6 + 4 */
    const int64_t row_tiles = fann_divide_up(rows, TILE_ROWS);
    const int64_t short_tile = rows / row_tiles, longer_tiles = rows % row_tiles;
    for (int64_t k0 = 0; k0 < k; k0 += K_BLOCK) {
        const int64_t depth = k - k0 < K_BLOCK ? k - k0 : K_BLOCK;
        for (int64_t panel = 0; panel < panels; panel += PACKED_PANELS) {
            const int64_t width = panels - panel < PACKED_PANELS ? panels - panel : PACKED_PANELS;
            const int64_t column = panel * FANN_PANEL;
            for (int64_t i = 0; i < depth; i++)
                for (int64_t p = 0; p < width; p++)
                    f32x16_store(packed + (i * width + p) * FANN_PANEL,
                                 f32x16_load(b + (k0 + i) * b_stride + column + p * FANN_PANEL));
            int64_t row = 0;
            for (int64_t t = 0; t < row_tiles; t++) {
                const int64_t height = short_tile + (t < longer_tiles);
                const float *from = k0 == 0 ? start + row * start_stride : c + row * c_stride;
                multiply_row_tile(by, by == BY_ROWS ? a + row * stride + k0 : a + k0 * stride + row, stride, height,
                                  packed, width * FANN_PANEL, width, depth, from + column,
                                  k0 == 0 ? start_stride : c_stride, c + row * c_stride + column, c_stride);
                row += height;
            }
        }
    }
}

#endif
