/* Rows, such as the keys of a head, as panels of a product: each row in a lane. */
#ifndef LATTICE_LANE_PANELS_H
#define LATTICE_LANE_PANELS_H

#include "lattice/transpose.h"
#include "step.h"

/* rows[r][dim] -> panels [r / 16][dim][16]; the last panel is filled with zeros. */
LATTICE_INLINE void pack_rows_in_lanes(const float *source, int64_t stride, int64_t count, int64_t dim, float *panels)
{
    const int64_t blocks = dim / 8 * 8;
    for (int64_t first = 0; first < count; first += 8) {
        const int64_t here = count - first < 8 ? count - first : 8;
        const float *rows = source + first * stride;
        float *panel = panels + first / LATTICE_PANEL * LATTICE_PANEL * dim + first % LATTICE_PANEL;
        float last[8 * 8];
        for (int64_t d = 0; d < blocks; d += 8) {
            if (here == 8) {
                transpose_8x8(rows + d, stride, panel + d * LATTICE_PANEL, LATTICE_PANEL);
                continue;
            }
            memset(last, 0, sizeof(last));
            for (int64_t j = 0; j < here; j++)
                memcpy(last + j * 8, rows + j * stride + d, 8 * sizeof(float));
            transpose_8x8(last, 8, panel + d * LATTICE_PANEL, LATTICE_PANEL);
        }
        for (int64_t d = blocks; d < dim; d++)
            for (int64_t j = 0; j < 8; j++)
                panel[d * LATTICE_PANEL + j] = j < here ? rows[j * stride + d] : 0.0f;
    }
    if (count % LATTICE_PANEL >= 1 && count % LATTICE_PANEL <= 8) { /* the second half of the last panel */
        float *panel = panels + count / LATTICE_PANEL * LATTICE_PANEL * dim + 8;
        for (int64_t d = 0; d < dim; d++)
            memset(panel + d * LATTICE_PANEL, 0, 8 * sizeof(float));
    }
}

#endif
