/* y[m, n] = activation(sum over k of A[m, k] * B[n, k] + bias[n] + residual[m, n]): each sum one chain of fused
 * multiply-adds in ascending k, finished while it lies in a register and written once.
 *
 * Shapes and layouts: A is read in place, rows `a_stride` floats apart. B is packed once in panels of 16 output columns,
 * each [k][16] elements; the layout is the same for every instruction set. Elements are float32, or bfloat16 or float16,
 * which are widened as they are loaded: the sums are the same as over float32 weights of those values. A tile of R rows by P
 * panels stays in registers:
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

#include "rows/activations.h"
#include "lattice/half.h"
#include "linear/linear_output.h"
#include "rows/rows.h"

#define PANEL_VECTORS (LATTICE_PANEL / VF_LANES)

/* What a tile asks memory for while it multiplies: its share of the panel that comes next, in four runs at once, because one
 * run alone is limited by how far ahead the memory system looks in it. The asking is spread over the first row tiles of a
 * panel: lines wanted in bursts fill the buffers that the tile's own loads need. Of a wide tile's panels one is asked for;
 * the others are streams that the hardware foresees. */
typedef struct {
    const char *runs[4];
    int asks; /* lines in every four steps of k: 4, 2, 1 or none */
} lattice_prefetch;

#define TILE_PANELS 8 /* panels of the widest tile of any level */

#if defined(LATTICE_ISA_AVX512)
#define TILE_ROWS 14
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
#define TILE_ROWS 6
#else
#define TILE_ROWS 3
#endif
#define LATTICE_LINE 64 /* bytes that memory gives at once */

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

#define WEIGHT float
#define WEIGHT_LOAD(p) vf_load(p)
#define WEIGHTED(name) name##_float32
#include "linear/gemm_tiles.h"

#define WEIGHT uint16_t
#define WEIGHT_LOAD(p) vf_load_bfloat16(p)
#define WEIGHTED(name) name##_bfloat16
#include "linear/gemm_tiles.h"

#define WEIGHT uint16_t
#define WEIGHT_LOAD(p) vf_load_float16(p)
#define WEIGHTED(name) name##_float16
#include "linear/gemm_tiles.h"

#endif
