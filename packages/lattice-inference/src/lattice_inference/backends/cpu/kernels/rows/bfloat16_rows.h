/* Rows of activations rounded to bfloat16, for linears with bfloat16 weights: to nearest, ties to even; NaN stays NaN.
 *
 * A row is its elements in order, zeros up to the next multiple of 32, and lines of padding that nobody reads; see
 * bfloat16_linear.h. Rounding is an element's own, so a row does not depend on its company.
 */
#ifndef LATTICE_BFLOAT16_ROWS_H
#define LATTICE_BFLOAT16_ROWS_H

#include "linear/bfloat16_linear.h"
#include "lattice/cpu.h"
#include "lattice/simd_integer.h"
#include "rows/rows.h"

/* The instruction that multiplies pairs of bfloat16 on this level, if it has one and the compiler knows it. */
#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512) && defined(__has_include)
#if __has_include(<avx512bf16intrin.h>)
#define BFLOAT16_DOT 1
#define BFLOAT16_DOT_FEATURE LATTICE_FEATURE_AVX512_BF16
#endif
#elif defined(LATTICE_ISA_NEON) && (defined(__clang__) || __GNUC__ >= 10)
#define BFLOAT16_DOT 1
#define BFLOAT16_DOT_FEATURE LATTICE_FEATURE_BF16
#endif
#if !defined(BFLOAT16_DOT)
#define BFLOAT16_DOT_FEATURE 0
#endif

/* Sixteen floats as sixteen bfloat16. */
LATTICE_INLINE void store_bfloat16(uint16_t *y, f32x16 x)
{
#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512)
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    /* of a NaN the upper half, with a bit that stays set when the others are cut off */
    const __m512i kept = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i chosen = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, kept);
    _mm256_storeu_si256((__m256i *)y, _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
#else
    float lanes[16];
    uint32_t bits[16];
    f32x16_store(lanes, x);
    memcpy(bits, lanes, sizeof bits);
    for (int i = 0; i < 16; i++) {
        const uint32_t rounded = bits[i] + 0x7fff + (bits[i] >> 16 & 1), kept = bits[i] | 0x400000;
        y[i] = (uint16_t)(((bits[i] & 0x7fffffff) > 0x7f800000 ? kept : rounded) >> 16);
    }
#endif
}

/* x [n] as a row. */
LATTICE_INLINE void round_row(const float *x, int64_t n, uint16_t *row)
{
    const int64_t depth = lattice_bfloat16_depth(n);
    int64_t i = 0;
    for (; i < n; i += 16)
        store_bfloat16(row + i, load_part(x, i, n));
    for (; i < depth; i += 16)
        store_bfloat16(row + i, f32x16_zero());
}

LATTICE_INLINE uint16_t *bfloat16_row(const lattice_step *step, const lattice_view *view, int64_t row)
{
    return (uint16_t *)lattice_row(step, view, row);
}

#endif
