/* Integers beside the f32x16 of simd.h: sixteen int32 in and out of memory, narrowed to bytes and words, widened from them.
 *
 * All of it is exact, so every instruction set gives the same values.
 */
#ifndef LATTICE_SIMD_INTEGER_H
#define LATTICE_SIMD_INTEGER_H

#include "simd.h"

/* The product modulo 2^32 of each lane. */
LATTICE_INLINE i32x16 i32x16_mul(i32x16 a, i32x16 b);
LATTICE_INLINE i32x16 i32x16_load(const int32_t *p);
LATTICE_INLINE void i32x16_store(int32_t *p, i32x16 v);
/* To the nearest integer, ties to even, of lanes that an int32 holds. */
LATTICE_INLINE i32x16 i32x16_round_f32x16(f32x16 a);
/* Lanes that fit are written as bytes or words; the others have no meaning. */
LATTICE_INLINE void i32x16_store_bytes(void *p, i32x16 v);
LATTICE_INLINE void i32x16_store_words(int16_t *p, i32x16 v);
/* Sixteen bytes or words, widened. */
LATTICE_INLINE i32x16 i32x16_load_int8(const int8_t *p);
LATTICE_INLINE i32x16 i32x16_load_uint8(const uint8_t *p);

#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512)
LATTICE_INLINE i32x16 i32x16_mul(i32x16 a, i32x16 b) { return _mm512_mullo_epi32(a, b); }
LATTICE_INLINE i32x16 i32x16_load(const int32_t *p) { return _mm512_loadu_si512(p); }
LATTICE_INLINE void i32x16_store(int32_t *p, i32x16 v) { _mm512_storeu_si512(p, v); }
LATTICE_INLINE i32x16 i32x16_round_f32x16(f32x16 a) { return _mm512_cvtps_epi32(a); }
LATTICE_INLINE void i32x16_store_bytes(void *p, i32x16 v) { _mm_storeu_si128(p, _mm512_cvtepi32_epi8(v)); }
LATTICE_INLINE void i32x16_store_words(int16_t *p, i32x16 v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(v));
}
LATTICE_INLINE i32x16 i32x16_load_int8(const int8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
LATTICE_INLINE i32x16 i32x16_load_uint8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
#elif defined(LATTICE_ISA_AVX2)
LATTICE_INLINE i32x16 i32x16_mul(i32x16 a, i32x16 b)
{
    return LATTICE_PAIR(i32x16, _mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high));
}
LATTICE_INLINE i32x16 i32x16_load(const int32_t *p)
{
    return LATTICE_PAIR(i32x16, _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8)));
}
LATTICE_INLINE void i32x16_store(int32_t *p, i32x16 v)
{
    _mm256_storeu_si256((__m256i *)p, v.low);
    _mm256_storeu_si256((__m256i *)(p + 8), v.high);
}
LATTICE_INLINE i32x16 i32x16_round_f32x16(f32x16 a)
{
    return LATTICE_PAIR(i32x16, _mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high));
}
/* Packing works in each half of a register: 0-3 8-11 | 4-7 12-15, put in order by the permutation. */
LATTICE_INLINE __m256i lattice_packed_words(i32x16 v)
{
    const __m256i low_words = _mm256_set1_epi32(0xffff);
    const __m256i mixed = _mm256_packus_epi32(_mm256_and_si256(v.low, low_words), _mm256_and_si256(v.high, low_words));
    return _mm256_permute4x64_epi64(mixed, 0xd8);
}
LATTICE_INLINE void i32x16_store_words(int16_t *p, i32x16 v)
{
    _mm256_storeu_si256((__m256i *)p, lattice_packed_words(v));
}
LATTICE_INLINE void i32x16_store_bytes(void *p, i32x16 v)
{
    const __m256i words = _mm256_and_si256(lattice_packed_words(v), _mm256_set1_epi16(0xff));
    _mm_storeu_si128(p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
LATTICE_INLINE i32x16 i32x16_load_int8(const int8_t *p)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return LATTICE_PAIR(i32x16, _mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
}
LATTICE_INLINE i32x16 i32x16_load_uint8(const uint8_t *p)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return LATTICE_PAIR(i32x16, _mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}
#else
/* Plain C over the lanes in memory: compilers turn it into the vector instructions of NEON and SSE. */
LATTICE_INLINE i32x16 i32x16_load(const int32_t *p)
{
#if defined(LATTICE_ISA_AVX512)
    return _mm512_loadu_si512(p);
#else
    i32x16 v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}
LATTICE_INLINE void i32x16_store(int32_t *p, i32x16 v)
{
#if defined(LATTICE_ISA_AVX512)
    _mm512_storeu_si512(p, v);
#else
    memcpy(p, &v, sizeof v);
#endif
}
LATTICE_INLINE i32x16 i32x16_round_f32x16(f32x16 a) { return i32x16_from_f32x16(f32x16_round(a)); }
LATTICE_INLINE i32x16 i32x16_mul(i32x16 a, i32x16 b)
{
    int32_t left[16], right[16];
    i32x16_store(left, a);
    i32x16_store(right, b);
    for (int i = 0; i < 16; i++)
        left[i] = (int32_t)((uint32_t)left[i] * (uint32_t)right[i]);
    return i32x16_load(left);
}
LATTICE_INLINE void i32x16_store_bytes(void *p, i32x16 v)
{
    int32_t lanes[16];
    i32x16_store(lanes, v);
    for (int i = 0; i < 16; i++)
        ((uint8_t *)p)[i] = (uint8_t)lanes[i];
}
LATTICE_INLINE void i32x16_store_words(int16_t *p, i32x16 v)
{
    int32_t lanes[16];
    i32x16_store(lanes, v);
    for (int i = 0; i < 16; i++)
        p[i] = (int16_t)lanes[i];
}
LATTICE_INLINE i32x16 i32x16_load_int8(const int8_t *p)
{
    int32_t lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = p[i];
    return i32x16_load(lanes);
}
LATTICE_INLINE i32x16 i32x16_load_uint8(const uint8_t *p)
{
    int32_t lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = p[i];
    return i32x16_load(lanes);
}
#endif

#endif
