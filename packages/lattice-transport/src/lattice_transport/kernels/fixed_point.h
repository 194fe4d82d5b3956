/* Exact sums of doubles: integers of a few 64-bit limbs, in units of 2^base.
 *
 *     number = 2^base * sum over k of limb[k] 2^(64 k), in two's complement, least limb first
 *
 * `base` is the lowest bit that any of the doubles has, so sums lose nothing; the number of limbs follows from the range of
 * the exponents and from how many terms a sum may have. All finite doubles at once take 34 limbs. A double is added in the two
 * limbs that it touches and a carry, so a sum costs about as much as its limbs.
 */
#ifndef LATTICE_FIXED_POINT_H
#define LATTICE_FIXED_POINT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LATTICE_MOST_LIMBS 34

typedef struct {
    int base, limbs;
} lattice_fixed_scale;

/* |value| = mantissa 2^exponent; returns whether value is negative. */
static inline int lattice_fixed_split(double value, uint64_t *mantissa, int *exponent)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const int biased = (int)(bits >> 52 & 0x7FF);
    *mantissa = (bits & 0xFFFFFFFFFFFFFull) | (biased != 0 ? 1ull << 52 : 0);
    *exponent = biased != 0 ? biased - 1075 : -1074;
    return (int)(bits >> 63);
}

/* The scale in which sums of up to 2^31 of these values are exact. */
static inline lattice_fixed_scale lattice_fixed_scale_of(const double *values, int64_t count)
{
    int lowest = 1024, highest = -1075;
    for (int64_t k = 0; k < count; k++) {
        uint64_t mantissa;
        int exponent;
        lattice_fixed_split(values[k], &mantissa, &exponent);
        if (mantissa == 0)
            continue;
        if (exponent + 53 > highest)
            highest = exponent + 53;
        const int least_bit = exponent + __builtin_ctzll(mantissa);
        if (least_bit < lowest)
            lowest = least_bit;
    }
    lattice_fixed_scale scale = {0, 1};
    if (highest > -1075) {
        scale.base = lowest;
        scale.limbs = (highest - lowest + 33) / 64 + 1;
    }
    return scale;
}

/* sum += value, or sum -= value */
static inline void lattice_fixed_add(uint64_t *sum, lattice_fixed_scale scale, double value, int minus)
{
    uint64_t mantissa;
    int exponent;
    minus ^= lattice_fixed_split(value, &mantissa, &exponent);
    if (mantissa == 0)
        return;
    int shift = exponent - scale.base;
    if (shift < 0) { /* the bits below are zeros */
        mantissa >>= -shift;
        shift = 0;
    }
    const int bit = shift & 63;
    uint64_t parts[2] = {mantissa << bit, bit != 0 ? mantissa >> (64 - bit) : 0}, carry = 0;
    for (int k = shift >> 6, step = 0; k < scale.limbs && (step < 2 || carry != 0); k++, step++) {
        const uint64_t part = step < 2 ? parts[step] : 0, before = sum[k];
        if (minus) {
            sum[k] = before - part - carry;
            carry = before < part || (before == part && carry);
        } else {
            sum[k] = before + part + carry;
            carry = sum[k] < before || (sum[k] == before && carry);
        }
    }
}

/* sum += other, or sum -= other */
static inline void lattice_fixed_combine(uint64_t *sum, lattice_fixed_scale scale, const uint64_t *other, int minus)
{
    uint64_t carry = 0;
    for (int k = 0; k < scale.limbs; k++) {
        const uint64_t part = other[k], before = sum[k];
        if (minus) {
            sum[k] = before - part - carry;
            carry = before < part || (before == part && carry);
        } else {
            sum[k] = before + part + carry;
            carry = sum[k] < before || (sum[k] == before && carry);
        }
    }
}

/* The nearest double. */
static inline double lattice_fixed_round(const uint64_t *number, lattice_fixed_scale scale)
{
    uint64_t size[LATTICE_MOST_LIMBS];
    const int negative = (int)(number[scale.limbs - 1] >> 63);
    uint64_t carry = (uint64_t)negative;
    for (int k = 0; k < scale.limbs; k++) {
        size[k] = (negative ? ~number[k] : number[k]) + carry;
        carry = carry && size[k] == 0;
    }
    int top = scale.limbs - 1;
    while (top >= 0 && size[top] == 0)
        top--;
    if (top < 0)
        return 0.0;
    const int zeros = __builtin_clzll(size[top]);
    uint64_t window = size[top] << zeros, rest = 0;
    if (top > 0) {
        if (zeros != 0)
            window |= size[top - 1] >> (64 - zeros);
        rest = zeros != 0 ? size[top - 1] << zeros : size[top - 1];
        for (int k = 0; k < top - 1; k++)
            rest |= size[k];
    }
    const double value = ldexp((double)(window | (rest != 0)), scale.base + 64 * top - zeros);
    return negative ? -value : value;
}

#endif
