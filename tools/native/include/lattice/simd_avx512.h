/* f32x16 as one zmm register. */
#if defined(LATTICE_EMULATE_AVX512)
#include "simd_avx512_emulated.h"
#else
#include <immintrin.h>
#endif

typedef __m512 f32x16;
typedef __m512i i32x16;
typedef __mmask16 m16;

typedef __m512 vf;
#define VF_LANES 16
#define vf_load(p) _mm512_loadu_ps(p)
#define vf_store(p, v) _mm512_storeu_ps(p, v)
#define vf_set1(x) _mm512_set1_ps(x)
#define vf_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vf_add(a, b) _mm512_add_ps(a, b)
#define vf_zero() _mm512_setzero_ps()
#define vf_sub(a, b) _mm512_sub_ps(a, b)
#define vf_abs(a) _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a)

LATTICE_INLINE void vf_accumulate(vf *sum, vf a, vf b)
{
#if defined(LATTICE_EMULATE_AVX512)
    *sum = vf_fma(a, b, *sum);
#else
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
#endif
}

LATTICE_INLINE f32x16 f32x16_load(const float *p) { return _mm512_loadu_ps(p); }
LATTICE_INLINE void f32x16_store(float *p, f32x16 v) { _mm512_storeu_ps(p, v); }
LATTICE_INLINE f32x16 f32x16_set1(float x) { return _mm512_set1_ps(x); }
LATTICE_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
LATTICE_INLINE f32x16 f32x16_sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
LATTICE_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
LATTICE_INLINE f32x16 f32x16_div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
LATTICE_INLINE f32x16 f32x16_fma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
LATTICE_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }
LATTICE_INLINE f32x16 f32x16_min(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }
LATTICE_INLINE f32x16 f32x16_sqrt(f32x16 a) { return _mm512_sqrt_ps(a); }
LATTICE_INLINE f32x16 f32x16_abs(f32x16 a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
LATTICE_INLINE f32x16 f32x16_neg(f32x16 a) { return _mm512_xor_ps(_mm512_set1_ps(-0.0f), a); }
LATTICE_INLINE f32x16 f32x16_copysign(f32x16 magnitude, f32x16 sign)
{
    const __m512i bit = _mm512_set1_epi32(INT32_MIN); /* where it is set that of the sign, else that of the magnitude */
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude), 0xca));
}
LATTICE_INLINE f32x16 f32x16_round(f32x16 a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

LATTICE_INLINE m16 f32x16_less(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
LATTICE_INLINE m16 f32x16_equal(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
LATTICE_INLINE f32x16 f32x16_select(m16 mask, f32x16 yes, f32x16 no) { return _mm512_mask_blend_ps(mask, no, yes); }

LATTICE_INLINE i32x16 i32x16_set1(int32_t x) { return _mm512_set1_epi32(x); }
LATTICE_INLINE i32x16 i32x16_add(i32x16 a, i32x16 b) { return _mm512_add_epi32(a, b); }
LATTICE_INLINE i32x16 i32x16_sub(i32x16 a, i32x16 b) { return _mm512_sub_epi32(a, b); }
LATTICE_INLINE i32x16 i32x16_and(i32x16 a, i32x16 b) { return _mm512_and_si512(a, b); }
#define i32x16_shift_left(a, bits) _mm512_slli_epi32(a, bits)
#define i32x16_shift_right(a, bits) _mm512_srai_epi32(a, bits)
LATTICE_INLINE i32x16 i32x16_from_f32x16(f32x16 a) { return _mm512_cvttps_epi32(a); }
LATTICE_INLINE f32x16 f32x16_from_i32x16(i32x16 a) { return _mm512_cvtepi32_ps(a); }
LATTICE_INLINE f32x16 f32x16_from_bits(i32x16 a) { return _mm512_castsi512_ps(a); }
LATTICE_INLINE i32x16 f32x16_bits(f32x16 a) { return _mm512_castps_si512(a); }

LATTICE_INLINE float f32x16_fold_add(f32x16 v)
{
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

LATTICE_INLINE float f32x16_fold_max(f32x16 v)
{
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
