/* The first tokens in the order of a key, until their weights reach a target; of equal keys those with lower ids.
 *
 * Keys are the bits of non-negative doubles, which are ordered as the doubles are. The key at which the target is reached is
 * found in passes: each sums the weights of 256 groups of keys and goes on with the keys of one group. The groups of a first
 * pass over many keys are equal parts of their range; later ones are the values of the highest digit in which keys differ.
 */
#ifndef LATTICE_SAMPLING_SELECTION_H
#define LATTICE_SAMPLING_SELECTION_H

#include <stdint.h>
#include <string.h>

#include "lattice/simd.h"

#define LATTICE_DIGIT_BITS 8
#define LATTICE_GROUPS (1 << LATTICE_DIGIT_BITS)
#define LATTICE_MANY_KEYS 512

typedef struct {
    uint64_t key;  /* smaller ones are kept */
    int64_t equal; /* how many of the keys that equal it are kept */
} lattice_limit;

LATTICE_INLINE uint64_t key_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & ~(UINT64_C(1) << 63);
}

LATTICE_INLINE double value_of(uint64_t key)
{
    double value;
    memcpy(&value, &key, sizeof value);
    return value;
}

/* The group of a key: a digit of it, or without a shift a part of the range of the doubles. */
LATTICE_INLINE int group_of(uint64_t key, int shift, double factor)
{
    return shift < 0 ? (int)(value_of(key) * factor) : (int)(key >> shift & (LATTICE_GROUPS - 1));
}

/* Adds the weights of groups to `reached` as long as it stays below the target, and keeps the keys of the next group. */
static int64_t keep_group(uint64_t *keys, uint64_t *weights, int64_t count, uint64_t target, uint64_t *reached, int shift,
                          double factor)
{
    uint64_t sums[LATTICE_GROUPS];
    memset(sums, 0, sizeof sums);
    int last = 0; /* the last group that has keys */
    for (int64_t i = 0; i < count; i++) {
        const int group = group_of(keys[i], shift, factor);
        sums[group] += weights == NULL ? 1 : weights[i];
        last = group > last ? group : last;
    }
    int group = 0;
    while (group < last && *reached + sums[group] < target)
        *reached += sums[group++];
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t key = keys[i];
        keys[kept] = key;
        if (weights != NULL)
            weights[kept] = weights[i];
        kept += group_of(key, shift, factor) == group;
    }
    return kept;
}

/* The limit of the shortest row of `count` >= 1 keys that reaches `target` >= 1. Without weights each key counts 1. `keys` and
 * `weights` are overwritten. A target above the sum of all keeps all. */
static lattice_limit select_shortest(uint64_t *keys, uint64_t *weights, int64_t count, uint64_t target)
{
    uint64_t reached = 0;
    if (count > LATTICE_MANY_KEYS) {
        uint64_t greatest = 0;
        for (int64_t i = 0; i < count; i++)
            greatest = keys[i] > greatest ? keys[i] : greatest;
        const double factor = (LATTICE_GROUPS - 1) / value_of(greatest);
        if (factor > 0 && factor < 1e300) /* neither infinity nor zeros only */
            count = keep_group(keys, weights, count, target, &reached, -1, factor);
    }
    for (;;) {
        uint64_t differing = 0;
        for (int64_t i = 1; i < count; i++)
            differing |= keys[i] ^ keys[0];
        if (differing == 0)
            break;
        const int top = 64 - __builtin_clzll(differing);
        const int shift = top > LATTICE_DIGIT_BITS ? top - LATTICE_DIGIT_BITS : 0;
        count = keep_group(keys, weights, count, target, &reached, shift, 0);
    }
    const uint64_t key = keys[0];
    int64_t equal = 0;
    do {
        reached += weights == NULL ? 1 : weights[equal];
        equal++;
    } while (equal < count && reached < target);
    return (lattice_limit){key, equal};
}

#endif
