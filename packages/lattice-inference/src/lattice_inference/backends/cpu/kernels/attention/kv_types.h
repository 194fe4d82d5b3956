/* Keys and values in memory: float32, bfloat16, float16, or int8 with a scale beside each vector. Widening loads are exact;
 * rounding is to nearest, ties to even.
 */
#ifndef LATTICE_KV_TYPES_H
#define LATTICE_KV_TYPES_H

#include "lattice/half.h"
#include "step.h"

/* Bytes of an element. */
LATTICE_INLINE int64_t kv_element_bytes(int type)
{
    return lattice_kv_bytes(type);
}

/* Where the keys of a head lie in a page, [dim][token], its values, [token][width], and the scales of both, [token]. */
LATTICE_INLINE char *kv_keys(const lattice_kv_layer *kv, int64_t page, int64_t head, int64_t page_tokens)
{
    return kv->keys + page * kv->page_stride + head * kv->head_dim * page_tokens * kv_element_bytes(kv->type);
}

LATTICE_INLINE char *kv_values(const lattice_kv_layer *kv, int64_t page, int64_t head, int64_t page_tokens)
{
    return kv->values + page * kv->page_stride + head * kv->width * page_tokens * kv_element_bytes(kv->type);
}

LATTICE_INLINE float *kv_key_scales(const lattice_kv_layer *kv, int64_t page, int64_t head, int64_t page_tokens)
{
    return (float *)(kv->key_scales + page * kv->page_stride) + head * page_tokens;
}

LATTICE_INLINE float *kv_value_scales(const lattice_kv_layer *kv, int64_t page, int64_t head, int64_t page_tokens)
{
    return (float *)(kv->value_scales + page * kv->page_stride) + head * page_tokens;
}

#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512)
LATTICE_INLINE vf vf_load_int8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
#elif defined(LATTICE_ISA_AVX2)
LATTICE_INLINE vf vf_load_int8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
#else
LATTICE_INLINE vf vf_load_int8(const int8_t *p)
{
    float values[VF_LANES];
    for (int i = 0; i < VF_LANES; i++)
        values[i] = (float)p[i];
    return vf_load(values);
}
#endif

LATTICE_INLINE uint16_t bfloat16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays one */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Beyond 65504 it is infinity. */
LATTICE_INLINE uint16_t float16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits >= 0x47800000) /* 2^16 and more, infinity, NaN */
        return (uint16_t)(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (bits < 0x38800000) { /* below 2^-14: adding 1/2 leaves the ten bits of a subnormal at the end */
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    return (uint16_t)(sign | (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - 0x1c000));
}

/* x[n] -> n elements of two bytes. */
LATTICE_INLINE void round_to_halves(const float *x, int64_t n, int type, uint16_t *y)
{
    int64_t i = 0;
    if (type == LATTICE_KV_BFLOAT16) {
        for (; i < n; i++)
            y[i] = bfloat16_of(x[i]);
        return;
    }
#if defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_AVX512)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(LATTICE_ISA_NEON)
    for (; i + 4 <= n; i += 4)
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
#endif
    for (; i < n; i++)
        y[i] = float16_of(x[i]);
}

/* x[n] -> n integers from -127 to 127, and the scale that turns them back; a vector that is not finite has a scale of NaN. */
LATTICE_INLINE float round_to_int8(const float *x, int64_t n, int8_t *y)
{
    f32x16 most = f32x16_zero(), check = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 value = i + 16 <= n ? f32x16_load(x + i) : f32x16_load_tail(x + i, (size_t)(n - i));
        most = f32x16_max(f32x16_abs(value), most);
        check = f32x16_fma(value, f32x16_zero(), check); /* zero, or NaN */
    }
    const float largest = f32x16_fold_max(most);
    if (largest < 1e-30f) {
        memset(y, 0, (size_t)n);
        return f32x16_fold_add(check);
    }
    const f32x16 factor = f32x16_set1(127.0f / largest);
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t here = n - i < 16 ? n - i : 16;
        float lanes[16];
        f32x16_store(lanes, f32x16_round(f32x16_mul(f32x16_load_tail(x + i, (size_t)here), factor)));
        for (int64_t j = 0; j < here; j++)
            y[i + j] = lanes[j] >= -127.0f && lanes[j] <= 127.0f ? (int8_t)lanes[j] : 0; /* out of range only if not finite */
    }
    return largest / 127.0f + f32x16_fold_add(check);
}

#endif
