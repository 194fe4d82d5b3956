/* f32x16 as four q registers: `q[0]` holds lanes 0 to 3, and so on. */
#include <arm_neon.h>

typedef struct {
    float32x4_t q[4];
} f32x16;
typedef struct {
    int32x4_t q[4];
} i32x16;
typedef struct {
    uint32x4_t q[4];
} m16;

typedef float32x4_t vf;
#define VF_LANES 4
#define vf_load(p) vld1q_f32(p)
#define vf_store(p, v) vst1q_f32(p, v)
#define vf_set1(x) vdupq_n_f32(x)
#define vf_fma(a, b, c) vfmaq_f32(c, a, b)
#define vf_add(a, b) vaddq_f32(a, b)
#define vf_zero() vdupq_n_f32(0.0f)
#define vf_sub(a, b) vsubq_f32(a, b)
#define vf_abs(a) vabsq_f32(a)

LATTICE_INLINE void vf_accumulate(vf *sum, vf a, vf b) { *sum = vf_fma(a, b, *sum); }

/* Applies `expression` (in which `i` is the quarter) to the four registers of a result of `type`. */
#define LATTICE_QUARTERS(type, expression)                                                                             \
    do {                                                                                                               \
        type result_;                                                                                                  \
        for (int i = 0; i < 4; i++)                                                                                    \
            result_.q[i] = (expression);                                                                               \
        return result_;                                                                                                \
    } while (0)

LATTICE_INLINE f32x16 f32x16_load(const float *p) { LATTICE_QUARTERS(f32x16, vld1q_f32(p + 4 * i)); }
LATTICE_INLINE void f32x16_store(float *p, f32x16 v)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, v.q[i]);
}
LATTICE_INLINE f32x16 f32x16_set1(float x) { LATTICE_QUARTERS(f32x16, vdupq_n_f32(x)); }
LATTICE_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b) { LATTICE_QUARTERS(f32x16, vaddq_f32(a.q[i], b.q[i])); }
LATTICE_INLINE f32x16 f32x16_sub(f32x16 a, f32x16 b) { LATTICE_QUARTERS(f32x16, vsubq_f32(a.q[i], b.q[i])); }
LATTICE_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b) { LATTICE_QUARTERS(f32x16, vmulq_f32(a.q[i], b.q[i])); }
LATTICE_INLINE f32x16 f32x16_div(f32x16 a, f32x16 b) { LATTICE_QUARTERS(f32x16, vdivq_f32(a.q[i], b.q[i])); }
LATTICE_INLINE f32x16 f32x16_fma(f32x16 a, f32x16 b, f32x16 c)
{
    LATTICE_QUARTERS(f32x16, vfmaq_f32(c.q[i], a.q[i], b.q[i]));
}
/* vmaxq_f32 would return NaN where x86 returns b: the vocabulary's meaning is the comparison. */
LATTICE_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b)
{
    LATTICE_QUARTERS(f32x16, vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
LATTICE_INLINE f32x16 f32x16_min(f32x16 a, f32x16 b)
{
    LATTICE_QUARTERS(f32x16, vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
LATTICE_INLINE f32x16 f32x16_sqrt(f32x16 a) { LATTICE_QUARTERS(f32x16, vsqrtq_f32(a.q[i])); }
LATTICE_INLINE f32x16 f32x16_abs(f32x16 a) { LATTICE_QUARTERS(f32x16, vabsq_f32(a.q[i])); }
LATTICE_INLINE f32x16 f32x16_neg(f32x16 a) { LATTICE_QUARTERS(f32x16, vnegq_f32(a.q[i])); }
LATTICE_INLINE f32x16 f32x16_copysign(f32x16 magnitude, f32x16 sign)
{
    LATTICE_QUARTERS(f32x16, vbslq_f32(vdupq_n_u32(0x80000000u), sign.q[i], magnitude.q[i]));
}
LATTICE_INLINE f32x16 f32x16_round(f32x16 a) { LATTICE_QUARTERS(f32x16, vrndnq_f32(a.q[i])); }

LATTICE_INLINE m16 f32x16_less(f32x16 a, f32x16 b) { LATTICE_QUARTERS(m16, vcltq_f32(a.q[i], b.q[i])); }
LATTICE_INLINE m16 f32x16_equal(f32x16 a, f32x16 b) { LATTICE_QUARTERS(m16, vceqq_f32(a.q[i], b.q[i])); }
LATTICE_INLINE f32x16 f32x16_select(m16 mask, f32x16 yes, f32x16 no)
{
    LATTICE_QUARTERS(f32x16, vbslq_f32(mask.q[i], yes.q[i], no.q[i]));
}

LATTICE_INLINE i32x16 i32x16_set1(int32_t x) { LATTICE_QUARTERS(i32x16, vdupq_n_s32(x)); }
LATTICE_INLINE i32x16 i32x16_add(i32x16 a, i32x16 b) { LATTICE_QUARTERS(i32x16, vaddq_s32(a.q[i], b.q[i])); }
LATTICE_INLINE i32x16 i32x16_sub(i32x16 a, i32x16 b) { LATTICE_QUARTERS(i32x16, vsubq_s32(a.q[i], b.q[i])); }
LATTICE_INLINE i32x16 i32x16_and(i32x16 a, i32x16 b) { LATTICE_QUARTERS(i32x16, vandq_s32(a.q[i], b.q[i])); }
LATTICE_INLINE i32x16 lattice_shift(i32x16 a, int bits)
{
    LATTICE_QUARTERS(i32x16, vshlq_s32(a.q[i], vdupq_n_s32(bits)));
}
#define i32x16_shift_left(a, bits) lattice_shift(a, bits)
#define i32x16_shift_right(a, bits) lattice_shift(a, -(bits))
LATTICE_INLINE i32x16 i32x16_from_f32x16(f32x16 a) { LATTICE_QUARTERS(i32x16, vcvtq_s32_f32(a.q[i])); }
LATTICE_INLINE f32x16 f32x16_from_i32x16(i32x16 a) { LATTICE_QUARTERS(f32x16, vcvtq_f32_s32(a.q[i])); }
LATTICE_INLINE f32x16 f32x16_from_bits(i32x16 a) { LATTICE_QUARTERS(f32x16, vreinterpretq_f32_s32(a.q[i])); }
LATTICE_INLINE i32x16 f32x16_bits(f32x16 a) { LATTICE_QUARTERS(i32x16, vreinterpretq_s32_f32(a.q[i])); }

LATTICE_INLINE float f32x16_fold_add(f32x16 v)
{
    const float32x4_t four = vaddq_f32(vaddq_f32(v.q[0], v.q[2]), vaddq_f32(v.q[1], v.q[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

LATTICE_INLINE float f32x16_fold_max(f32x16 v)
{
    float lanes[16];
    f32x16_store(lanes, v);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}
