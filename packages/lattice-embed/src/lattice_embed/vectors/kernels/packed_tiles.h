/* The tiles of matrix_product.c for AVX-512 and many columns: the rows of a are copied first, so that a tile reads one stream
 * of them. The products and their order are those of the tiles that read rows in place, bit for bit.
 * (lattice/packed_rows.h). Where scores will go, and the panels that come next, is asked for a few lines at a time: asked for
 * all at once they take every buffer that a core has for lines on their way.
 */
#ifndef LATTICE_PACKED_TILES_H
#define LATTICE_PACKED_TILES_H

#include "lattice/packed_rows.h"
#include "row_sums.h"

#define PACKED_PANELS 2     /* of a tile */
#define PACKED_LEAST_ROWS 6 /* of a tile: fewer are read in place */

typedef struct {
    const float *panel; /* from here on of the panels that come next, or NULL */
    int lines;          /* of each in every four steps of k */
} next_panels;

typedef void (*packed_tile)(const float *a, const float *panel, size_t panel_stride, size_t steps, int adding,
                            float *sums, size_t stride, next_panels next);

#define PACKED_TILE(R, P)                                                                                              \
    static void packed_##R##x##P(const float *restrict a, const float *restrict panel, size_t panel_stride,            \
                                 size_t steps, int adding, float *restrict sums, size_t stride, next_panels next)      \
    {                                                                                                                  \
        vf sum[R][P];                                                                                                  \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                sum[r][p] = vf_zero();                                                                                 \
        const float *target = sums;                                                                                    \
        for (size_t group = 0; group < steps / 4; group++) {                                                           \
            if (group < R) {                                                                                           \
                LATTICE_UNROLL for (int p = 0; p <= P; p++)                                                            \
                    __builtin_prefetch((const char *)target + 64 * p, 1);                                              \
                target += stride;                                                                                      \
            }                                                                                                          \
            for (int i = 0; i < next.lines; i++, next.panel += LATTICE_PANEL)                                          \
                LATTICE_UNROLL for (int p = 0; p < P; p++)                                                             \
                    __builtin_prefetch(next.panel + (size_t)p * panel_stride);                                         \
            LATTICE_UNROLL for (int i = 0; i < 4; i++)                                                                 \
                LATTICE_PACKED_STEP(R, P, i, sum, a, panel, panel_stride);                                             \
            a += 4 * R;                                                                                                \
            panel += 4 * LATTICE_PANEL;                                                                                \
        }                                                                                                              \
        for (size_t i = 0; i < steps % 4; i++)                                                                         \
            LATTICE_PACKED_STEP(R, P, i, sum, a, panel, panel_stride);                                                 \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
            {                                                                                                          \
                float *score = sums + (size_t)r * stride + p * LATTICE_PANEL;                                          \
                vf_store(score, adding ? vf_add(vf_load(score), sum[r][p]) : sum[r][p]);                               \
            }                                                                                                          \
    }

#define PACKED_TILES(P)                                                                                                \
    PACKED_TILE(6, P)                                                                                                  \
    PACKED_TILE(7, P)                                                                                                  \
    PACKED_TILE(8, P)                                                                                                  \
    PACKED_TILE(9, P)                                                                                                  \
    PACKED_TILE(10, P)                                                                                                 \
    PACKED_TILE(11, P)                                                                                                 \
    PACKED_TILE(12, P)
#define PACKED_TABLE(P)                                                                                                \
    {packed_6x##P, packed_7x##P, packed_8x##P, packed_9x##P, packed_10x##P, packed_11x##P, packed_12x##P}

PACKED_TILES(1)
PACKED_TILES(2)
static const packed_tile packed_tiles[PACKED_PANELS][TILE_ROWS - PACKED_LEAST_ROWS + 1] = {PACKED_TABLE(1), PACKED_TABLE(2)};

#undef PACKED_TILE
#undef PACKED_TILES
#undef PACKED_TABLE
#endif
