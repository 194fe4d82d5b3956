/* exp, erf, tanh and log over f32x16: one algorithm each, in fused multiply-adds, within 2 ulp of the true value.
 *
 * Both branches of a piecewise function are computed and one is selected, so the instruction stream and the bits do not
 * depend on the data. The coefficients come from tools/native/fit_polynomials.py. NaN in gives NaN out; infinities give the
 * limits; results too small for a normal number are rounded to a subnormal or zero.
 */
#ifndef LATTICE_VECTOR_MATH_H
#define LATTICE_VECTOR_MATH_H

#include "simd.h"

/* How many vectors go through a function at once in loops that take long in it: more than one where a vector is one register,
 * whose chain of operations would fill the scheduler and wait; several registers take turns already. */
#define LATTICE_SIDE_BY_SIDE (VF_LANES == 16 ? 4 : 1)

/* 2^n for integers -126 <= n <= 127, from the exponent bits. */
LATTICE_INLINE f32x16 lattice_power_of_two(i32x16 n)
{
    return f32x16_from_bits(i32x16_shift_left(i32x16_add(n, i32x16_set1(127)), 23));
}

/* p[j] = ((c[0] x[j] + c[1]) x[j] + ...) + c[degree] for `count` vectors side by side. One vector's chain of multiply-adds waits
 * for itself; a few that take turns fill the wait. `count` and `degree` are known when compiling. */
LATTICE_INLINE void lattice_polynomial_each(int count, const f32x16 *x, const float *c, int degree, f32x16 *p)
{
    for (int j = 0; j < count; j++)
        p[j] = f32x16_set1(c[0]);
    for (int i = 1; i <= degree; i++)
        for (int j = 0; j < count; j++)
            p[j] = f32x16_fma(p[j], x[j], f32x16_set1(c[i]));
}

/* exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln(2)/2; exp(r) = 1 + (r + r^2 q(r)). Gives exp(r) and n. */
LATTICE_INLINE void lattice_exp_parts_each(int count, const f32x16 *x, f32x16 *p, i32x16 *exponent)
{
    static const float c[] = {0x1.687d62p-10f, 0x1.1241c2p-7f, 0x1.555b7cp-5f, 0x1.555486p-3f, 0x1.fffff8p-2f};
    f32x16 n[LATTICE_SIDE_BY_SIDE], r[LATTICE_SIDE_BY_SIDE];
    for (int j = 0; j < count; j++)
        n[j] = f32x16_round(f32x16_mul(x[j], f32x16_set1(0x1.715476p+0f)));
    for (int j = 0; j < count; j++)
        r[j] = f32x16_fma(n[j], f32x16_set1(-0x1.63p-1f), x[j]);
    for (int j = 0; j < count; j++)
        r[j] = f32x16_fma(n[j], f32x16_set1(0x1.bd0106p-13f), r[j]);
    lattice_polynomial_each(count, r, c, 4, p);
    for (int j = 0; j < count; j++)
        p[j] = f32x16_fma(f32x16_mul(r[j], r[j]), p[j], r[j]);
    for (int j = 0; j < count; j++) {
        exponent[j] = i32x16_from_f32x16(n[j]);
        p[j] = f32x16_add(f32x16_set1(1.0f), p[j]);
    }
}

/* exp(x). The scale is applied in two halves so that n = 128 overflows to infinity and n < -126 rounds once to a subnormal. */
LATTICE_INLINE void lattice_exp_each(int count, const f32x16 *x, f32x16 *y)
{
    f32x16 bounded[LATTICE_SIDE_BY_SIDE];
    i32x16 exponent[LATTICE_SIDE_BY_SIDE];
    /* the bound stands first: max and min return their second argument when it is NaN */
    for (int j = 0; j < count; j++)
        bounded[j] = f32x16_min(f32x16_set1(89.0f), f32x16_max(f32x16_set1(-105.0f), x[j]));
    lattice_exp_parts_each(count, bounded, y, exponent);
    for (int j = 0; j < count; j++) {
        const i32x16 half = i32x16_shift_right(exponent[j], 1);
        y[j] = f32x16_mul(f32x16_mul(y[j], lattice_power_of_two(half)), lattice_power_of_two(i32x16_sub(exponent[j], half)));
    }
}

LATTICE_INLINE f32x16 f32x16_exp(f32x16 x)
{
    f32x16 y;
    lattice_exp_each(1, &x, &y);
    return y;
}

/* exp(x) where |x| <= 87 is known: the same bits with one scaling. */
LATTICE_INLINE void lattice_exp_within_87_each(int count, const f32x16 *x, f32x16 *y)
{
    i32x16 exponent[LATTICE_SIDE_BY_SIDE];
    lattice_exp_parts_each(count, x, y, exponent);
    for (int j = 0; j < count; j++)
        y[j] = f32x16_mul(y[j], lattice_power_of_two(exponent[j]));
}

LATTICE_INLINE f32x16 lattice_exp_within_87(f32x16 x)
{
    f32x16 y;
    lattice_exp_within_87_each(1, &x, &y);
    return y;
}

/* erf(x) = x + x p(x^2) for |x| < 0.9375, else sign(x) (1 - exp(-(t + t q(t)))) with t = min(|x|, 4). */
LATTICE_INLINE void lattice_erf_each(int count, const f32x16 *x, f32x16 *y)
{
    static const float near[] = {-0x1.34ec38p-11f, 0x1.460390p-8f,  -0x1.b659a4p-6f,
                                 0x1.ce1768p-4f,   -0x1.8126d8p-2f, 0x1.06eba6p-3f};
    static const float far[] = {0x1.7f97fep-17f, -0x1.542d66p-12f, 0x1.de12b6p-9f, -0x1.856eecp-6f,
                                0x1.b329f0p-4f,  0x1.453284p-1f,   0x1.07789cp-3f};
    f32x16 s[LATTICE_SIDE_BY_SIDE], t[LATTICE_SIDE_BY_SIDE], near_zero[LATTICE_SIDE_BY_SIDE], tail[LATTICE_SIDE_BY_SIDE];
    for (int j = 0; j < count; j++) {
        s[j] = f32x16_mul(x[j], x[j]);
        t[j] = f32x16_min(f32x16_set1(4.0f), f32x16_abs(x[j]));
    }
    lattice_polynomial_each(count, s, near, 5, near_zero);
    for (int j = 0; j < count; j++)
        near_zero[j] = f32x16_fma(near_zero[j], x[j], x[j]);
    lattice_polynomial_each(count, t, far, 6, tail);
    for (int j = 0; j < count; j++)
        tail[j] = f32x16_neg(f32x16_fma(tail[j], t[j], t[j]));
    lattice_exp_within_87_each(count, tail, tail);
    for (int j = 0; j < count; j++) {
        tail[j] = f32x16_sub(f32x16_set1(1.0f), tail[j]);
        const m16 is_near = f32x16_less(f32x16_abs(x[j]), f32x16_set1(0.9375f));
        y[j] = f32x16_copysign(f32x16_select(is_near, near_zero[j], tail[j]), x[j]);
    }
}

LATTICE_INLINE f32x16 f32x16_erf(f32x16 x)
{
    f32x16 y;
    lattice_erf_each(1, &x, &y);
    return y;
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
