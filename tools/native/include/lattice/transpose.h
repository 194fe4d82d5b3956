/* Transposes blocks of floats in registers: what turns rows into panels and tiles. Moves bits and computes nothing. */
#ifndef LATTICE_TRANSPOSE_H
#define LATTICE_TRANSPOSE_H

#include "simd.h"

#if defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_AVX512)
/* target[j][i] = source[i][j]; rows lie `source_stride` and `target_stride` floats apart. */
LATTICE_INLINE void transpose_8x8(const float *source, int64_t source_stride, float *target, int64_t target_stride)
{
    __m256 rows[8], pairs[8];
    for (int i = 0; i < 8; i++)
        rows[i] = _mm256_loadu_ps(source + i * source_stride);
    for (int i = 0; i < 8; i += 2) { /* a0 b0 a1 b1 | a4 b4 a5 b5, and the rest of both rows */
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* a0 b0 c0 d0 | a4 b4 c4 d4, then columns 1, 2 and 3 */
        rows[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        rows[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        rows[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        rows[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(target + i * target_stride, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20));
        _mm256_storeu_ps(target + (i + 4) * target_stride, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31));
    }
}
#elif defined(LATTICE_ISA_NEON)
LATTICE_INLINE void transpose_8x8(const float *source, int64_t source_stride, float *target, int64_t target_stride)
{
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 8; j += 4) {
            const float *block = source + i * source_stride + j;
            const float32x4x2_t ab = vtrnq_f32(vld1q_f32(block), vld1q_f32(block + source_stride));
            const float32x4x2_t cd = vtrnq_f32(vld1q_f32(block + 2 * source_stride), vld1q_f32(block + 3 * source_stride));
            float *turned = target + j * target_stride + i;
            for (int odd = 0; odd < 2; odd++) { /* columns 0 and 2, then 1 and 3 */
                vst1q_f32(turned + odd * target_stride,
                          vcombine_f32(vget_low_f32(ab.val[odd]), vget_low_f32(cd.val[odd])));
                vst1q_f32(turned + (odd + 2) * target_stride,
                          vcombine_f32(vget_high_f32(ab.val[odd]), vget_high_f32(cd.val[odd])));
            }
        }
}
#else
LATTICE_INLINE void transpose_8x8(const float *source, int64_t source_stride, float *target, int64_t target_stride)
{
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 8; i++)
            target[j * target_stride + i] = source[i * source_stride + j];
}
#endif

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
#endif

#endif
