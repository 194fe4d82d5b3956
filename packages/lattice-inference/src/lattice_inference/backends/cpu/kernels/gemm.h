/* y[m, n] = activation(sum over k of A[m, k] * B[n, k] + bias[n] + residual[m, n]): each sum one chain of fused
 * multiply-adds in ascending k, finished while it lies in a register and written once.
 *
 * Shapes and layouts: A is read in place, rows `a_stride` floats apart. B is packed once in panels of 16 output columns,
 * each [k][16] floats; the layout is the same for every instruction set. A tile of R rows by P panels stays in registers:
 *
 *                 panel p         panel p+1
 *     A row 0   [ c c c c ... ] [ c c c c ... ]      for each k:  load B[k][16] of each panel,
 *     A row 1   [ c c c c ... ] [ c c c c ... ]                   broadcast A[r][k] for each row,
 *       ...                                                       c[r][p] = fma(a, b, c[r][p])
 *     A row R-1 [ c c c c ... ] [ c c c c ... ]
 *
 * Panels are the outer loop and row tiles the inner one, so a panel is read from memory once per block of rows and from
 * cache after that; a block of rows is chosen to stay in L2. The rows of a block are split evenly over tiles (16 rows are
 * 8 + 8, not 14 + 2).
 *
 * Numeric design: the reduction axis is never split, so the value of C[m, n] does not depend on tile, block or thread.
 * Bound by the FMA units: a tile has at least as many independent chains as latency times throughput asks for. One row
 * alone takes several panels at once for that reason.
 */
#ifndef LATTICE_GEMM_H
#define LATTICE_GEMM_H

#include "elementwise.h"

#define PANEL_VECTORS (LATTICE_PANEL / VF_LANES)

#if defined(__clang__)
#define LATTICE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LATTICE_UNROLL _Pragma("GCC unroll 64")
#endif

/* What a tile asks memory for while it multiplies: its share of the panel that comes next, in four runs at once, because one
 * run alone is limited by how far ahead the memory system looks in it. The asking is spread over the first four row tiles of
 * a panel: lines wanted in bursts fill the buffers that the tile's own loads need. Of a wide tile's panels one is asked for;
 * the others are streams that the hardware foresees. */
typedef struct {
    const float *runs[4];
    int asks; /* lines in every four steps of k: 4, 2, 1 or none */
} lattice_prefetch;

/* Where sums go, and what is added to them: bias and residual may be NULL. With an activation there is no residual. */
typedef struct {
    float *y;
    int64_t stride;
    int64_t columns; /* of y; the last panel may be wider than what is left of them */
    const float *bias;
    const float *residual;
    int64_t residual_stride;
    int activation;
} lattice_output;

#define TILE_PANELS 8 /* panels of the widest tile of any level */

/* a, a_stride: the first row; b: the first panel, panels `panel_stride` floats apart; output: of the tile's first sum. */
typedef void (*lattice_tile)(const float *a, int64_t a_stride, const float *b, int64_t panel_stride, int64_t k,
                             const lattice_output *output, const lattice_prefetch *next);

/* One step of k: the rows' elements times the panels' lines, of which a tile takes V vectors from vector FIRST on. */
#define LATTICE_TILE_STEP(R, FIRST, V, I)                                                                              \
    do {                                                                                                               \
        vf columns[V];                                                                                                 \
        LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                     \
            columns[j] = vf_load(b + (FIRST + j) / PANEL_VECTORS * panel_stride + (I) * LATTICE_PANEL +                \
                                 (FIRST + j) % PANEL_VECTORS * VF_LANES);                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
        {                                                                                                              \
            const vf x = vf_set1(a[r * a_stride + (I)]);                                                               \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
                vf_accumulate(&sum[r][j], x, columns[j]);                                                              \
        }                                                                                                              \
    } while (0)

/* All steps of k, four at a time, with ASKS lines asked for in each four. */
#define LATTICE_TILE_STEPS(R, FIRST, V, ASKS)                                                                          \
    for (int64_t group = 0; group < k / 4; group++) {                                                                  \
        LATTICE_UNROLL for (int part = 0; part < 4; part++)                                                            \
        {                                                                                                              \
            if (ASKS > 0 && part % (4 / (ASKS > 0 ? ASKS : 4)) == 0) {                                                 \
                const int64_t runs = 4 / (ASKS > 0 ? ASKS : 4);                                                        \
                __builtin_prefetch(next->runs[part + group % runs] + group / runs * LATTICE_PANEL, 0, 3);              \
            }                                                                                                          \
            LATTICE_TILE_STEP(R, FIRST, V, 4 * group + part);                                                          \
        }                                                                                                              \
    }

#define LATTICE_TILE_OF(NAME, R, FIRST, V)                                                                             \
    static void NAME(const float *restrict a, int64_t a_stride, const float *restrict b, int64_t panel_stride,         \
                     int64_t k, const lattice_output *restrict output, const lattice_prefetch *restrict next)          \
    {                                                                                                                  \
        vf sum[R][V];                                                                                                  \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
                sum[r][j] = vf_zero();                                                                                 \
        if (next->asks == 0)                                                                                           \
            LATTICE_TILE_STEPS(R, FIRST, V, 0)                                                                         \
        else if (next->asks == 1)                                                                                      \
            LATTICE_TILE_STEPS(R, FIRST, V, 1)                                                                         \
        else if (next->asks == 2)                                                                                      \
            LATTICE_TILE_STEPS(R, FIRST, V, 2)                                                                         \
        else                                                                                                           \
            LATTICE_TILE_STEPS(R, FIRST, V, 4)                                                                         \
        for (int64_t i = k / 4 * 4; i < k; i++)                                                                        \
            LATTICE_TILE_STEP(R, FIRST, V, i);                                                                         \
        const int64_t column = FIRST * VF_LANES;                                                                       \
        if (output->bias != NULL)                                                                                      \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
            {                                                                                                          \
                const vf bias = vf_load(output->bias + column + j * VF_LANES);                                         \
                LATTICE_UNROLL for (int r = 0; r < R; r++)                                                             \
                    sum[r][j] = vf_add(sum[r][j], bias);                                                               \
            }                                                                                                          \
        if (output->residual != NULL)                                                                                  \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                const float *row = output->residual + r * output->residual_stride + column;                            \
                LATTICE_UNROLL for (int j = 0; j < V; j++)                                                             \
                    sum[r][j] = vf_add(sum[r][j], vf_load(row + j * VF_LANES));                                        \
            }                                                                                                          \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
                vf_store(output->y + r * output->stride + column + j * VF_LANES, sum[r][j]);                           \
    }

#define LATTICE_TILE(R, P) LATTICE_TILE_OF(tile_##R##x##P, R, 0, (P * PANEL_VECTORS))

/* For each number of rows: a tile of one panel, and the wide tile that is used while enough panels are left. */
typedef struct {
    lattice_tile narrow, wide;
    int wide_panels;
} lattice_tile_choice;

#if defined(LATTICE_ISA_AVX512)
#define TILE_ROWS 14
LATTICE_TILE(1, 1) LATTICE_TILE(2, 1) LATTICE_TILE(3, 1) LATTICE_TILE(4, 1) LATTICE_TILE(5, 1) LATTICE_TILE(6, 1)
LATTICE_TILE(7, 1) LATTICE_TILE(8, 1) LATTICE_TILE(9, 1) LATTICE_TILE(10, 1) LATTICE_TILE(11, 1) LATTICE_TILE(12, 1)
LATTICE_TILE(13, 1) LATTICE_TILE(14, 1)
LATTICE_TILE(1, 8) LATTICE_TILE(2, 4) LATTICE_TILE(3, 4) LATTICE_TILE(4, 4) LATTICE_TILE(5, 4) LATTICE_TILE(6, 4)
LATTICE_TILE(7, 2) LATTICE_TILE(8, 2) LATTICE_TILE(9, 2) LATTICE_TILE(10, 2) LATTICE_TILE(11, 2) LATTICE_TILE(12, 2)
LATTICE_TILE(13, 2) LATTICE_TILE(14, 2)
static const lattice_tile_choice tiles[TILE_ROWS + 1] = {
    {0}, {tile_1x1, tile_1x8, 8}, {tile_2x1, tile_2x4, 4}, {tile_3x1, tile_3x4, 4}, {tile_4x1, tile_4x4, 4},
    {tile_5x1, tile_5x4, 4}, {tile_6x1, tile_6x4, 4}, {tile_7x1, tile_7x2, 2}, {tile_8x1, tile_8x2, 2},
    {tile_9x1, tile_9x2, 2}, {tile_10x1, tile_10x2, 2}, {tile_11x1, tile_11x2, 2}, {tile_12x1, tile_12x2, 2},
    {tile_13x1, tile_13x2, 2}, {tile_14x1, tile_14x2, 2},
};
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
#define TILE_ROWS 6
LATTICE_TILE(1, 1) LATTICE_TILE(2, 1) LATTICE_TILE(3, 1) LATTICE_TILE(4, 1) LATTICE_TILE(5, 1) LATTICE_TILE(6, 1)
LATTICE_TILE(1, 4) LATTICE_TILE(2, 2) LATTICE_TILE(3, 2)
/* Four rows of a panel are eight sums on AVX2, just what the latency of a multiply-add asks for; three panels in two halves of
 * three vectors are twelve at a time. */
LATTICE_TILE_OF(first_half_4x3, 4, 0, (3 * PANEL_VECTORS / 2))
LATTICE_TILE_OF(second_half_4x3, 4, (3 * PANEL_VECTORS / 2), (3 * PANEL_VECTORS / 2))
static void tile_4x3(const float *a, int64_t a_stride, const float *b, int64_t panel_stride, int64_t k,
                     const lattice_output *output, const lattice_prefetch *next)
{
    const lattice_prefetch nothing = {.asks = 0};
    first_half_4x3(a, a_stride, b, panel_stride, k, output, next);
    second_half_4x3(a, a_stride, b, panel_stride, k, output, &nothing);
}
static const lattice_tile_choice tiles[TILE_ROWS + 1] = {
    {0},
    {tile_1x1, tile_1x4, 4},
    {tile_2x1, tile_2x2, 2},
    {tile_3x1, tile_3x2, 2},
    {tile_4x1, tile_4x3, 3},
    {tile_5x1, tile_5x1, 1},
    {tile_6x1, tile_6x1, 1},
};
#else
#define TILE_ROWS 3
LATTICE_TILE(1, 1) LATTICE_TILE(2, 1) LATTICE_TILE(3, 1)
LATTICE_TILE(1, 2)
static const lattice_tile_choice tiles[TILE_ROWS + 1] = {
    {0}, {tile_1x1, tile_1x2, 2}, {tile_2x1, tile_2x1, 1}, {tile_3x1, tile_3x1, 1}};
#endif

/* The share of row tile `t` of `row_tiles` in asking for a panel of `k` lines. */
LATTICE_INLINE void share_prefetch(lattice_prefetch *next, const float *panel, int64_t k, int64_t t, int64_t row_tiles)
{
    const int asks = row_tiles >= 4 ? 1 : row_tiles >= 2 ? 2 : 4;
    next->asks = t * asks < 4 ? asks : 0;
    if (next->asks == 0)
        return;
    for (int run = 0; run < 4; run++)
        next->runs[run] = panel + (run * (k / 4) + k / 4 * t * asks / 4) * LATTICE_PANEL;
}

/* Asks for the lines of y that a tile will write and of the residual that it will read. Each line of y is a miss of its own,
 * and stores wait for one another: unasked they take a tenth of the time of a tile. */
LATTICE_INLINE void prefetch_output(const lattice_output *output, int64_t rows, int64_t panels)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t p = 0; p < panels; p++)
            __builtin_prefetch(output->y + r * output->stride + p * LATTICE_PANEL, 1, 3);
    if (output->residual != NULL)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t p = 0; p < panels; p++)
                __builtin_prefetch(output->residual + r * output->residual_stride + p * LATTICE_PANEL, 0, 3);
}

/* Sums [rows][columns rounded up to panels] that lie in a buffer, to y: an activation is still to come, or y has no room for a
 * whole panel and bias and residual must be padded. */
static void finish_buffered(float *sums, int64_t rows, int64_t columns, const lattice_output *output)
{
    const int64_t stride = lattice_round_up(columns, LATTICE_PANEL);
    if (output->activation != LATTICE_ACTIVATION_NONE && columns == stride) {
        activate_rows(output->activation, sums, stride, output->y, output->stride, rows, columns);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        f32x16 value = f32x16_load(sums + r * stride);
        if (output->bias != NULL)
            value = f32x16_add(value, f32x16_load_tail(output->bias, (size_t)columns));
        if (output->residual != NULL)
            value = f32x16_add(value, f32x16_load_tail(output->residual + r * output->residual_stride, (size_t)columns));
        f32x16_store_tail(output->y + r * output->stride, activate(output->activation, value), (size_t)columns);
    }
}

LATTICE_INLINE int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Multiplies `rows` rows of A by `panels` panels. `streamed`: B comes from memory, and is asked for ahead. */
static void gemm(const float *a, int64_t a_stride, int64_t rows, const float *b, int64_t panel_stride, int64_t panels,
                 int64_t k, const lattice_output *output, int streamed)
{
    float sums[TILE_ROWS * TILE_PANELS * LATTICE_PANEL] __attribute__((aligned(64)));
    const int64_t row_tiles = lattice_divide_up(rows, TILE_ROWS);
    const int64_t short_tile = rows / row_tiles, longer_tiles = rows % row_tiles;
    const int64_t wide = max_of(tiles[short_tile].wide_panels, longer_tiles > 0 ? tiles[short_tile + 1].wide_panels : 0);
    const int64_t whole_panels = output->columns / LATTICE_PANEL; /* that y has room for */
    for (int64_t panel = 0; panel < panels;) {
        const int64_t width = panel + wide <= whole_panels && panel + wide <= panels ? wide : 1;
        const int asking = streamed && panel + width < panels;
        const int buffered = panel >= whole_panels || output->activation != LATTICE_ACTIVATION_NONE;
        lattice_prefetch next = {.asks = 0};
        int64_t row = 0;
        for (int64_t t = 0; t < row_tiles; t++) {
            const int64_t height = short_tile + (t < longer_tiles);
            const lattice_tile_choice *choice = &tiles[height];
            if (asking)
                share_prefetch(&next, b + (panel + width) * panel_stride, k, t, row_tiles);
            for (int64_t p = panel; p < panel + width;) {
                const int64_t here = choice->wide_panels <= panel + width - p ? choice->wide_panels : 1;
                const int64_t column = p * LATTICE_PANEL;
                const lattice_tile tile = here == 1 ? choice->narrow : choice->wide;
                lattice_output part = *output; /* from the tile's first row and column on */
                part.y += row * part.stride + column;
                part.bias += part.bias != NULL ? column : 0;
                part.residual += part.residual != NULL ? row * part.residual_stride + column : 0;
                if (streamed)
                    prefetch_output(&part, height, here);
                if (!buffered) {
                    tile(a + row * a_stride, a_stride, b + p * panel_stride, panel_stride, k, &part, &next);
                } else {
                    const int whole = panel < whole_panels;
                    const lattice_output buffer = {.y = sums, .stride = here * LATTICE_PANEL, .bias = whole ? part.bias : NULL};
                    tile(a + row * a_stride, a_stride, b + p * panel_stride, panel_stride, k, &buffer, &next);
                    finish_buffered(sums, height, whole ? buffer.stride : output->columns - column, &part);
                }
                p += here;
            }
            row += height;
        }
        panel += width;
    }
}

#endif
