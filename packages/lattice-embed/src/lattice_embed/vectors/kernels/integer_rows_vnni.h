/* Products of an int8 or int4 query with four rows by VPDPBUSD: 64 bytes of a row an instruction, nothing widened.
 *
 *     c += u0 s0 + u1 s1 + u2 s2 + u3 s3      u bytes without, s bytes with a sign, c int32; no saturation
 *
 * A row of int8 becomes bytes without a sign by adding 128 (its highest bit turned), which adds 128 times the sum of the
 * query's components. A query of sixteen bits is 256 high + low: high has a sign and meets the row so, low has none and meets
 * the row itself.
 *
 *     sum y r = 256 (sum high (r + 128) - 128 sum high) + sum low r
 *
 * modulo 2^32, where the left side fits. A query whose components all fit a byte is its own high part, and costs half.
 * Nibbles have no sign: they are split by a shift and a mask and meet the query's even and odd components.
 *
 * Per 64 bytes of a row: two instructions for an int8 query, four for a float one, six for nibbles. Bound by memory from the
 * third-level cache on.
 */
#ifndef LATTICE_INTEGER_ROWS_VNNI_H
#define LATTICE_INTEGER_ROWS_VNNI_H

#include "integer_sums.h"
#include "stored_rows.h"

#define VNNI_STEP 64

/* The last step of a row may be incomplete: `bytes` from 1 to 64 are there, and zeros above. */
LATTICE_INLINE __m512i load_row(const uint8_t *row, size_t bytes)
{
#if defined(LATTICE_EMULATE_AVX512) /* SIMDe has no masked loads of bytes */
    uint8_t padded[VNNI_STEP] = {0};
    memcpy(padded, row, bytes);
    return _mm512_loadu_si512(padded);
#else
    return _mm512_maskz_loadu_epi8(~(uint64_t)0 >> (VNNI_STEP - bytes), row);
#endif
}

/* In the register that holds the sum: gcc 12 copies the sums of a loop otherwise (vf_accumulate of simd.h). */
LATTICE_INLINE void add_bytes(sums *s, __m512i without_sign, __m512i with_sign)
{
#if defined(LATTICE_EMULATE_AVX512)
    *s = _mm512_dpbusd_epi32(*s, without_sign, with_sign);
#else
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*s) : "v"(without_sign), "v"(with_sign));
#endif
}

LATTICE_INLINE void add_int8_step(int is_byte, const lattice_query *query, size_t k, const __m512i *row, sums *high, sums *low)
{
    const __m512i sign = _mm512_set1_epi8(-128), x = _mm512_loadu_si512(query->high + k);
    for (int i = 0; i < 4; i++)
        add_bytes(&high[i], _mm512_xor_si512(row[i], sign), x);
    if (is_byte)
        return;
    const __m512i rest = _mm512_loadu_si512(query->low + k);
    for (int i = 0; i < 4; i++)
        add_bytes(&low[i], rest, row[i]);
}

/* `is_byte` is known to the compiler: the query has no low part. */
LATTICE_INLINE void dots_int8(int is_byte, const lattice_query *query, const uint8_t *const rows[4], size_t width,
                              int32_t *dots)
{
    sums high[4], low[4];
    __m512i row[4];
    for (int i = 0; i < 4; i++)
        high[i] = low[i] = sums_zero();
    size_t k = 0;
    for (; k + VNNI_STEP <= width; k += VNNI_STEP) {
        for (int i = 0; i < 4; i++)
            row[i] = _mm512_loadu_si512(rows[i] + k);
        add_int8_step(is_byte, query, k, row, high, low);
    }
    if (k < width) {
        for (int i = 0; i < 4; i++)
            row[i] = load_row(rows[i] + k, width - k);
        add_int8_step(is_byte, query, k, row, high, low);
    }
    if (!is_byte)
        for (int i = 0; i < 4; i++)
            high[i] = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
    const __m128i excess = _mm_set1_epi32((int32_t)query->excess);
    int32_t totals[4];
    sums_fold_four(high, totals);
    _mm_storeu_si128((__m128i *)dots, _mm_sub_epi32(_mm_loadu_si128((const __m128i *)totals), excess));
}

LATTICE_INLINE void add_nibbles_step(__m512i even, __m512i odd, const __m512i *row, sums *s)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; i++) {
        add_bytes(&s[i], _mm512_and_si512(_mm512_srli_epi16(row[i], 4), nibble), even);
        add_bytes(&s[i], _mm512_and_si512(row[i], nibble), odd);
    }
}

LATTICE_INLINE void dots_int4(const int8_t *even, const int8_t *odd, const uint8_t *const rows[4], size_t bytes,
                              int32_t *dots)
{
    sums s[4];
    __m512i row[4];
    for (int i = 0; i < 4; i++)
        s[i] = sums_zero();
    size_t k = 0;
    for (; k + VNNI_STEP <= bytes; k += VNNI_STEP) {
        for (int i = 0; i < 4; i++)
            row[i] = _mm512_loadu_si512(rows[i] + k);
        add_nibbles_step(_mm512_loadu_si512(even + k), _mm512_loadu_si512(odd + k), row, s);
    }
    if (k < bytes) {
        for (int i = 0; i < 4; i++)
            row[i] = load_row(rows[i] + k, bytes - k);
        add_nibbles_step(_mm512_loadu_si512(even + k), _mm512_loadu_si512(odd + k), row, s);
    }
    sums_fold_four(s, dots);
}

#endif
