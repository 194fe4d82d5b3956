/* The float32 GEMM of gemm.h for many rows and AVX-512: the rows of A are copied first, so that a tile reads one stream of
 * them. The products and their order are those of gemm.h, bit for bit.
 * (lattice/packed_rows.h). That leaves 37 instructions to 28 multiply-adds instead of 44 and more, which shows most where two
 * hardware threads share a core.
 *
 * Lines that the tile will write, residuals and the panels that come next are asked for a few at a time between steps of k:
 * asked for all at once they take every buffer that a core has for lines on their way, and the loads of B wait.
 */
#ifndef LATTICE_GEMM_PACKED_H
#define LATTICE_GEMM_PACKED_H

#include "linear/gemm.h"
#include "lattice/packed_rows.h"

#define PACKED_PANELS 2 /* panels of a tile */

/* What a tile asks memory for while it multiplies. */
typedef struct {
    const float *panels; /* from here on of the panels that come next: NULL when there are none */
    int asks;            /* lines of each in every four steps of k */
    const float *y, *residual; /* where its sums go; residual may be NULL */
    int64_t stride, residual_stride;
} packed_prefetch;

typedef void (*packed_tile)(const float *a, const float *b, int64_t panel_stride, int64_t k, const lattice_output *output,
                            const packed_prefetch *next);

#define PACKED_TILE(R, P)                                                                                              \
    static void packed_##R##x##P(const float *restrict a, const float *restrict b, int64_t panel_stride, int64_t k,     \
                                 const lattice_output *restrict output, const packed_prefetch *restrict next)          \
    {                                                                                                                  \
        f32x16 sum[R][P];                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                sum[r][p] = f32x16_zero();                                                                             \
        const float *line = next->panels;                                                                              \
        const float *y = next->y, *residual = next->residual;                                                          \
        for (int64_t group = 0; group < k / 4; group++) {                                                              \
            if (group < R) {                                                                                           \
                LATTICE_UNROLL for (int p = 0; p < P; p++)                                                             \
                    __builtin_prefetch(y + p * LATTICE_PANEL, 1, 3);                                                   \
                y += next->stride;                                                                                     \
                if (residual != NULL) {                                                                                \
                    LATTICE_UNROLL for (int p = 0; p < P; p++)                                                         \
                        __builtin_prefetch(residual + p * LATTICE_PANEL, 0, 3);                                        \
                    residual += next->residual_stride;                                                                 \
                }                                                                                                      \
            }                                                                                                          \
            for (int i = 0; i < next->asks; i++, line += LATTICE_PANEL)                                                \
                LATTICE_UNROLL for (int p = 0; p < P; p++)                                                             \
                    __builtin_prefetch(line + p * panel_stride, 0, 3);                                                 \
            LATTICE_UNROLL for (int i = 0; i < 4; i++)                                                                 \
                LATTICE_PACKED_STEP(R, P, i, sum, a, b, panel_stride);                                                 \
            a += 4 * R;                                                                                                \
            b += 4 * LATTICE_PANEL;                                                                                    \
        }                                                                                                              \
        for (int64_t i = 0; i < k % 4; i++)                                                                            \
            LATTICE_PACKED_STEP(R, P, i, sum, a, b, panel_stride);                                                     \
        if (output->bias != NULL)                                                                                      \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
            {                                                                                                          \
                const f32x16 bias = f32x16_load(output->bias + p * LATTICE_PANEL);                                     \
                LATTICE_UNROLL for (int r = 0; r < R; r++)                                                             \
                    sum[r][p] = f32x16_add(sum[r][p], bias);                                                           \
            }                                                                                                          \
        if (output->residual != NULL)                                                                                  \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
                LATTICE_UNROLL for (int p = 0; p < P; p++)                                                             \
                    sum[r][p] = f32x16_add(                                                                            \
                        sum[r][p], f32x16_load(output->residual + r * output->residual_stride + p * LATTICE_PANEL));   \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                f32x16_store(output->y + r * output->stride + p * LATTICE_PANEL, sum[r][p]);                           \
    }

PACKED_TILE(8, 1) PACKED_TILE(9, 1) PACKED_TILE(10, 1) PACKED_TILE(11, 1) PACKED_TILE(12, 1) PACKED_TILE(13, 1)
PACKED_TILE(14, 1)
PACKED_TILE(8, 2) PACKED_TILE(9, 2) PACKED_TILE(10, 2) PACKED_TILE(11, 2) PACKED_TILE(12, 2) PACKED_TILE(13, 2)
PACKED_TILE(14, 2)

#define PACKED_LEAST_ROWS 8 /* of a tile */
static const packed_tile packed_tiles[TILE_ROWS - PACKED_LEAST_ROWS + 1][PACKED_PANELS] = {
    {packed_8x1, packed_8x2},   {packed_9x1, packed_9x2},   {packed_10x1, packed_10x2}, {packed_11x1, packed_11x2},
    {packed_12x1, packed_12x2}, {packed_13x1, packed_13x2}, {packed_14x1, packed_14x2}};

/* Whether the rows split into tiles that exist here. */
LATTICE_INLINE int can_pack(int64_t rows)
{
    return rows / lattice_divide_up(rows, TILE_ROWS) >= PACKED_LEAST_ROWS;
}

/* gemm_float32 over streamed weights, with room for `rows` x k floats in `packed`. */
static void gemm_packed(const float *a, int64_t a_stride, int64_t rows, const float *b, int64_t panel_stride, int64_t panels,
                        int64_t k, const lattice_output *output, float *packed)
{
    float sums[TILE_ROWS * PACKED_PANELS * LATTICE_PANEL] __attribute__((aligned(64)));
    const int64_t row_tiles = lattice_divide_up(rows, TILE_ROWS);
    const int64_t short_tile = rows / row_tiles, longer_tiles = rows % row_tiles;
    const int64_t whole_panels = output->columns / LATTICE_PANEL; /* that y has room for */
    for (int64_t t = 0, row = 0; t < row_tiles; t++) {
        const int64_t height = short_tile + (t < longer_tiles);
        pack_rows(a + row * a_stride, a_stride, height, k, packed + row * k);
        row += height;
    }
    const int asks = row_tiles >= 4 ? 1 : row_tiles >= 2 ? 2 : 4;
    for (int64_t panel = 0; panel < panels;) {
        const int64_t width = panel + PACKED_PANELS <= whole_panels && panel + PACKED_PANELS <= panels ? PACKED_PANELS : 1;
        const int64_t column = panel * LATTICE_PANEL;
        const int whole = panel < whole_panels, buffered = !whole || output->activation != LATTICE_ACTIVATION_NONE;
        lattice_output part = *output; /* from the tile's first row and column on */
        part.y += column;
        part.bias = output->bias != NULL ? output->bias + column : NULL;
        part.residual = output->residual != NULL ? output->residual + column : NULL;
        for (int64_t t = 0, row = 0; t < row_tiles; t++) {
            const int64_t height = short_tile + (t < longer_tiles);
            const packed_tile tile = packed_tiles[height - PACKED_LEAST_ROWS][width - 1];
            packed_prefetch next = {.y = part.y, .stride = part.stride, .residual = part.residual,
                                    .residual_stride = part.residual_stride};
            if (t * asks < 4 && panel + width < panels) {
                next.panels = b + (panel + width) * panel_stride + t * asks * (k / 4) * LATTICE_PANEL;
                next.asks = asks;
            }
            if (!buffered) {
                tile(packed + row * k, b + panel * panel_stride, panel_stride, k, &part, &next);
            } else {
                const lattice_output buffer = {.y = sums, .stride = width * LATTICE_PANEL, .bias = whole ? part.bias : NULL};
                tile(packed + row * k, b + panel * panel_stride, panel_stride, k, &buffer, &next);
                finish_buffered(sums, height, whole ? buffer.stride : output->columns - column, &part);
            }
            row += height;
            part.y += height * part.stride;
            if (part.residual != NULL)
                part.residual += height * part.residual_stride;
        }
        panel += width;
    }
}

#undef PACKED_TILE
#endif
