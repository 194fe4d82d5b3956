/* bfloat16 and float16 in memory, float32 in registers: exact widening loads.
 *
 * bfloat16 is the upper half of a float32. float16 has 5 exponent and 10 fraction bits; where the instruction set does not
 * widen it, the bits are moved into place and scaled by 2^112, which is exact for subnormals too. Infinity and NaN stay so.
 */
#ifndef LATTICE_HALF_H
#define LATTICE_HALF_H

#include "simd.h"

#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512)
LATTICE_INLINE vf vf_load_bfloat16(const uint16_t *p)
{
    const __m256i halves = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
LATTICE_INLINE vf vf_load_float16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
#elif defined(LATTICE_ISA_AVX2)
LATTICE_INLINE vf vf_load_bfloat16(const uint16_t *p)
{
    const __m128i halves = _mm_loadu_si128((const __m128i *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
LATTICE_INLINE vf vf_load_float16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
#elif defined(LATTICE_ISA_NEON)
LATTICE_INLINE vf vf_load_bfloat16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
LATTICE_INLINE vf vf_load_float16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
#else
LATTICE_INLINE vf vf_load_bfloat16(const uint16_t *p)
{
    uint32_t bits[VF_LANES];
    for (int i = 0; i < VF_LANES; i++)
        bits[i] = (uint32_t)p[i] << 16;
    float values[VF_LANES];
    memcpy(values, bits, sizeof(values));
    return vf_load(values);
}
LATTICE_INLINE vf vf_load_float16(const uint16_t *p)
{
    float values[VF_LANES];
    for (int i = 0; i < VF_LANES; i++) {
        uint32_t bits = (uint32_t)(p[i] & 0x7fff) << 13;
        if (bits >= 0x0f800000) { /* infinity and NaN */
            bits |= 0x7f800000;
            memcpy(&values[i], &bits, 4);
        } else {
            memcpy(&values[i], &bits, 4);
            values[i] *= 0x1p112f;
        }
        memcpy(&bits, &values[i], 4);
        bits |= (uint32_t)(p[i] & 0x8000) << 16;
        memcpy(&values[i], &bits, 4);
    }
    return vf_load(values);
}
#endif

/* Sixteen of them, as f32x16. */
#if defined(LATTICE_ISA_AVX512)
#define LATTICE_HALF_LOAD16(type)                                                                                      \
    LATTICE_INLINE f32x16 f32x16_load_##type(const uint16_t *p) { return vf_load_##type(p); }
#elif defined(LATTICE_ISA_AVX2)
#define LATTICE_HALF_LOAD16(type)                                                                                      \
    LATTICE_INLINE f32x16 f32x16_load_##type(const uint16_t *p)                                                        \
    {                                                                                                                  \
        return LATTICE_PAIR(f32x16, vf_load_##type(p), vf_load_##type(p + 8));                                         \
    }
#else
#define LATTICE_HALF_LOAD16(type)                                                                                      \
    LATTICE_INLINE f32x16 f32x16_load_##type(const uint16_t *p) { LATTICE_QUARTERS(f32x16, vf_load_##type(p + 4 * i)); }
#endif
LATTICE_HALF_LOAD16(bfloat16)
LATTICE_HALF_LOAD16(float16)
#undef LATTICE_HALF_LOAD16

#endif
