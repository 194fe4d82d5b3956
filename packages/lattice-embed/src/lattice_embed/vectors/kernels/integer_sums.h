/* Exact integer sums of products: what the int8 and int4 kernels are written over, once an instruction set.
 *
 *     sums                     int32 lanes; how many there are is nobody's business, their total is exact
 *     sums_int16_int8(s, x, w)   s += sum x_k w_k over SUMS_STEP values of each
 *     sums_int8_int8(s, x, w)    the same of two int8
 *     sums_nibbles(s, even, odd, w)   SUMS_STEP bytes w hold two values of 0 to 15 each: the high nibble meets even, the low
 *                              one odd, both int8
 *     sums_nibble_pairs(s, v, w)      the nibbles of v times those of w, high by high and low by low
 *     sums_fold(s)             the total
 *     sums_fold_four(s, t)     the totals of four
 *
 * Integers do not round, so all of these give the same result everywhere, the baseline and the dot-product instructions
 * included (VNNI, SDOT: LATTICE_DOT_INSTRUCTIONS). The caller bounds width times magnitude so that a total fits int32.
 *
 * An int16 query against int8 rows costs one widening and one multiply-add for sixteen values, where two int8 would have to
 * be widened both: so queries are widened once and rows are never repacked.
 */
#ifndef LATTICE_INTEGER_SUMS_H
#define LATTICE_INTEGER_SUMS_H

#include "lattice/simd.h"

#if defined(LATTICE_EMULATE_AVX512) /* SIMDe gives the name to a function of four arguments */
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#endif

#if defined(LATTICE_ISA_AVX512)
#define SUMS_STEP 32
typedef __m512i sums;
LATTICE_INLINE sums sums_zero(void) { return _mm512_setzero_si512(); }
LATTICE_INLINE __m512i sums_widen(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
/* 32 bytes of nibbles as 64: the high ones below, the low ones above. */
LATTICE_INLINE __m512i sums_split(const uint8_t *p)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)p), low = _mm256_set1_epi8(15);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), low)),
                              _mm256_and_si256(bytes, low), 1);
}
LATTICE_INLINE __m512i sums_join(const int8_t *even, const int8_t *odd)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)even)),
                              _mm256_loadu_si256((const __m256i *)odd), 1);
}
LATTICE_INLINE sums sums_madd_int16(sums s, __m512i x, __m512i w)
{
#if defined(LATTICE_DOT_INSTRUCTIONS)
    return _mm512_dpwssd_epi32(s, x, w);
#else
    return _mm512_add_epi32(s, _mm512_madd_epi16(x, w));
#endif
}
/* `bytes` at most 15 each: a pair of products stays far from the limits of int16. */
LATTICE_INLINE sums sums_madd_bytes(sums s, __m512i bytes, __m512i x)
{
#if defined(LATTICE_DOT_INSTRUCTIONS)
    return _mm512_dpbusd_epi32(s, bytes, x);
#else
    return _mm512_add_epi32(s, _mm512_madd_epi16(_mm512_maddubs_epi16(bytes, x), _mm512_set1_epi16(1)));
#endif
}
LATTICE_INLINE sums sums_int16_int8(sums s, const int16_t *x, const int8_t *w)
{
    return sums_madd_int16(s, _mm512_loadu_si512(x), sums_widen(w));
}
LATTICE_INLINE sums sums_int8_int8(sums s, const int8_t *x, const int8_t *w)
{
    return sums_madd_int16(s, sums_widen(x), sums_widen(w));
}
LATTICE_INLINE sums sums_nibbles(sums s, const int8_t *even, const int8_t *odd, const uint8_t *w)
{
    return sums_madd_bytes(s, sums_split(w), sums_join(even, odd));
}
LATTICE_INLINE sums sums_nibble_pairs(sums s, const uint8_t *v, const uint8_t *w)
{
    return sums_madd_bytes(s, sums_split(v), sums_split(w));
}
LATTICE_INLINE int32_t sums_fold(sums s)
{
    int32_t lanes[16];
    _mm512_storeu_si512(lanes, s);
    const __m256i eight =
        _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)lanes), _mm256_loadu_si256((const __m256i *)(lanes + 8)));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}
/* Four totals at once: a third of the shuffles of four folds. */
#define SUMS_FOLD_FOUR 1
LATTICE_INLINE void sums_fold_four(const sums *s, int32_t *totals)
{
    const __m512i first = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i second = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    const __m512i sixteen = /* in every quarter: a part of each of the four totals */
        _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
    const __m256i eight =
        _mm256_add_epi32(_mm512_castsi512_si256(sixteen), _mm512_extracti64x4_epi64(sixteen, 1));
    _mm_storeu_si128((__m128i *)totals,
                     _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1)));
}

#elif defined(LATTICE_ISA_AVX2)
#define SUMS_STEP 32
typedef __m256i sums;
LATTICE_INLINE sums sums_zero(void) { return _mm256_setzero_si256(); }
LATTICE_INLINE __m256i sums_widen(const int8_t *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); }
LATTICE_INLINE sums sums_madd_int16(sums s, __m256i x, __m256i w)
{
    return _mm256_add_epi32(s, _mm256_madd_epi16(x, w));
}
LATTICE_INLINE sums sums_int16_int8(sums s, const int16_t *x, const int8_t *w)
{
    s = sums_madd_int16(s, _mm256_loadu_si256((const __m256i *)x), sums_widen(w));
    return sums_madd_int16(s, _mm256_loadu_si256((const __m256i *)(x + 16)), sums_widen(w + 16));
}
LATTICE_INLINE sums sums_int8_int8(sums s, const int8_t *x, const int8_t *w)
{
    s = sums_madd_int16(s, sums_widen(x), sums_widen(w));
    return sums_madd_int16(s, sums_widen(x + 16), sums_widen(w + 16));
}
/* Both products of a byte are added as int16 before they are widened: at most 4 * 15 * 128. */
LATTICE_INLINE sums sums_madd_bytes(sums s, __m256i high, __m256i low, __m256i even, __m256i odd)
{
    const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(high, even), _mm256_maddubs_epi16(low, odd));
    return sums_madd_int16(s, products, _mm256_set1_epi16(1));
}
LATTICE_INLINE __m256i sums_high(__m256i bytes)
{
    return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
}
LATTICE_INLINE __m256i sums_low(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
LATTICE_INLINE sums sums_nibbles(sums s, const int8_t *even, const int8_t *odd, const uint8_t *w)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)w);
    return sums_madd_bytes(s, sums_high(bytes), sums_low(bytes), _mm256_loadu_si256((const __m256i *)even),
                           _mm256_loadu_si256((const __m256i *)odd));
}
LATTICE_INLINE sums sums_nibble_pairs(sums s, const uint8_t *v, const uint8_t *w)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)v), y = _mm256_loadu_si256((const __m256i *)w);
    return sums_madd_bytes(s, sums_high(x), sums_low(x), sums_high(y), sums_low(y));
}
LATTICE_INLINE int32_t sums_fold(sums s)
{
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}
/* Four totals at once: a third of the shuffles of four folds. */
#define SUMS_FOLD_FOUR 1
LATTICE_INLINE void sums_fold_four(const sums *s, int32_t *totals)
{
    const __m256i eight =
        _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3])); /* halves of each total */
    _mm_storeu_si128((__m128i *)totals,
                     _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1)));
}

#elif defined(LATTICE_ISA_NEON)
#define SUMS_STEP 16
typedef int32x4_t sums;
LATTICE_INLINE sums sums_zero(void) { return vdupq_n_s32(0); }
LATTICE_INLINE sums sums_madd_int16(sums s, int16x8_t x, int16x8_t w)
{
    s = vmlal_s16(s, vget_low_s16(x), vget_low_s16(w));
    return vmlal_high_s16(s, x, w);
}
LATTICE_INLINE sums sums_madd_bytes(sums s, int8x16_t x, int8x16_t w)
{
#if defined(LATTICE_DOT_INSTRUCTIONS)
    return vdotq_s32(s, x, w);
#else
    s = vpadalq_s16(s, vmull_s8(vget_low_s8(x), vget_low_s8(w)));
    return vpadalq_s16(s, vmull_high_s8(x, w));
#endif
}
LATTICE_INLINE sums sums_int16_int8(sums s, const int16_t *x, const int8_t *w)
{
    const int8x16_t bytes = vld1q_s8(w);
    s = sums_madd_int16(s, vld1q_s16(x), vmovl_s8(vget_low_s8(bytes)));
    return sums_madd_int16(s, vld1q_s16(x + 8), vmovl_high_s8(bytes));
}
LATTICE_INLINE sums sums_int8_int8(sums s, const int8_t *x, const int8_t *w)
{
    return sums_madd_bytes(s, vld1q_s8(x), vld1q_s8(w));
}
LATTICE_INLINE int8x16_t sums_high(uint8x16_t bytes) { return vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)); }
LATTICE_INLINE int8x16_t sums_low(uint8x16_t bytes)
{
    return vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
}
LATTICE_INLINE sums sums_nibbles(sums s, const int8_t *even, const int8_t *odd, const uint8_t *w)
{
    const uint8x16_t bytes = vld1q_u8(w);
    return sums_madd_bytes(sums_madd_bytes(s, sums_high(bytes), vld1q_s8(even)), sums_low(bytes), vld1q_s8(odd));
}
LATTICE_INLINE sums sums_nibble_pairs(sums s, const uint8_t *v, const uint8_t *w)
{
    const uint8x16_t x = vld1q_u8(v), y = vld1q_u8(w);
    return sums_madd_bytes(sums_madd_bytes(s, sums_high(x), sums_high(y)), sums_low(x), sums_low(y));
}
LATTICE_INLINE int32_t sums_fold(sums s) { return vaddvq_s32(s); }

#else
#define SUMS_STEP 16
typedef int32_t sums;
LATTICE_INLINE sums sums_zero(void) { return 0; }
LATTICE_INLINE sums sums_int16_int8(sums s, const int16_t *x, const int8_t *w)
{
    for (int k = 0; k < SUMS_STEP; k++)
        s += (int32_t)x[k] * (int32_t)w[k];
    return s;
}
LATTICE_INLINE sums sums_int8_int8(sums s, const int8_t *x, const int8_t *w)
{
    for (int k = 0; k < SUMS_STEP; k++)
        s += (int32_t)x[k] * (int32_t)w[k];
    return s;
}
LATTICE_INLINE sums sums_nibbles(sums s, const int8_t *even, const int8_t *odd, const uint8_t *w)
{
    for (int k = 0; k < SUMS_STEP; k++)
        s += (int32_t)even[k] * (w[k] >> 4) + (int32_t)odd[k] * (w[k] & 15);
    return s;
}
LATTICE_INLINE sums sums_nibble_pairs(sums s, const uint8_t *v, const uint8_t *w)
{
    for (int k = 0; k < SUMS_STEP; k++)
        s += (v[k] >> 4) * (w[k] >> 4) + (v[k] & 15) * (w[k] & 15);
    return s;
}
LATTICE_INLINE int32_t sums_fold(sums s) { return s; }
#endif

#if !defined(SUMS_FOLD_FOUR)
LATTICE_INLINE void sums_fold_four(const sums *s, int32_t *totals)
{
    for (int i = 0; i < 4; i++)
        totals[i] = sums_fold(s[i]);
}
#endif

#endif
