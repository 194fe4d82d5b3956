/* C[m, n] = sum over k of A[m, k] * B[n, k], each output one fused multiply-add chain in ascending k.
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

#include "lattice/simd.h"
#include "step.h"

#define PANEL_VECTORS (LATTICE_PANEL / VF_LANES)

#if defined(__clang__)
#define LATTICE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LATTICE_UNROLL _Pragma("GCC unroll 64")
#endif

/* What a tile asks memory for while it multiplies: its share of the panel that comes next, in four runs at once, because one
 * run alone is limited by how far ahead the memory system looks in it. The asking is spread evenly over the row tiles of a
 * panel: lines wanted in bursts fill the buffers that the tile's own loads need. Of a wide tile's panels one is asked for;
 * the others are streams that the hardware foresees. */
typedef struct {
    const float *runs[4];
    int64_t groups; /* of four steps of k each, in which the tile asks */
    int asks;       /* lines asked for in a group: 4, 2 or 1 */
} lattice_prefetch;

/* a, a_stride: the first row; b: the first panel, panels `panel_stride` floats apart; c: [R][P * 16]. */
typedef void (*lattice_tile)(const float *a, int64_t a_stride, const float *b, int64_t panel_stride, int64_t k, float *c,
                             const lattice_prefetch *next);

/* One step of k: the rows' elements times the panels' lines. */
#define LATTICE_TILE_STEP(R, P, I)                                                                                     \
    do {                                                                                                               \
        vf columns[P * PANEL_VECTORS];                                                                                 \
        LATTICE_UNROLL for (int j = 0; j < P * PANEL_VECTORS; j++)                                                     \
            columns[j] = vf_load(b + (j / PANEL_VECTORS) * panel_stride + (I) * LATTICE_PANEL +                        \
                                 (j % PANEL_VECTORS) * VF_LANES);                                                      \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
        {                                                                                                              \
            const vf x = vf_set1(a[r * a_stride + (I)]);                                                               \
            LATTICE_UNROLL for (int j = 0; j < P * PANEL_VECTORS; j++)                                                 \
                vf_accumulate(&sum[r][j], x, columns[j]);                                                              \
        }                                                                                                              \
    } while (0)

/* Groups of four steps of k with ASKS lines asked for in each. */
#define LATTICE_TILE_ASKING(R, P, ASKS)                                                                                \
    for (int64_t group = 0; group < next->groups; group++, i += 4) {                                                   \
        LATTICE_UNROLL for (int part = 0; part < 4; part++)                                                            \
        {                                                                                                              \
            if (part % (4 / ASKS) == 0)                                                                                \
                __builtin_prefetch(                                                                                    \
                    next->runs[part + group % (4 / ASKS)] + group / (4 / ASKS) * LATTICE_PANEL, 0, 3);                 \
            LATTICE_TILE_STEP(R, P, i + part);                                                                         \
        }                                                                                                              \
    }

#define LATTICE_TILE(R, P)                                                                                             \
    static void tile_##R##x##P(const float *restrict a, int64_t a_stride, const float *restrict b,                     \
                               int64_t panel_stride, int64_t k, float *restrict c, const lattice_prefetch *next)       \
    {                                                                                                                  \
        vf sum[R][P * PANEL_VECTORS];                                                                                  \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < P * PANEL_VECTORS; j++)                                                 \
                sum[r][j] = vf_zero();                                                                                 \
        int64_t i = 0;                                                                                                 \
        if (next->asks == 4)                                                                                           \
            LATTICE_TILE_ASKING(R, P, 4)                                                                               \
        else if (next->asks == 2)                                                                                      \
            LATTICE_TILE_ASKING(R, P, 2)                                                                               \
        else                                                                                                           \
            LATTICE_TILE_ASKING(R, P, 1)                                                                               \
        for (; i < k - 3; i += 4)                                                                                      \
            LATTICE_UNROLL for (int part = 0; part < 4; part++)                                                        \
                LATTICE_TILE_STEP(R, P, i + part);                                                                     \
        for (; i < k; i++)                                                                                             \
            LATTICE_TILE_STEP(R, P, i);                                                                                \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < P * PANEL_VECTORS; j++)                                                 \
                vf_store(c + r * P * LATTICE_PANEL + j * VF_LANES, sum[r][j]);                                         \
    }

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
static const lattice_tile_choice tiles[TILE_ROWS + 1] = {
    {0},
    {tile_1x1, tile_1x4, 4},
    {tile_2x1, tile_2x2, 2},
    {tile_3x1, tile_3x2, 2},
    {tile_4x1, tile_4x1, 1},
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

#define TILE_PANELS 8 /* panels of the widest tile of any level */

/* Receives a finished tile: rows `row` to `row + rows`, panels from `panel`; c is [rows][panels * 16]. */
typedef void (*lattice_tile_store)(const void *context, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                                   const float *c);

/* Multiplies `rows` rows of A by `panels` panels and hands every tile to `store`. */
static void gemm(const float *a, int64_t a_stride, int64_t rows, const float *b, int64_t panel_stride,
                         int64_t panels, int64_t k, lattice_tile_store store, const void *context)
{
    float c[TILE_ROWS * TILE_PANELS * LATTICE_PANEL] __attribute__((aligned(64)));
    const int64_t row_tiles = lattice_divide_up(rows, TILE_ROWS);
    const int64_t short_tile = rows / row_tiles, longer_tiles = rows % row_tiles;
    const int64_t wide = tiles[short_tile + (longer_tiles > 0)].wide_panels;
    for (int64_t panel = 0; panel < panels;) {
        const int64_t width = panels - panel >= wide ? wide : 1;
        const int last = panel + width == panels;
        int64_t row = 0;
        for (int64_t t = 0; t < row_tiles; t++) {
            const int64_t height = short_tile + (t < longer_tiles);
            const lattice_tile_choice *choice = &tiles[height];
            for (int64_t p = panel; p < panel + width;) {
                const int64_t here = choice->wide_panels <= panel + width - p ? choice->wide_panels : 1;
                const float *panels_here = b + p * panel_stride;
                /* the share of this row tile: a stretch of each run, asked for within its own k */
                const int64_t run_lines = k / 4, from = run_lines * t / row_tiles;
                const int asks = row_tiles >= 4 ? 1 : row_tiles >= 2 ? 2 : 4;
                const int64_t share = (run_lines * (t + 1) / row_tiles - from) * (4 / asks);
                lattice_prefetch next = {.groups = last ? 0 : share < run_lines ? share : run_lines, .asks = asks};
                for (int run = 0; run < 4; run++)
                    next.runs[run] = panels_here + width * panel_stride + (run * run_lines + from) * LATTICE_PANEL;
                (here == 1 ? choice->narrow : choice->wide)(a + row * a_stride, a_stride, panels_here, panel_stride, k, c,
                                                            &next);
                store(context, row, height, p, here, c);
                p += here;
            }
            row += height;
        }
        panel += width;
    }
}

#endif
