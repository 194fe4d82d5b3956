/* Rows of a matrix, copied so that a tile of a product reads one stream of them; and a step of such a tile. AVX-512 only.
 *
 *     rows of a tile          packed: [k][R]
 *     row 0   [ a0 b0 c0 .. ]
 *     row 1   [ a1 b1 c1 .. ]     [ a0 a1 .. aR-1 | b0 b1 .. bR-1 | c0 .. ]
 *       ..
 *
 * Read in place, a tile of a dozen rows needs as many pointers, which do not fit the registers, and as many lines of L1 at
 * once. Packed, it needs one.
 */
#ifndef LATTICE_PACKED_ROWS_H
#define LATTICE_PACKED_ROWS_H

#include "simd.h"

#if defined(LATTICE_ISA_AVX512)
/* packed[i][r] = a[r][i] for up to 16 rows. Four columns at a time, four quarters of a register holding four rows each: the
 * loads put the quarters in place, and what is left is to turn 4 x 4 blocks within them. */
static inline void pack_rows(const float *a, int64_t stride, int64_t rows, int64_t k, float *packed)
{
    const float *quarters[4][4];
    for (int64_t r = 0; r < 16; r++) /* rows that do not exist are read as the last one, and not written */
        quarters[r % 4][r / 4] = a + (r < rows ? r : rows - 1) * stride;
    const __mmask16 written = (__mmask16)((1u << rows) - 1);
    const int64_t whole = k / 4 * 4;
    for (int64_t i = 0; i < whole; i += 4) {
        __m512 x[4];
        for (int j = 0; j < 4; j++) {
            x[j] = _mm512_castps128_ps512(_mm_loadu_ps(quarters[j][0] + i));
            x[j] = _mm512_insertf32x4(x[j], _mm_loadu_ps(quarters[j][1] + i), 1);
            x[j] = _mm512_insertf32x4(x[j], _mm_loadu_ps(quarters[j][2] + i), 2);
            x[j] = _mm512_insertf32x4(x[j], _mm_loadu_ps(quarters[j][3] + i), 3);
        }
        const __m512 low01 = _mm512_unpacklo_ps(x[0], x[1]), high01 = _mm512_unpackhi_ps(x[0], x[1]);
        const __m512 low23 = _mm512_unpacklo_ps(x[2], x[3]), high23 = _mm512_unpackhi_ps(x[2], x[3]);
        float *line = packed + i * rows;
        _mm512_mask_storeu_ps(line, written, _mm512_shuffle_ps(low01, low23, 0x44));
        _mm512_mask_storeu_ps(line + rows, written, _mm512_shuffle_ps(low01, low23, 0xee));
        _mm512_mask_storeu_ps(line + 2 * rows, written, _mm512_shuffle_ps(high01, high23, 0x44));
        _mm512_mask_storeu_ps(line + 3 * rows, written, _mm512_shuffle_ps(high01, high23, 0xee));
    }
    for (int64_t i = whole; i < k; i++)
        for (int64_t r = 0; r < rows; r++)
            packed[i * rows + r] = a[r * stride + i];
}

/* What a tile of R rows by P panels does in step I of k: for each row r and panel p
 *
 *     sum[r][p] += rows[I][r] * panel p [I][16]
 *
 * `rows` and `panels` lie at the tile's first step; panels are `panel_stride` floats apart. Half of the rows need no
 * instruction for the broadcast: the multiply-add reads the element from memory. The other half is broadcast to a register,
 * because a broadcast in the multiply-add is read once for each panel and two loads a cycle is all there is. */
#define LATTICE_PACKED_STEP(R, P, I, sum, rows, panels, panel_stride)                                                  \
    do {                                                                                                               \
        vf columns[P];                                                                                                 \
        LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                     \
            columns[p] = vf_load((panels) + p * (panel_stride) + (I) * VF_LANES);                                      \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
        {                                                                                                              \
            if (r % 2 == 0) {                                                                                          \
                const vf x = vf_set1((rows)[(I) * R + r]);                                                             \
                LATTICE_UNROLL for (int p = 0; p < P; p++)                                                             \
                    vf_accumulate(&sum[r][p], x, columns[p]);                                                          \
            } else {                                                                                                   \
                LATTICE_UNROLL for (int p = 0; p < P; p++)                                                             \
                    vf_accumulate_element(&sum[r][p], (rows) + (I) * R + r, columns[p]);                               \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)
#endif

#endif
