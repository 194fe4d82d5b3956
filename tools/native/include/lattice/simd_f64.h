/* The float64 half of the vector vocabulary: eight virtual lanes, the same bits on every instruction set with FMA.
 *
 * `f64x8` is one zmm register, two ymm, four NEON q registers, or four pairs in the compiler's own vectors in the baseline,
 * lane by lane IEEE binary64 with round to nearest even. Folds are one fixed tree:
 *
 *     lanes 0..7  ->  i + (i+4)  ->  i + (i+2)  ->  i + (i+1)
 *
 * `f64x8_max(a, b)` is a > b ? a : b and `f64x8_min(a, b)` is a < b ? a : b: a NaN in either argument yields b. As in
 * simd.h, the baseline has no fused multiply-add and differs in the last bits. `i64x8` carries bit patterns only.
 */
#ifndef LATTICE_SIMD_F64_H
#define LATTICE_SIMD_F64_H

#include "simd.h"

#if defined(LATTICE_ISA_AVX512)
typedef __m512d f64x8;
typedef __m512i i64x8;
typedef __mmask8 m8;

LATTICE_INLINE f64x8 f64x8_load(const double *p) { return _mm512_loadu_pd(p); }
LATTICE_INLINE void f64x8_store(double *p, f64x8 v) { _mm512_storeu_pd(p, v); }
LATTICE_INLINE f64x8 f64x8_set1(double x) { return _mm512_set1_pd(x); }
LATTICE_INLINE f64x8 f64x8_add(f64x8 a, f64x8 b) { return _mm512_add_pd(a, b); }
LATTICE_INLINE f64x8 f64x8_sub(f64x8 a, f64x8 b) { return _mm512_sub_pd(a, b); }
LATTICE_INLINE f64x8 f64x8_mul(f64x8 a, f64x8 b) { return _mm512_mul_pd(a, b); }
LATTICE_INLINE f64x8 f64x8_div(f64x8 a, f64x8 b) { return _mm512_div_pd(a, b); }
LATTICE_INLINE f64x8 f64x8_fma(f64x8 a, f64x8 b, f64x8 c) { return _mm512_fmadd_pd(a, b, c); }
LATTICE_INLINE f64x8 f64x8_max(f64x8 a, f64x8 b) { return _mm512_max_pd(a, b); }
LATTICE_INLINE f64x8 f64x8_min(f64x8 a, f64x8 b) { return _mm512_min_pd(a, b); }
LATTICE_INLINE f64x8 f64x8_sqrt(f64x8 a) { return _mm512_sqrt_pd(a); }
LATTICE_INLINE m8 f64x8_less(f64x8 a, f64x8 b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
LATTICE_INLINE m8 f64x8_equal(f64x8 a, f64x8 b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
LATTICE_INLINE f64x8 f64x8_select(m8 mask, f64x8 yes, f64x8 no) { return _mm512_mask_blend_pd(mask, no, yes); }
LATTICE_INLINE i64x8 f64x8_bits(f64x8 a) { return _mm512_castpd_si512(a); }
LATTICE_INLINE f64x8 f64x8_from_bits(i64x8 a) { return _mm512_castsi512_pd(a); }
LATTICE_INLINE i64x8 i64x8_set1(int64_t x) { return _mm512_set1_epi64(x); }
LATTICE_INLINE i64x8 i64x8_add(i64x8 a, i64x8 b) { return _mm512_add_epi64(a, b); }
LATTICE_INLINE i64x8 i64x8_sub(i64x8 a, i64x8 b) { return _mm512_sub_epi64(a, b); }
LATTICE_INLINE i64x8 i64x8_and(i64x8 a, i64x8 b) { return _mm512_and_si512(a, b); }
LATTICE_INLINE i64x8 i64x8_or(i64x8 a, i64x8 b) { return _mm512_or_si512(a, b); }
#define i64x8_shift_left(a, bits) _mm512_slli_epi64(a, bits)
#define i64x8_shift_right(a, bits) _mm512_srli_epi64(a, bits)
/* The sixteen floats of `v`, as two times eight doubles. */
LATTICE_INLINE f64x8 f64x8_from_low(f32x16 v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
LATTICE_INLINE f64x8 f64x8_from_high(f32x16 v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
LATTICE_INLINE double f64x8_fold_add(f64x8 v)
{
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
LATTICE_INLINE double f64x8_fold_max(f64x8 v)
{
    const __m256d four = _mm256_max_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    const __m128d two = _mm_max_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_max_sd(two, _mm_unpackhi_pd(two, two)));
}

#elif defined(LATTICE_ISA_AVX2)
typedef struct {
    __m256d low, high;
} f64x8;
typedef struct {
    __m256i low, high;
} i64x8;
typedef f64x8 m8;

#define LATTICE_HALVES(type, of_low, of_high) ((type){of_low, of_high})
#define LATTICE_BINARY(type, name, instruction)                                                                        \
    LATTICE_INLINE type name(type a, type b)                                                                           \
    {                                                                                                                  \
        return LATTICE_HALVES(type, instruction(a.low, b.low), instruction(a.high, b.high));                           \
    }
LATTICE_BINARY(f64x8, f64x8_add, _mm256_add_pd)
LATTICE_BINARY(f64x8, f64x8_sub, _mm256_sub_pd)
LATTICE_BINARY(f64x8, f64x8_mul, _mm256_mul_pd)
LATTICE_BINARY(f64x8, f64x8_div, _mm256_div_pd)
LATTICE_BINARY(f64x8, f64x8_max, _mm256_max_pd)
LATTICE_BINARY(f64x8, f64x8_min, _mm256_min_pd)
LATTICE_BINARY(i64x8, i64x8_add, _mm256_add_epi64)
LATTICE_BINARY(i64x8, i64x8_sub, _mm256_sub_epi64)
LATTICE_BINARY(i64x8, i64x8_and, _mm256_and_si256)
LATTICE_BINARY(i64x8, i64x8_or, _mm256_or_si256)
#undef LATTICE_BINARY
LATTICE_INLINE f64x8 f64x8_load(const double *p)
{
    return LATTICE_HALVES(f64x8, _mm256_loadu_pd(p), _mm256_loadu_pd(p + 4));
}
LATTICE_INLINE void f64x8_store(double *p, f64x8 v)
{
    _mm256_storeu_pd(p, v.low);
    _mm256_storeu_pd(p + 4, v.high);
}
LATTICE_INLINE f64x8 f64x8_set1(double x) { return LATTICE_HALVES(f64x8, _mm256_set1_pd(x), _mm256_set1_pd(x)); }
LATTICE_INLINE f64x8 f64x8_fma(f64x8 a, f64x8 b, f64x8 c)
{
    return LATTICE_HALVES(f64x8, _mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high));
}
LATTICE_INLINE f64x8 f64x8_sqrt(f64x8 a)
{
    return LATTICE_HALVES(f64x8, _mm256_sqrt_pd(a.low), _mm256_sqrt_pd(a.high));
}
LATTICE_INLINE m8 f64x8_less(f64x8 a, f64x8 b)
{
    return LATTICE_HALVES(m8, _mm256_cmp_pd(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_pd(a.high, b.high, _CMP_LT_OQ));
}
LATTICE_INLINE m8 f64x8_equal(f64x8 a, f64x8 b)
{
    return LATTICE_HALVES(m8, _mm256_cmp_pd(a.low, b.low, _CMP_EQ_OQ), _mm256_cmp_pd(a.high, b.high, _CMP_EQ_OQ));
}
LATTICE_INLINE f64x8 f64x8_select(m8 mask, f64x8 yes, f64x8 no)
{
    return LATTICE_HALVES(f64x8, _mm256_blendv_pd(no.low, yes.low, mask.low),
                          _mm256_blendv_pd(no.high, yes.high, mask.high));
}
LATTICE_INLINE i64x8 f64x8_bits(f64x8 a)
{
    return LATTICE_HALVES(i64x8, _mm256_castpd_si256(a.low), _mm256_castpd_si256(a.high));
}
LATTICE_INLINE f64x8 f64x8_from_bits(i64x8 a)
{
    return LATTICE_HALVES(f64x8, _mm256_castsi256_pd(a.low), _mm256_castsi256_pd(a.high));
}
LATTICE_INLINE i64x8 i64x8_set1(int64_t x)
{
    return LATTICE_HALVES(i64x8, _mm256_set1_epi64x(x), _mm256_set1_epi64x(x));
}
#define i64x8_shift_left(a, bits)                                                                                      \
    LATTICE_HALVES(i64x8, _mm256_slli_epi64((a).low, bits), _mm256_slli_epi64((a).high, bits))
#define i64x8_shift_right(a, bits)                                                                                     \
    LATTICE_HALVES(i64x8, _mm256_srli_epi64((a).low, bits), _mm256_srli_epi64((a).high, bits))
/* The sixteen floats of `v`, as two times eight doubles. */
LATTICE_INLINE f64x8 lattice_widen(__m256 v)
{
    return LATTICE_HALVES(f64x8, _mm256_cvtps_pd(_mm256_castps256_ps128(v)),
                          _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
}
LATTICE_INLINE f64x8 f64x8_from_low(f32x16 v) { return lattice_widen(v.low); }
LATTICE_INLINE f64x8 f64x8_from_high(f32x16 v) { return lattice_widen(v.high); }
LATTICE_INLINE double f64x8_fold_add(f64x8 v)
{
    const __m256d four = _mm256_add_pd(v.low, v.high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
LATTICE_INLINE double f64x8_fold_max(f64x8 v)
{
    const __m256d four = _mm256_max_pd(v.low, v.high);
    const __m128d two = _mm_max_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_max_sd(two, _mm_unpackhi_pd(two, two)));
}

#else /* NEON and the baseline: four pairs in the compiler's own vectors, which become q or SSE registers */
typedef double lattice_f64x2 __attribute__((vector_size(16)));
typedef int64_t lattice_i64x2 __attribute__((vector_size(16)));
typedef uint64_t lattice_u64x2 __attribute__((vector_size(16)));
typedef struct {
    lattice_f64x2 q[4];
} f64x8;
typedef struct {
    lattice_i64x2 q[4];
} i64x8;
typedef i64x8 m8;

#define LATTICE_PAIRS(type, expression)                                                                                \
    do {                                                                                                               \
        type result_;                                                                                                  \
        for (int i = 0; i < 4; i++)                                                                                    \
            result_.q[i] = (expression);                                                                               \
        return result_;                                                                                                \
    } while (0)

LATTICE_INLINE f64x8 f64x8_load(const double *p)
{
    f64x8 v;
    memcpy(&v, p, sizeof v);
    return v;
}
LATTICE_INLINE void f64x8_store(double *p, f64x8 v) { memcpy(p, &v, sizeof v); }
LATTICE_INLINE f64x8 f64x8_set1(double x) { LATTICE_PAIRS(f64x8, ((lattice_f64x2){x, x})); }
LATTICE_INLINE f64x8 f64x8_add(f64x8 a, f64x8 b) { LATTICE_PAIRS(f64x8, a.q[i] + b.q[i]); }
LATTICE_INLINE f64x8 f64x8_sub(f64x8 a, f64x8 b) { LATTICE_PAIRS(f64x8, a.q[i] - b.q[i]); }
LATTICE_INLINE f64x8 f64x8_mul(f64x8 a, f64x8 b) { LATTICE_PAIRS(f64x8, a.q[i] * b.q[i]); }
LATTICE_INLINE f64x8 f64x8_div(f64x8 a, f64x8 b) { LATTICE_PAIRS(f64x8, a.q[i] / b.q[i]); }
#if defined(LATTICE_ISA_NEON)
LATTICE_INLINE f64x8 f64x8_fma(f64x8 a, f64x8 b, f64x8 c)
{
    LATTICE_PAIRS(f64x8,
                  (lattice_f64x2)vfmaq_f64((float64x2_t)c.q[i], (float64x2_t)a.q[i], (float64x2_t)b.q[i]));
}
#else
LATTICE_INLINE f64x8 f64x8_fma(f64x8 a, f64x8 b, f64x8 c) { LATTICE_PAIRS(f64x8, a.q[i] * b.q[i] + c.q[i]); }
#endif
LATTICE_INLINE lattice_f64x2 lattice_choose_f64(lattice_i64x2 mask, lattice_f64x2 yes, lattice_f64x2 no)
{
    return (lattice_f64x2)((mask & (lattice_i64x2)yes) | (~mask & (lattice_i64x2)no));
}
LATTICE_INLINE f64x8 f64x8_max(f64x8 a, f64x8 b)
{
    LATTICE_PAIRS(f64x8, lattice_choose_f64((lattice_i64x2)(a.q[i] > b.q[i]), a.q[i], b.q[i]));
}
LATTICE_INLINE f64x8 f64x8_min(f64x8 a, f64x8 b)
{
    LATTICE_PAIRS(f64x8, lattice_choose_f64((lattice_i64x2)(a.q[i] < b.q[i]), a.q[i], b.q[i]));
}
LATTICE_INLINE f64x8 f64x8_sqrt(f64x8 a)
{
    LATTICE_PAIRS(f64x8, ((lattice_f64x2){__builtin_sqrt(a.q[i][0]), __builtin_sqrt(a.q[i][1])}));
}
LATTICE_INLINE m8 f64x8_less(f64x8 a, f64x8 b) { LATTICE_PAIRS(m8, (lattice_i64x2)(a.q[i] < b.q[i])); }
LATTICE_INLINE m8 f64x8_equal(f64x8 a, f64x8 b) { LATTICE_PAIRS(m8, (lattice_i64x2)(a.q[i] == b.q[i])); }
LATTICE_INLINE f64x8 f64x8_select(m8 mask, f64x8 yes, f64x8 no)
{
    LATTICE_PAIRS(f64x8, lattice_choose_f64(mask.q[i], yes.q[i], no.q[i]));
}
LATTICE_INLINE i64x8 f64x8_bits(f64x8 a) { LATTICE_PAIRS(i64x8, (lattice_i64x2)a.q[i]); }
LATTICE_INLINE f64x8 f64x8_from_bits(i64x8 a) { LATTICE_PAIRS(f64x8, (lattice_f64x2)a.q[i]); }
LATTICE_INLINE i64x8 i64x8_set1(int64_t x) { LATTICE_PAIRS(i64x8, ((lattice_i64x2){x, x})); }
LATTICE_INLINE i64x8 i64x8_add(i64x8 a, i64x8 b)
{
    LATTICE_PAIRS(i64x8, (lattice_i64x2)((lattice_u64x2)a.q[i] + (lattice_u64x2)b.q[i]));
}
LATTICE_INLINE i64x8 i64x8_sub(i64x8 a, i64x8 b)
{
    LATTICE_PAIRS(i64x8, (lattice_i64x2)((lattice_u64x2)a.q[i] - (lattice_u64x2)b.q[i]));
}
LATTICE_INLINE i64x8 i64x8_and(i64x8 a, i64x8 b) { LATTICE_PAIRS(i64x8, a.q[i] & b.q[i]); }
LATTICE_INLINE i64x8 i64x8_or(i64x8 a, i64x8 b) { LATTICE_PAIRS(i64x8, a.q[i] | b.q[i]); }
LATTICE_INLINE i64x8 i64x8_shift_left(i64x8 a, int bits)
{
    LATTICE_PAIRS(i64x8, (lattice_i64x2)((lattice_u64x2)a.q[i] << bits));
}
LATTICE_INLINE i64x8 i64x8_shift_right(i64x8 a, int bits)
{
    LATTICE_PAIRS(i64x8, (lattice_i64x2)((lattice_u64x2)a.q[i] >> bits));
}
/* The sixteen floats of `v`, as two times eight doubles. */
LATTICE_INLINE f64x8 lattice_widen(const float *lanes)
{
    double wide[8];
    for (int i = 0; i < 8; i++)
        wide[i] = lanes[i];
    return f64x8_load(wide);
}
LATTICE_INLINE f64x8 f64x8_from_low(f32x16 v)
{
    float lanes[16];
    f32x16_store(lanes, v);
    return lattice_widen(lanes);
}
LATTICE_INLINE f64x8 f64x8_from_high(f32x16 v)
{
    float lanes[16];
    f32x16_store(lanes, v);
    return lattice_widen(lanes + 8);
}
LATTICE_INLINE double f64x8_fold_add(f64x8 v)
{
    const lattice_f64x2 two = (v.q[0] + v.q[2]) + (v.q[1] + v.q[3]);
    return two[0] + two[1];
}
LATTICE_INLINE double f64x8_fold_max(f64x8 v)
{
    double lanes[8];
    f64x8_store(lanes, v);
    for (int width = 4; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}
#endif

LATTICE_INLINE f64x8 f64x8_zero(void)
{
    return f64x8_set1(0.0);
}

/* Loads of fewer than eight doubles run the same code on a copy padded with zeros. */
LATTICE_INLINE f64x8 f64x8_load_tail(const double *source, size_t count)
{
    double padded[8] = {0};
    memcpy(padded, source, count * sizeof(double));
    return f64x8_load(padded);
}

LATTICE_INLINE void f64x8_store_tail(double *target, f64x8 value, size_t count)
{
    double padded[8];
    f64x8_store(padded, value);
    memcpy(target, padded, count * sizeof(double));
}

/* Adding this leaves the nearest integer in the low bits, in two's complement; right for |x| < 2^51. */
#define LATTICE_ROUNDING_F64 0x1.8p+52

/* 2^n for the integers -1022 <= n <= 1023, given n + LATTICE_ROUNDING_F64. */
LATTICE_INLINE f64x8 lattice_power_of_two_f64(f64x8 shifted_n)
{
    return f64x8_from_bits(i64x8_shift_left(i64x8_add(f64x8_bits(shifted_n), i64x8_set1(1023)), 52));
}

/* exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln(2)/2; exp(r) = 1 + (r + r^2 q(r)). Within 2 ulp; the scale
 * is applied in two halves, so that large x overflows to infinity and small x rounds to a subnormal or zero. */
LATTICE_INLINE f64x8 f64x8_exp(f64x8 x)
{
    const f64x8 rounding = f64x8_set1(LATTICE_ROUNDING_F64);
    /* the bound stands first: max and min return their second argument when it is NaN */
    const f64x8 bounded = f64x8_min(f64x8_set1(710.0), f64x8_max(f64x8_set1(-746.0), x));
    const f64x8 n = f64x8_sub(f64x8_fma(bounded, f64x8_set1(0x1.71547652b82fep+0), rounding), rounding);
    f64x8 r = f64x8_fma(n, f64x8_set1(-0x1.62e42fefa2000p-1), bounded);
    r = f64x8_fma(n, f64x8_set1(-0x1.9ef35793c7673p-41), r);
    f64x8 q = f64x8_set1(0x1.1eb59be50a20dp-29);
    q = f64x8_fma(q, r, f64x8_set1(0x1.af7122b7c6063p-26));
    q = f64x8_fma(q, r, f64x8_set1(0x1.27e55b3643be8p-22));
    q = f64x8_fma(q, r, f64x8_set1(0x1.71dded2707e1cp-19));
    q = f64x8_fma(q, r, f64x8_set1(0x1.a01a01692495bp-16));
    q = f64x8_fma(q, r, f64x8_set1(0x1.a01a01b4ac427p-13));
    q = f64x8_fma(q, r, f64x8_set1(0x1.6c16c16c22a14p-10));
    q = f64x8_fma(q, r, f64x8_set1(0x1.111111110e959p-7));
    q = f64x8_fma(q, r, f64x8_set1(0x1.555555555553ap-5));
    q = f64x8_fma(q, r, f64x8_set1(0x1.555555555555cp-3));
    q = f64x8_fma(q, r, f64x8_set1(0.5));
    const f64x8 p = f64x8_add(f64x8_set1(1.0), f64x8_fma(f64x8_mul(r, r), q, r));
    const f64x8 half = f64x8_sub(f64x8_fma(n, f64x8_set1(0.5), rounding), rounding);
    const f64x8 rest = f64x8_sub(n, half);
    return f64x8_mul(f64x8_mul(p, lattice_power_of_two_f64(f64x8_add(half, rounding))),
                     lattice_power_of_two_f64(f64x8_add(rest, rounding)));
}

/* log(x) = n ln 2 + log(1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); with s = f / (2 + f) and z = s^2,
 * log(1 + f) = f - (f^2/2 - s (f^2/2 + z p(z))). Within 2 ulp; log(0) is -infinity, of a negative number NaN. */
LATTICE_INLINE f64x8 f64x8_log(f64x8 x)
{
    const m8 subnormal = f64x8_less(x, f64x8_set1(0x1p-1022));
    const f64x8 scaled = f64x8_select(subnormal, f64x8_mul(x, f64x8_set1(0x1p+54)), x);
    /* subtracting the bits of sqrt(1/2) (and adding those of 1) makes the exponent field count from there */
    const i64x8 bits = f64x8_bits(scaled);
    const i64x8 shifted = i64x8_add(i64x8_sub(bits, i64x8_set1(0x3fe6a09e667f3bcd)), i64x8_set1(0x3ff0000000000000));
    const i64x8 field = i64x8_shift_right(shifted, 52); /* exponent + 1023 */
    const i64x8 exponent_bits = i64x8_shift_left(i64x8_sub(field, i64x8_set1(1023)), 52);
    const f64x8 mantissa = f64x8_from_bits(i64x8_sub(bits, exponent_bits));
    /* a small integer below the bits of 2^52 is that integer + 2^52 */
    const f64x8 biased = f64x8_from_bits(i64x8_or(field, i64x8_set1(0x4330000000000000)));
    const f64x8 n = f64x8_sub(f64x8_sub(biased, f64x8_set1(0x1p+52 + 1023.0)),
                              f64x8_select(subnormal, f64x8_set1(54.0), f64x8_zero()));
    const f64x8 f = f64x8_sub(mantissa, f64x8_set1(1.0));
    const f64x8 s = f64x8_div(f, f64x8_add(f64x8_set1(2.0), f));
    const f64x8 z = f64x8_mul(s, s);
    f64x8 p = f64x8_set1(0x1.2f1db2c574a16p-3);
    p = f64x8_fma(p, z, f64x8_set1(0x1.399f4f767d634p-3));
    p = f64x8_fma(p, z, f64x8_set1(0x1.7466572ea15f4p-3));
    p = f64x8_fma(p, z, f64x8_set1(0x1.c71c51900ef42p-3));
    p = f64x8_fma(p, z, f64x8_set1(0x1.249249428d962p-2));
    p = f64x8_fma(p, z, f64x8_set1(0x1.999999997f1b0p-2));
    p = f64x8_fma(p, z, f64x8_set1(0x1.5555555555595p-1));
    const f64x8 half_square = f64x8_mul(f64x8_mul(f, f), f64x8_set1(0.5));
    const f64x8 product = f64x8_mul(s, f64x8_fma(z, p, half_square));
    const f64x8 low = f64x8_fma(n, f64x8_set1(0x1.9ef35793c7673p-41), product);
    const f64x8 small = f64x8_sub(f, f64x8_sub(half_square, low));
    const f64x8 finite = f64x8_fma(n, f64x8_set1(0x1.62e42fefa2000p-1), small);

    const f64x8 infinity = f64x8_set1(__builtin_inf());
    f64x8 result = f64x8_select(f64x8_equal(x, infinity), infinity, finite);
    result = f64x8_select(f64x8_equal(x, f64x8_zero()), f64x8_sub(f64x8_zero(), infinity), result);
    result = f64x8_select(f64x8_less(x, f64x8_zero()), f64x8_set1(__builtin_nan("")), result);
    return f64x8_select(f64x8_equal(x, x), result, x);
}

#endif
