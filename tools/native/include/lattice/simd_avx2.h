/* f32x16 as two ymm registers: `low` holds lanes 0 to 7, `high` lanes 8 to 15. */
#include <immintrin.h>

typedef struct {
    __m256 low, high;
} f32x16;
typedef struct {
    __m256i low, high;
} i32x16;
typedef f32x16 m16;

typedef __m256 vf;
#define VF_LANES 8
#define vf_load(p) _mm256_loadu_ps(p)
#define vf_store(p, v) _mm256_storeu_ps(p, v)
#define vf_set1(x) _mm256_set1_ps(x)
#define vf_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vf_add(a, b) _mm256_add_ps(a, b)
#define vf_zero() _mm256_setzero_ps()
#define vf_sub(a, b) _mm256_sub_ps(a, b)
#define vf_abs(a) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a)

LATTICE_INLINE void vf_accumulate(vf *sum, vf a, vf b)
{
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}

#define LATTICE_PAIR(type, low_value, high_value) ((type){low_value, high_value})

LATTICE_INLINE f32x16 f32x16_load(const float *p)
{
    return LATTICE_PAIR(f32x16, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
LATTICE_INLINE void f32x16_store(float *p, f32x16 v)
{
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
}
LATTICE_INLINE f32x16 f32x16_set1(float x) { return LATTICE_PAIR(f32x16, _mm256_set1_ps(x), _mm256_set1_ps(x)); }

#define LATTICE_BINARY(name, instruction)                                                                              \
    LATTICE_INLINE f32x16 name(f32x16 a, f32x16 b)                                                                     \
    {                                                                                                                  \
        return LATTICE_PAIR(f32x16, instruction(a.low, b.low), instruction(a.high, b.high));                           \
    }
LATTICE_BINARY(f32x16_add, _mm256_add_ps)
LATTICE_BINARY(f32x16_sub, _mm256_sub_ps)
LATTICE_BINARY(f32x16_mul, _mm256_mul_ps)
LATTICE_BINARY(f32x16_div, _mm256_div_ps)
LATTICE_BINARY(f32x16_max, _mm256_max_ps)
LATTICE_BINARY(f32x16_min, _mm256_min_ps)
#undef LATTICE_BINARY

LATTICE_INLINE f32x16 f32x16_fma(f32x16 a, f32x16 b, f32x16 c)
{
    return LATTICE_PAIR(f32x16, _mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
LATTICE_INLINE f32x16 f32x16_sqrt(f32x16 a)
{
    return LATTICE_PAIR(f32x16, _mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high));
}
LATTICE_INLINE f32x16 f32x16_abs(f32x16 a)
{
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return LATTICE_PAIR(f32x16, _mm256_andnot_ps(bit, a.low), _mm256_andnot_ps(bit, a.high));
}
LATTICE_INLINE f32x16 f32x16_neg(f32x16 a)
{
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return LATTICE_PAIR(f32x16, _mm256_xor_ps(bit, a.low), _mm256_xor_ps(bit, a.high));
}
LATTICE_INLINE f32x16 f32x16_copysign(f32x16 magnitude, f32x16 sign)
{
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return LATTICE_PAIR(f32x16, _mm256_or_ps(_mm256_andnot_ps(bit, magnitude.low), _mm256_and_ps(bit, sign.low)),
                        _mm256_or_ps(_mm256_andnot_ps(bit, magnitude.high), _mm256_and_ps(bit, sign.high)));
}
LATTICE_INLINE f32x16 f32x16_round(f32x16 a)
{
    return LATTICE_PAIR(f32x16, _mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                        _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

LATTICE_INLINE m16 f32x16_less(f32x16 a, f32x16 b)
{
    return LATTICE_PAIR(m16, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ));
}
LATTICE_INLINE m16 f32x16_equal(f32x16 a, f32x16 b)
{
    return LATTICE_PAIR(m16, _mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ));
}
LATTICE_INLINE f32x16 f32x16_select(m16 mask, f32x16 yes, f32x16 no)
{
    return LATTICE_PAIR(f32x16, _mm256_blendv_ps(no.low, yes.low, mask.low),
                        _mm256_blendv_ps(no.high, yes.high, mask.high));
}

LATTICE_INLINE i32x16 i32x16_set1(int32_t x)
{
    return LATTICE_PAIR(i32x16, _mm256_set1_epi32(x), _mm256_set1_epi32(x));
}
LATTICE_INLINE i32x16 i32x16_add(i32x16 a, i32x16 b)
{
    return LATTICE_PAIR(i32x16, _mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high));
}
LATTICE_INLINE i32x16 i32x16_sub(i32x16 a, i32x16 b)
{
    return LATTICE_PAIR(i32x16, _mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high));
}
LATTICE_INLINE i32x16 i32x16_and(i32x16 a, i32x16 b)
{
    return LATTICE_PAIR(i32x16, _mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high));
}
#define i32x16_shift_left(a, bits)                                                                                     \
    LATTICE_PAIR(i32x16, _mm256_slli_epi32((a).low, bits), _mm256_slli_epi32((a).high, bits))
#define i32x16_shift_right(a, bits)                                                                                    \
    LATTICE_PAIR(i32x16, _mm256_srai_epi32((a).low, bits), _mm256_srai_epi32((a).high, bits))
LATTICE_INLINE i32x16 i32x16_from_f32x16(f32x16 a)
{
    return LATTICE_PAIR(i32x16, _mm256_cvttps_epi32(a.low), _mm256_cvttps_epi32(a.high));
}
LATTICE_INLINE f32x16 f32x16_from_i32x16(i32x16 a)
{
    return LATTICE_PAIR(f32x16, _mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high));
}
LATTICE_INLINE f32x16 f32x16_from_bits(i32x16 a)
{
    return LATTICE_PAIR(f32x16, _mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high));
}
LATTICE_INLINE i32x16 f32x16_bits(f32x16 a)
{
    return LATTICE_PAIR(i32x16, _mm256_castps_si256(a.low), _mm256_castps_si256(a.high));
}

LATTICE_INLINE float f32x16_fold_add(f32x16 v)
{
    const __m256 eight = _mm256_add_ps(v.low, v.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

LATTICE_INLINE float f32x16_fold_max(f32x16 v)
{
    const __m256 eight = _mm256_max_ps(v.low, v.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
