/* The tiles of matrix_product.c for AVX-512 and many columns: the rows of a are copied first, so that a tile reads one stream
 * of them. The products and their order are those of the tiles that read rows in place, bit for bit.
 *
 *     rows of a tile in place     packed: a tile after the other, each [k][R]
 *     row 0   [ a0 b0 c0 .. ]
 *     row 1   [ a1 b1 c1 .. ]     [ a0 a1 .. aR-1 | b0 b1 .. bR-1 | c0 .. ]
 *       ..
 *
 * Twelve pointers do not fit the registers, and twelve streams are more than the prefetcher follows well. Half of the packed
 * rows need no instruction for the broadcast: the multiply-add reads the element from memory. The other half is broadcast to
 * a register, because two loads a cycle is all there is. Where scores will go, and the panels that come next, is asked for a
 * few lines at a time: asked for all at once they take every buffer that a core has for lines on their way.
 */
#ifndef LATTICE_PACKED_TILES_H
#define LATTICE_PACKED_TILES_H

#include "row_sums.h"

#define PACKED_PANELS 2     /* of a tile */
#define PACKED_LEAST_ROWS 6 /* of a tile: fewer are read in place */

typedef struct {
    const float *panel;  /* from here on of the panels that come next, or NULL */
    int lines;           /* of each in every four steps of k */
} next_panels;

typedef void (*packed_tile)(const float *a, const float *panel, size_t panel_stride, size_t steps, int adding,
                            float *sums, size_t stride, next_panels next);

/* Step I of k from `a` and `panel` on. */
#define PACKED_STEP(R, P, I)                                                                                           \
    do {                                                                                                               \
        vf columns[P];                                                                                                 \
        UNROLL for (int p = 0; p < P; p++)                                                                             \
            columns[p] = vf_load(panel + (size_t)p * panel_stride + (I) * LATTICE_PANEL);                              \
        UNROLL for (int r = 0; r < R; r++)                                                                             \
        {                                                                                                              \
            if (r % 2 == 0) {                                                                                          \
                const vf x = vf_set1(a[(I) * R + r]);                                                                  \
                UNROLL for (int p = 0; p < P; p++)                                                                     \
                    vf_accumulate(&sum[r][p], x, columns[p]);                                                          \
            } else {                                                                                                   \
                UNROLL for (int p = 0; p < P; p++)                                                                     \
                    vf_accumulate_element(&sum[r][p], a + (I) * R + r, columns[p]);                                    \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

#define PACKED_TILE(R, P)                                                                                              \
    static void packed_##R##x##P(const float *restrict a, const float *restrict panel, size_t panel_stride,            \
                                 size_t steps, int adding, float *restrict sums, size_t stride, next_panels next)      \
    {                                                                                                                  \
        vf sum[R][P];                                                                                                  \
        UNROLL for (int r = 0; r < R; r++)                                                                             \
            UNROLL for (int p = 0; p < P; p++)                                                                         \
                sum[r][p] = vf_zero();                                                                                 \
        const float *target = sums;                                                                                    \
        for (size_t group = 0; group < steps / 4; group++) {                                                           \
            if (group < R) {                                                                                           \
                UNROLL for (int p = 0; p <= P; p++)                                                                    \
                    __builtin_prefetch((const char *)target + 64 * p, 1);                                              \
                target += stride;                                                                                      \
            }                                                                                                          \
            for (int i = 0; i < next.lines; i++, next.panel += LATTICE_PANEL)                                          \
                UNROLL for (int p = 0; p < P; p++)                                                                     \
                    __builtin_prefetch(next.panel + (size_t)p * panel_stride);                                         \
            UNROLL_FOUR for (int i = 0; i < 4; i++)                                                                    \
                PACKED_STEP(R, P, i);                                                                                  \
            a += 4 * R;                                                                                                \
            panel += 4 * LATTICE_PANEL;                                                                                \
        }                                                                                                              \
        for (size_t i = 0; i < steps % 4; i++)                                                                         \
            PACKED_STEP(R, P, i);                                                                                      \
        UNROLL for (int r = 0; r < R; r++)                                                                             \
            UNROLL for (int p = 0; p < P; p++)                                                                         \
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
static const packed_tile packed_tiles[PACKED_PANELS][12 - PACKED_LEAST_ROWS + 1] = {PACKED_TABLE(1), PACKED_TABLE(2)};

#undef PACKED_STEP
#undef PACKED_TILE
#undef PACKED_TILES
#undef PACKED_TABLE
#endif
