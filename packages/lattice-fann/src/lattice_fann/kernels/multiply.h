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
 * For many rows, B is taken in blocks of K_BLOCK rows by one panel. The first row tile copies the block on its way, under
 * its arithmetic; the copy, side by side, stays in L1 for the other row tiles. C carries the chain from block to block.
 * Copying and blocking move data, never the order of additions: an output's bits depend neither on the rows beside it nor
 * on the tile, the block or the thread.
 *
 * Bound by FMA throughput for many rows, by reading B for one.
 */
#ifndef LATTICE_FANN_MULTIPLY_H
#define LATTICE_FANN_MULTIPLY_H

#include "lattice/simd.h"
#include "network.h"

#define PANEL_VECTORS (FANN_PANEL / VF_LANES)

typedef void (*fann_tile)(const float *a, int64_t stride, const float *b, int64_t b_stride, int64_t k, const float *start,
                          int64_t start_stride, float *c, int64_t c_stride, float *copy);

#define FANN_TILE_BODY(R, P, A_ELEMENT, COPY)                                                                                \
    {                                                                                                                  \
        vf sum[R][(P) * PANEL_VECTORS];                                                                                \
        LATTICE_UNROLL for (int r = 0; r < (R); r++)                                                                   \
            LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                               \
                sum[r][j] = vf_load(start + r * start_stride + j * VF_LANES);                                          \
        for (int64_t i = 0; i < k; i++) {                                                                              \
            vf columns[(P) * PANEL_VECTORS];                                                                           \
            LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                               \
                columns[j] = vf_load(b + i * b_stride + j * VF_LANES);                                                 \
            if (COPY)                                                                                                  \
                LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                           \
                    vf_store(copy + i * (P) * FANN_PANEL + j * VF_LANES, columns[j]);                                  \
            LATTICE_UNROLL for (int r = 0; r < (R); r++)                                                               \
            {                                                                                                          \
                const vf x = vf_set1(A_ELEMENT);                                                                       \
                LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                           \
                    vf_accumulate(&sum[r][j], x, columns[j]);                                                         \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < (R); r++)                                                                   \
            LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                               \
                vf_store(c + r * c_stride + j * VF_LANES, sum[r][j]);                                                  \
    }

#define FANN_TILE_FUNCTION(NAME, R, P, A_ELEMENT, COPY)                                                                \
    static void NAME(const float *a, int64_t stride, const float *b, int64_t b_stride, int64_t k, const float *start,  \
                     int64_t start_stride, float *c, int64_t c_stride, float *copy)                                    \
    {                                                                                                                  \
        (void)copy;                                                                                                    \
        FANN_TILE_BODY(R, P, A_ELEMENT, COPY)                                                                          \
    }
#define FANN_TILE(R, P)                                                                                                \
    FANN_TILE_FUNCTION(rows_##R##x##P, R, P, a[r * stride + i], 0)                                                     \
    FANN_TILE_FUNCTION(columns_##R##x##P, R, P, a[i * stride + r], 0)
/* As wide as a block of the copy, and as high as the first row tile of many can be. */
#define FANN_COPYING_TILE(R, P)                                                                                        \
    FANN_TILE_FUNCTION(copying_rows_##R##x##P, R, P, a[r * stride + i], 1)                                             \
    FANN_TILE_FUNCTION(copying_columns_##R##x##P, R, P, a[i * stride + r], 1)

/* Tiles for each number of rows: one panel wide, and as wide as the registers allow. Those that copy are as wide as the
 * packed block, or one panel. */
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
FANN_COPYING_TILE(12, 1) FANN_COPYING_TILE(12, 2)
static const fann_tile copying[PACKED_PANELS + 1][2] = {
    {0}, {copying_rows_12x1, copying_columns_12x1}, {copying_rows_12x2, copying_columns_12x2}};
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
#define TILE_ROWS 6
#define PACKED_PANELS 1
FANN_TILE(1, 1) FANN_TILE(2, 1) FANN_TILE(3, 1) FANN_TILE(4, 1) FANN_TILE(5, 1) FANN_TILE(6, 1)
FANN_TILE(1, 4) FANN_TILE(2, 2) FANN_TILE(3, 2)
static const fann_tile_choice tiles[TILE_ROWS + 1] = {
    {{0}, {0}, 0},           {NARROW(1), WIDE(1, 4)}, {NARROW(2), WIDE(2, 2)}, {NARROW(3), WIDE(3, 2)},
    {NARROW(4), WIDE(4, 1)}, {NARROW(5), WIDE(5, 1)}, {NARROW(6), WIDE(6, 1)},
};
FANN_COPYING_TILE(6, 1)
static const fann_tile copying[PACKED_PANELS + 1][2] = {{0}, {copying_rows_6x1, copying_columns_6x1}};
#else
#define TILE_ROWS 3
#define PACKED_PANELS 1
FANN_TILE(1, 1) FANN_TILE(2, 1) FANN_TILE(3, 1)
FANN_TILE(1, 2)
static const fann_tile_choice tiles[TILE_ROWS + 1] = {
    {{0}, {0}, 0}, {NARROW(1), WIDE(1, 2)}, {NARROW(2), WIDE(2, 1)}, {NARROW(3), WIDE(3, 1)}};
FANN_COPYING_TILE(3, 1)
static const fann_tile copying[PACKED_PANELS + 1][2] = {{0}, {copying_rows_3x1, copying_columns_3x1}};
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
                                                   c + column, c_stride, NULL);
        panel += wide ? choice->wide_panels : 1;
    }
}

static void multiply(int by, const float *a, int64_t stride, int64_t rows, const float *b, int64_t b_stride,
                     int64_t panels, int64_t k, const float *start, int64_t start_stride, float *c,
                     int64_t c_stride)
{
    if (rows <= TILE_ROWS) {
        if (rows > 0)
            multiply_row_tile(by, a, stride, rows, b, b_stride, panels, k, start, start_stride, c, c_stride);
        return;
    }
    float packed[K_BLOCK * PACKED_PANELS * FANN_PANEL] __attribute__((aligned(64)));
    /* The first tile is a full one, since it copies; the other rows are split evenly over tiles: 16 rows are 6 + 5 + 5. */
    const int64_t others = rows - TILE_ROWS;
    const int64_t row_tiles = fann_divide_up(others, TILE_ROWS);
    const int64_t short_tile = others / row_tiles, longer_tiles = others % row_tiles;
    for (int64_t k0 = 0; k0 < k; k0 += K_BLOCK) {
        const int64_t depth = k - k0 < K_BLOCK ? k - k0 : K_BLOCK;
        const float *from = k0 == 0 ? start : c, *operand = by == BY_ROWS ? a + k0 : a + k0 * stride;
        const int64_t from_stride = k0 == 0 ? start_stride : c_stride;
        for (int64_t panel = 0; panel < panels; panel += PACKED_PANELS) {
            const int64_t width = panels - panel < PACKED_PANELS ? panels - panel : PACKED_PANELS;
            const int64_t column = panel * FANN_PANEL;
            copying[width][by](operand, stride, b + k0 * b_stride + column, b_stride, depth, from + column, from_stride,
                               c + column, c_stride, packed);
            int64_t row = TILE_ROWS;
            for (int64_t t = 0; t < row_tiles; t++) {
                const int64_t height = short_tile + (t < longer_tiles);
                multiply_row_tile(by, by == BY_ROWS ? operand + row * stride : operand + row, stride, height, packed,
                                  width * FANN_PANEL, width, depth, from + row * from_stride + column, from_stride,
                                  c + row * c_stride + column, c_stride);
                row += height;
            }
        }
    }
}

#endif
