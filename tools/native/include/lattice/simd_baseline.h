/* f32x16 as four vectors of four floats in the compiler's own vector types: no intrinsics, and no fused multiply-add. */

typedef float lattice_f32x4 __attribute__((vector_size(16)));
typedef int32_t lattice_i32x4 __attribute__((vector_size(16)));

typedef struct {
    lattice_f32x4 q[4];
} f32x16;
typedef struct {
    lattice_i32x4 q[4];
} i32x16;
typedef i32x16 m16;

typedef lattice_f32x4 vf;
#define VF_LANES 4
LATTICE_INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
LATTICE_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
#define vf_set1(x) ((vf){(x), (x), (x), (x)})
#define vf_fma(a, b, c) ((a) * (b) + (c))
#define vf_add(a, b) ((a) + (b))
#define vf_zero() ((vf){0.0f, 0.0f, 0.0f, 0.0f})
#define vf_sub(a, b) ((a) - (b))
#define vf_abs(a) ((vf)((lattice_i32x4)(a) & 0x7fffffff))

LATTICE_INLINE void vf_accumulate(vf *sum, vf a, vf b) { *sum = vf_fma(a, b, *sum); }

/* Applies `expression` (in which `i` is the quarter) to the four vectors of a result of `type`. */
#define LATTICE_QUARTERS(type, expression)                                                                             \
    do {                                                                                                               \
        type result_;                                                                                                  \
        for (int i = 0; i < 4; i++)                                                                                    \
            result_.q[i] = (expression);                                                                               \
        return result_;                                                                                                \
    } while (0)

LATTICE_INLINE lattice_f32x4 lattice_choose(lattice_i32x4 mask, lattice_f32x4 yes, lattice_f32x4 no)
{
    return (lattice_f32x4)((mask & (lattice_i32x4)yes) | (~mask & (lattice_i32x4)no));
}

LATTICE_INLINE f32x16 f32x16_load(const float *p) { LATTICE_QUARTERS(f32x16, vf_load(p + 4 * i)); }
LATTICE_INLINE void f32x16_store(float *p, f32x16 v)
{
    for (int i = 0; i < 4; i++)
        vf_store(p + 4 * i, v.q[i]);
}
LATTICE_INLINE f32x16 f32x16_set1(float x) { LATTICE_QUARTERS(f32x16, vf_set1(x)); }
LATTICE_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b) { LATTICE_QUARTERS(f32x16, a.q[i] + b.q[i]); }
LATTICE_INLINE f32x16 f32x16_sub(f32x16 a, f32x16 b) { LATTICE_QUARTERS(f32x16, a.q[i] - b.q[i]); }
LATTICE_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b) { LATTICE_QUARTERS(f32x16, a.q[i] * b.q[i]); }
LATTICE_INLINE f32x16 f32x16_div(f32x16 a, f32x16 b) { LATTICE_QUARTERS(f32x16, a.q[i] / b.q[i]); }
LATTICE_INLINE f32x16 f32x16_fma(f32x16 a, f32x16 b, f32x16 c) { LATTICE_QUARTERS(f32x16, a.q[i] * b.q[i] + c.q[i]); }
LATTICE_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b)
{
    LATTICE_QUARTERS(f32x16, lattice_choose(a.q[i] > b.q[i], a.q[i], b.q[i]));
}
LATTICE_INLINE f32x16 f32x16_min(f32x16 a, f32x16 b)
{
    LATTICE_QUARTERS(f32x16, lattice_choose(a.q[i] < b.q[i], a.q[i], b.q[i]));
}
LATTICE_INLINE f32x16 f32x16_sqrt(f32x16 a)
{
    float lanes[16];
    f32x16_store(lanes, a);
    for (int i = 0; i < 16; i++)
        lanes[i] = __builtin_sqrtf(lanes[i]);
    return f32x16_load(lanes);
}
LATTICE_INLINE f32x16 f32x16_abs(f32x16 a)
{
    LATTICE_QUARTERS(f32x16, (lattice_f32x4)((lattice_i32x4)a.q[i] & 0x7fffffff));
}
LATTICE_INLINE f32x16 f32x16_neg(f32x16 a) { LATTICE_QUARTERS(f32x16, -a.q[i]); }
LATTICE_INLINE f32x16 f32x16_copysign(f32x16 magnitude, f32x16 sign)
{
    LATTICE_QUARTERS(f32x16, (lattice_f32x4)(((lattice_i32x4)magnitude.q[i] & 0x7fffffff) |
                                             ((lattice_i32x4)sign.q[i] & (int32_t)0x80000000u)));
}
/* Adding 1.5 * 2^23 leaves no fraction bits; right for |a| < 2^22, which is all that the functions over it need. */
LATTICE_INLINE f32x16 f32x16_round(f32x16 a) { LATTICE_QUARTERS(f32x16, (a.q[i] + 12582912.0f) - 12582912.0f); }

LATTICE_INLINE m16 f32x16_less(f32x16 a, f32x16 b) { LATTICE_QUARTERS(m16, a.q[i] < b.q[i]); }
LATTICE_INLINE m16 f32x16_equal(f32x16 a, f32x16 b) { LATTICE_QUARTERS(m16, a.q[i] == b.q[i]); }
LATTICE_INLINE f32x16 f32x16_select(m16 mask, f32x16 yes, f32x16 no)
{
    LATTICE_QUARTERS(f32x16, lattice_choose(mask.q[i], yes.q[i], no.q[i]));
}

LATTICE_INLINE i32x16 i32x16_set1(int32_t x) { LATTICE_QUARTERS(i32x16, ((lattice_i32x4){x, x, x, x})); }
/* Sums wrap around, as those of vector registers do: of signed integers C would not say. */
typedef uint32_t lattice_u32x4 __attribute__((vector_size(16)));
LATTICE_INLINE i32x16 i32x16_add(i32x16 a, i32x16 b)
{
    LATTICE_QUARTERS(i32x16, (lattice_i32x4)((lattice_u32x4)a.q[i] + (lattice_u32x4)b.q[i]));
}
LATTICE_INLINE i32x16 i32x16_sub(i32x16 a, i32x16 b)
{
    LATTICE_QUARTERS(i32x16, (lattice_i32x4)((lattice_u32x4)a.q[i] - (lattice_u32x4)b.q[i]));
}
LATTICE_INLINE i32x16 i32x16_and(i32x16 a, i32x16 b) { LATTICE_QUARTERS(i32x16, a.q[i] & b.q[i]); }
LATTICE_INLINE i32x16 i32x16_shift_left(i32x16 a, int bits)
{
    LATTICE_QUARTERS(i32x16, (lattice_i32x4)((lattice_u32x4)a.q[i] << bits));
}
LATTICE_INLINE i32x16 i32x16_shift_right(i32x16 a, int bits) { LATTICE_QUARTERS(i32x16, a.q[i] >> bits); }
/* Conversion of NaN or of a value beyond int32 is undefined in C: such lanes are set to INT32_MIN as x86 does. */
LATTICE_INLINE i32x16 i32x16_from_f32x16(f32x16 a)
{
    float lanes[16];
    int32_t converted[16];
    f32x16_store(lanes, a);
    for (int i = 0; i < 16; i++)
        converted[i] = lanes[i] >= -2147483648.0f && lanes[i] < 2147483648.0f ? (int32_t)lanes[i] : INT32_MIN;
    i32x16 result;
    memcpy(&result, converted, sizeof result);
    return result;
}
LATTICE_INLINE f32x16 f32x16_from_i32x16(i32x16 a)
{
    int32_t lanes[16];
    float converted[16];
    memcpy(lanes, &a, sizeof lanes);
    for (int i = 0; i < 16; i++)
        converted[i] = (float)lanes[i];
    return f32x16_load(converted);
}
LATTICE_INLINE f32x16 f32x16_from_bits(i32x16 a) { LATTICE_QUARTERS(f32x16, (lattice_f32x4)a.q[i]); }
LATTICE_INLINE i32x16 f32x16_bits(f32x16 a) { LATTICE_QUARTERS(i32x16, (lattice_i32x4)a.q[i]); }

LATTICE_INLINE float f32x16_fold_add(f32x16 v)
{
    const lattice_f32x4 four = (v.q[0] + v.q[2]) + (v.q[1] + v.q[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
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
