/* exp, erf, tanh and log over f32x16: one algorithm each, in fused multiply-adds, within 2 ulp of the true value.
 *
 * Both branches of a piecewise function are computed and one is selected, so the instruction stream and the bits do not
 * depend on the data. The coefficients come from tools/native/fit_polynomials.py. NaN in gives NaN out; infinities give the
 * limits; results too small for a normal number are rounded to a subnormal or zero.
 */
#ifndef LATTICE_VECTOR_MATH_H
#define LATTICE_VECTOR_MATH_H

#include "simd.h"

/* 2^n for integers -126 <= n <= 127, from the exponent bits. */
LATTICE_INLINE f32x16 lattice_power_of_two(i32x16 n)
{
    return f32x16_from_bits(i32x16_shift_left(i32x16_add(n, i32x16_set1(127)), 23));
}

/* exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln(2)/2; exp(r) = 1 + (r + r^2 q(r)). Returns exp(r) and n. */
LATTICE_INLINE f32x16 lattice_exp_parts(f32x16 x, i32x16 *exponent)
{
    const f32x16 n = f32x16_round(f32x16_mul(x, f32x16_set1(0x1.715476p+0f)));
    f32x16 r = f32x16_fma(n, f32x16_set1(-0x1.63p-1f), x);
    r = f32x16_fma(n, f32x16_set1(0x1.bd0106p-13f), r);
    f32x16 q = f32x16_set1(0x1.687d62p-10f);
    q = f32x16_fma(q, r, f32x16_set1(0x1.1241c2p-7f));
    q = f32x16_fma(q, r, f32x16_set1(0x1.555b7cp-5f));
    q = f32x16_fma(q, r, f32x16_set1(0x1.555486p-3f));
    q = f32x16_fma(q, r, f32x16_set1(0x1.fffff8p-2f));
    *exponent = i32x16_from_f32x16(n);
    return f32x16_add(f32x16_set1(1.0f), f32x16_fma(f32x16_mul(r, r), q, r));
}

/* The scale is applied in two halves so that n = 128 overflows to infinity and n < -126 rounds once to a subnormal. */
LATTICE_INLINE f32x16 f32x16_exp(f32x16 x)
{
    /* the bound stands first: max and min return their second argument when it is NaN */
    const f32x16 bounded = f32x16_min(f32x16_set1(89.0f), f32x16_max(f32x16_set1(-105.0f), x));
    i32x16 exponent;
    const f32x16 p = lattice_exp_parts(bounded, &exponent);
    const i32x16 half = i32x16_shift_right(exponent, 1);
    return f32x16_mul(f32x16_mul(p, lattice_power_of_two(half)), lattice_power_of_two(i32x16_sub(exponent, half)));
}

/* exp(x) where |x| <= 87 is known: the same bits with one scaling. */
LATTICE_INLINE f32x16 lattice_exp_within_87(f32x16 x)
{
    i32x16 exponent;
    const f32x16 p = lattice_exp_parts(x, &exponent);
    return f32x16_mul(p, lattice_power_of_two(exponent));
}

/* erf(x) = x + x p(x^2) for |x| < 0.9375, else sign(x) (1 - exp(-(t + t q(t)))) with t = min(|x|, 4). */
LATTICE_INLINE f32x16 f32x16_erf(f32x16 x)
{
    const f32x16 magnitude = f32x16_abs(x);
    const f32x16 s = f32x16_mul(x, x);
    f32x16 p = f32x16_set1(-0x1.34ec38p-11f);
    p = f32x16_fma(p, s, f32x16_set1(0x1.460390p-8f));
    p = f32x16_fma(p, s, f32x16_set1(-0x1.b659a4p-6f));
    p = f32x16_fma(p, s, f32x16_set1(0x1.ce1768p-4f));
    p = f32x16_fma(p, s, f32x16_set1(-0x1.8126d8p-2f));
    p = f32x16_fma(p, s, f32x16_set1(0x1.06eba6p-3f));
    const f32x16 near_zero = f32x16_fma(p, x, x);

    const f32x16 t = f32x16_min(f32x16_set1(4.0f), magnitude);
    f32x16 q = f32x16_set1(0x1.7f97fep-17f);
    q = f32x16_fma(q, t, f32x16_set1(-0x1.542d66p-12f));
    q = f32x16_fma(q, t, f32x16_set1(0x1.de12b6p-9f));
    q = f32x16_fma(q, t, f32x16_set1(-0x1.856eecp-6f));
    q = f32x16_fma(q, t, f32x16_set1(0x1.b329f0p-4f));
    q = f32x16_fma(q, t, f32x16_set1(0x1.453284p-1f));
    q = f32x16_fma(q, t, f32x16_set1(0x1.07789cp-3f));
    const f32x16 tail = f32x16_sub(f32x16_set1(1.0f), lattice_exp_within_87(f32x16_neg(f32x16_fma(q, t, t))));
    return f32x16_copysign(f32x16_select(f32x16_less(magnitude, f32x16_set1(0.9375f)), near_zero, tail), x);
}

/* tanh(x) = x + x^3 p(x^2) for |x| < 0.5625, else sign(x) (1 - 2 / (exp(2 t) + 1)) with t = min(|x|, 10). */
LATTICE_INLINE f32x16 f32x16_tanh(f32x16 x)
{
    const f32x16 magnitude = f32x16_abs(x);
    const f32x16 s = f32x16_mul(x, x);
    f32x16 p = f32x16_set1(-0x1.82a7d8p-8f);
    p = f32x16_fma(p, s, f32x16_set1(0x1.54ca20p-6f));
    p = f32x16_fma(p, s, f32x16_set1(-0x1.b89b86p-5f));
    p = f32x16_fma(p, s, f32x16_set1(0x1.1109c2p-3f));
    p = f32x16_fma(p, s, f32x16_set1(-0x1.55553ep-2f));
    const f32x16 near_zero = f32x16_fma(f32x16_mul(p, s), x, x);

    const f32x16 t = f32x16_min(f32x16_set1(10.0f), magnitude);
    const f32x16 e = lattice_exp_within_87(f32x16_add(t, t));
    const f32x16 tail =
        f32x16_sub(f32x16_set1(1.0f), f32x16_div(f32x16_set1(2.0f), f32x16_add(e, f32x16_set1(1.0f))));
    return f32x16_copysign(f32x16_select(f32x16_less(magnitude, f32x16_set1(0.5625f)), near_zero, tail), x);
}

/* log(x) = n ln 2 + log(1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); log(1 + f) = f - f^2/2 + f^3 p(f).
 * log(0) is -infinity, the logarithm of a negative number NaN. */
LATTICE_INLINE f32x16 f32x16_log(f32x16 x)
{
    const f32x16 smallest_normal = f32x16_set1(0x1p-126f);
    const m16 subnormal = f32x16_less(x, smallest_normal);
    const f32x16 scaled = f32x16_select(subnormal, f32x16_mul(x, f32x16_set1(0x1p+24f)), x);
    /* subtracting the bits of sqrt(1/2) makes the exponent field count from there */
    const i32x16 bits = f32x16_bits(scaled);
    const i32x16 shifted = i32x16_sub(bits, i32x16_set1(0x3f3504f3));
    const i32x16 exponent = i32x16_shift_right(shifted, 23);
    const f32x16 mantissa = f32x16_from_bits(i32x16_sub(bits, i32x16_shift_left(exponent, 23)));
    const f32x16 n = f32x16_sub(f32x16_from_i32x16(exponent),
                                f32x16_select(subnormal, f32x16_set1(24.0f), f32x16_set1(0.0f)));
    const f32x16 f = f32x16_sub(mantissa, f32x16_set1(1.0f));
    f32x16 p = f32x16_set1(0x1.11c874p-4f);
    p = f32x16_fma(p, f, f32x16_set1(-0x1.dd6510p-4f));
    p = f32x16_fma(p, f, f32x16_set1(0x1.e7a54ep-4f));
    p = f32x16_fma(p, f, f32x16_set1(-0x1.fc4da0p-4f));
    p = f32x16_fma(p, f, f32x16_set1(0x1.232cfap-3f));
    p = f32x16_fma(p, f, f32x16_set1(-0x1.555ae4p-3f));
    p = f32x16_fma(p, f, f32x16_set1(0x1.99a546p-3f));
    p = f32x16_fma(p, f, f32x16_set1(-0x1.00000ap-2f));
    p = f32x16_fma(p, f, f32x16_set1(0x1.555546p-2f));
    const f32x16 square = f32x16_mul(f, f);
    /* n ln 2 in two parts: the high part has nine bits, so n * high is exact */
    f32x16 small = f32x16_mul(f32x16_mul(square, f), p);
    small = f32x16_fma(n, f32x16_set1(-0x1.bd0106p-13f), small);
    small = f32x16_fma(square, f32x16_set1(-0.5f), small);
    const f32x16 finite = f32x16_fma(n, f32x16_set1(0x1.63p-1f), f32x16_add(f, small));

    const f32x16 infinity = f32x16_set1(__builtin_inff());
    f32x16 result = f32x16_select(f32x16_equal(x, infinity), infinity, finite);
    result = f32x16_select(f32x16_equal(x, f32x16_zero()), f32x16_neg(infinity), result);
    /* a NaN is not less than anything, so it is caught by its own inequality: x - x is NaN for it and 0 otherwise */
    result = f32x16_select(f32x16_less(x, f32x16_zero()), f32x16_set1(__builtin_nanf("")), result);
    return f32x16_select(f32x16_equal(x, x), result, x);
}

#endif
