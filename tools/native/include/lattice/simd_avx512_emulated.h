/* AVX-512 intrinsics written out in AVX2 by SIMDe: only for the build that tests the AVX-512 kernels elsewhere. */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>

/* What SIMDe lacks of the intrinsics used here, eight lanes at a time. */
static inline simde__m512i lattice_float_to_int(simde__m512 a)
{
    float lanes[16];
    int32_t converted[16];
    simde_mm512_storeu_ps(lanes, a);
    _mm256_storeu_si256((__m256i *)converted, _mm256_cvttps_epi32(_mm256_loadu_ps(lanes)));
    _mm256_storeu_si256((__m256i *)(converted + 8), _mm256_cvttps_epi32(_mm256_loadu_ps(lanes + 8)));
    return simde_mm512_loadu_si512(converted);
}

static inline simde__m512 lattice_int_to_float(simde__m512i a)
{
    int32_t lanes[16];
    float converted[16];
    simde_mm512_storeu_si512(lanes, a);
    _mm256_storeu_ps(converted, _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)lanes)));
    _mm256_storeu_ps(converted + 8, _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(lanes + 8))));
    return simde_mm512_loadu_ps(converted);
}

static inline void lattice_store_some(float *target, uint16_t lanes_kept, simde__m512 a)
{
    float lanes[16];
    simde_mm512_storeu_ps(lanes, a);
    for (int i = 0; i < 16; i++)
        if (lanes_kept >> i & 1)
            target[i] = lanes[i];
}

#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(target, mask, a) lattice_store_some(target, mask, a)

static inline __m256 lattice_upper_half(simde__m512 a)
{
    float lanes[16];
    simde_mm512_storeu_ps(lanes, a);
    return _mm256_loadu_ps(lanes + 8);
}

static inline simde__m512i lattice_shift_right(simde__m512i a, int bits)
{
    int32_t lanes[16];
    simde_mm512_storeu_si512(lanes, a);
    for (int i = 0; i < 16; i++)
        lanes[i] >>= bits;
    return simde_mm512_loadu_si512(lanes);
}

static inline simde__m512d lattice_widen(__m256 a)
{
    double lanes[8];
    _mm256_storeu_pd(lanes, _mm256_cvtps_pd(_mm256_castps256_ps128(a)));
    _mm256_storeu_pd(lanes + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
    return simde_mm512_loadu_pd(lanes);
}

#define _mm512_cvtps_pd lattice_widen
#define _mm512_srai_epi32 lattice_shift_right
#define _mm512_extractf32x8_ps(a, half) lattice_upper_half(a)
#define _mm512_cvttps_epi32 lattice_float_to_int
#define _mm512_cvtepi32_ps lattice_int_to_float
