/* Surpluses and weights of tokens, and the logarithm of a sum of weights: exact_weights.py, bit for bit.
 *
 * A surplus is (logit - greatest) * scale, 0 or less; a weight is 2^surplus in units of 2^-bits, a whole number. Products and
 * sums are rounded one by one (no fused multiply-add), so the baseline and NumPy give the same bits as the vector levels.
 */
#ifndef LATTICE_SAMPLING_WEIGHTS_H
#define LATTICE_SAMPLING_WEIGHTS_H

#include "lattice/simd_f64.h"

#define LATTICE_MOST_WEIGHT_BITS 46
#define LATTICE_LEAST_SURPLUS -64.0

/* The sum of a whole vocabulary's weights stays below 2^63. */
LATTICE_INLINE int weight_bits(int64_t vocabulary)
{
    const int length = 64 - __builtin_clzll((unsigned long long)vocabulary);
    return 62 - length < LATTICE_MOST_WEIGHT_BITS ? 62 - length : LATTICE_MOST_WEIGHT_BITS;
}

LATTICE_INLINE f64x8 surplus_of(f64x8 logits, double greatest, double scale)
{
    return f64x8_mul(f64x8_sub(logits, f64x8_set1(greatest)), f64x8_set1(scale));
}

/* `unit` is 2^bits. */
LATTICE_INLINE i64x8 weight_of(f64x8 surplus, double unit)
{
    static const double c[] = {0x1.e93d1a71620e4p-32, 0x1.e61c77e9b3d79p-28, 0x1.b525466519baep-24, 0x1.62bfc6ec81944p-20,
                               0x1.ffcbfc55e5e99p-17, 0x1.4309130f22cc5p-13, 0x1.5d87fe78a1c43p-10, 0x1.3b2ab6fb9ff86p-7,
                               0x1.c6b08d704a11fp-5,  0x1.ebfbdff82c5a5p-3,  0x1.62e42fefa39efp-1,  1.0};
    const f64x8 rounding = f64x8_set1(LATTICE_ROUNDING_F64);
    const f64x8 bounded = f64x8_max(f64x8_set1(LATTICE_LEAST_SURPLUS), surplus);
    const f64x8 shifted = f64x8_add(bounded, rounding);
    const f64x8 r = f64x8_sub(bounded, f64x8_sub(shifted, rounding));
    f64x8 p = f64x8_set1(c[0]);
    for (int i = 1; i < 12; i++)
        p = f64x8_add(f64x8_mul(p, r), f64x8_set1(c[i]));
    const f64x8 power = f64x8_from_bits(i64x8_add(f64x8_bits(p), i64x8_shift_left(f64x8_bits(shifted), 52)));
    /* 2^52 added to a number below 2^52 leaves it, rounded, in the low bits */
    const f64x8 whole = f64x8_add(f64x8_mul(power, f64x8_set1(unit)), f64x8_set1(0x1p+52));
    return i64x8_and(f64x8_bits(whole), i64x8_set1((INT64_C(1) << 52) - 1));
}

LATTICE_INLINE void store_weights(uint64_t *target, i64x8 weights)
{
    double lanes[8];
    f64x8_store(lanes, f64x8_from_bits(weights));
    memcpy(target, lanes, sizeof lanes);
}

LATTICE_INLINE uint64_t sum_of_weights(i64x8 weights)
{
    uint64_t lanes[8], sum = 0;
    store_weights(lanes, weights);
    for (int i = 0; i < 8; i++)
        sum += lanes[i];
    return sum;
}

/* The sum of weights from which on the share `mass` of `total` is reached, at least 1. */
LATTICE_INLINE uint64_t reached_at(uint64_t total, double mass)
{
    const uint64_t reached = (uint64_t)__builtin_ceil(mass * (double)(int64_t)total);
    return reached > total ? total : reached < 1 ? 1 : reached;
}

/* ln(x) for a finite normal x > 0, in plain float64 as natural_log of exact_weights.py. */
LATTICE_INLINE double natural_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1022;
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | (UINT64_C(1022) << 52);
    double mantissa;
    memcpy(&mantissa, &bits, sizeof mantissa);
    if (mantissa < 0.7071067811865476) {
        mantissa = 2 * mantissa;
        exponent -= 1;
    }
    const double f = (mantissa - 1) / (mantissa + 1), square = f * f;
    double series = 0.0;
    for (int term = 12; term > 0; term--)
        series = series * square + 1.0 / (2 * term + 1);
    return exponent * 0.6931471805599453 + (f + f * (series * square)) * 2;
}

#endif
