/* 2^t for arguments known to be bounded: the exponential of inner loops, for float32 and float64.
 *
 * 2^t = 2^n (1 + r p(r)) with n = round(t), r = t - n (exact), |r| <= 1/2. Adding a large constant leaves n in the low bits,
 * which move into the exponent field with one shift and one integer add. t is raised to the least normal exponent first: what
 * would be subnormal or zero comes out as the least normal number, about 1e-38 or 2e-308. t must be below 127.5 (1023.5): the
 * caller sees to it. A NaN stays a NaN. Within 2 ulp.
 */
#ifndef LATTICE_EXP2_H
#define LATTICE_EXP2_H

#include "simd_f64.h"

LATTICE_INLINE f32x16 f32x16_exp2_bounded(f32x16 t)
{
    const f32x16 rounding = f32x16_set1(0x1.8p+23f);
    t = f32x16_max(f32x16_set1(-126.0f), t);
    const f32x16 shifted = f32x16_add(t, rounding);
    const f32x16 r = f32x16_sub(t, f32x16_sub(shifted, rounding));
    f32x16 p = f32x16_set1(0x1.5a3d4ap-10f);
    p = f32x16_fma(p, r, f32x16_set1(0x1.3cecf0p-7f));
    p = f32x16_fma(p, r, f32x16_set1(0x1.c6bb7ap-5f));
    p = f32x16_fma(p, r, f32x16_set1(0x1.ebf9b4p-3f));
    p = f32x16_fma(p, r, f32x16_set1(0x1.62e424p-1f));
    p = f32x16_fma(p, r, f32x16_set1(1.0f));
    return f32x16_from_bits(i32x16_add(f32x16_bits(p), i32x16_shift_left(f32x16_bits(shifted), 23)));
}

LATTICE_INLINE f64x8 f64x8_exp2_bounded(f64x8 t)
{
    const f64x8 rounding = f64x8_set1(LATTICE_ROUNDING_F64);
    t = f64x8_max(f64x8_set1(-1022.0), t);
    const f64x8 shifted = f64x8_add(t, rounding);
    const f64x8 r = f64x8_sub(t, f64x8_sub(shifted, rounding));
    f64x8 p = f64x8_set1(0x1.e93d1a71620e4p-32);
    p = f64x8_fma(p, r, f64x8_set1(0x1.e61c77e9b3d79p-28));
    p = f64x8_fma(p, r, f64x8_set1(0x1.b525466519baep-24));
    p = f64x8_fma(p, r, f64x8_set1(0x1.62bfc6ec81944p-20));
    p = f64x8_fma(p, r, f64x8_set1(0x1.ffcbfc55e5e99p-17));
    p = f64x8_fma(p, r, f64x8_set1(0x1.4309130f22cc5p-13));
    p = f64x8_fma(p, r, f64x8_set1(0x1.5d87fe78a1c43p-10));
    p = f64x8_fma(p, r, f64x8_set1(0x1.3b2ab6fb9ff86p-7));
    p = f64x8_fma(p, r, f64x8_set1(0x1.c6b08d704a11fp-5));
    p = f64x8_fma(p, r, f64x8_set1(0x1.ebfbdff82c5a5p-3));
    p = f64x8_fma(p, r, f64x8_set1(0x1.62e42fefa39efp-1));
    p = f64x8_fma(p, r, f64x8_set1(1.0));
    return f64x8_from_bits(i64x8_add(f64x8_bits(p), i64x8_shift_left(f64x8_bits(shifted), 52)));
}

#endif
