/* Transposes blocks of floats in registers: what turns rows into panels. Moves bits and computes nothing. */
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

#endif
