/* The best scores seen so far, without a sort of all: a heap with the worst of them on top.
 *
 * Similarities are better when larger, distances when smaller; equal scores go by the lower position; NaN is worse than
 * everything, infinities included. The order is total, so what is kept does not depend on the order of offers.
 */
#ifndef LATTICE_NEAREST_H
#define LATTICE_NEAREST_H

#include "stored_rows.h"

typedef struct {
    int64_t position;
    int32_t rank; /* larger is better; see rank_of */
    float score;
} lattice_candidate;

typedef struct {
    lattice_candidate *heap;
    int64_t size, wanted;
    int largest;
    int64_t highest; /* position offered, -1 before the first */
} lattice_nearest;

/* Offers scores[i] for position first + i. Almost all are passed over by `find` (find_candidate of the kernels). */
void lattice_offer(lattice_nearest *nearest, size_t (*find)(const float *, size_t, size_t, float, int),
                   const float *scores, size_t count, int64_t first);

/* Offers what another heap holds. */
void lattice_offer_all(lattice_nearest *nearest, const lattice_nearest *other);

/* Writes what is held, best first; the heap is used up. */
void lattice_take_nearest(lattice_nearest *nearest, int64_t *positions, float *scores);

#endif
