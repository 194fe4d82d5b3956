/* The heap of nearest.h. n offers cost about n comparisons and k log k log(n / k) moves. */
#include "nearest.h"

#include <math.h>
#include <string.h>

/* An integer in the order of preference: the bits of a float, the negative ones reversed. */
static int32_t rank_of(float score, int largest)
{
    if (isnan(score))
        return INT32_MIN;
    const float better = (largest ? score : -score) + 0.0f; /* -0 becomes 0: they are equal */
    int32_t bits;
    memcpy(&bits, &better, sizeof bits);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

static int is_worse(const lattice_candidate *x, const lattice_candidate *y)
{
    return x->rank < y->rank || (x->rank == y->rank && x->position > y->position);
}

/* Restores the heap below `node`: every parent is worse than its children. */
static void sift_down(lattice_candidate *heap, int64_t size, int64_t node)
{
    const lattice_candidate moving = heap[node];
    for (;;) {
        int64_t child = 2 * node + 1;
        if (child >= size)
            break;
        if (child + 1 < size && is_worse(&heap[child + 1], &heap[child]))
            child++;
        if (!is_worse(&heap[child], &moving))
            break;
        heap[node] = heap[child];
        node = child;
    }
    heap[node] = moving;
}

static void offer(lattice_nearest *nearest, lattice_candidate candidate)
{
    lattice_candidate *heap = nearest->heap;
    if (nearest->size == nearest->wanted) {
        if (nearest->wanted == 0 || !is_worse(&heap[0], &candidate))
            return;
        heap[0] = candidate;
        sift_down(heap, nearest->size, 0);
        return;
    }
    int64_t node = nearest->size++;
    while (node > 0 && is_worse(&candidate, &heap[(node - 1) / 2])) {
        heap[node] = heap[(node - 1) / 2];
        node = (node - 1) / 2;
    }
    heap[node] = candidate;
}

/* The score from which on a candidate may be better than the worst that is held. An equal one is so only at a lower position:
 * not where all positions are above those offered before. Hamming distances are equal often.
 */
static float threshold(const lattice_nearest *nearest, int is_above)
{
    const float worst = nearest->heap[0].score;
    return is_above ? nextafterf(worst, nearest->largest ? INFINITY : -INFINITY) : worst;
}

void lattice_offer(lattice_nearest *nearest, size_t (*find)(const float *, size_t, size_t, float, int),
                   const float *scores, size_t count, int64_t first)
{
    const int is_above = first > nearest->highest;
    const int64_t last = first + (int64_t)count - 1;
    nearest->highest = last > nearest->highest ? last : nearest->highest;
    for (size_t i = 0; i < count; i++) {
        if (nearest->size == nearest->wanted && nearest->wanted > 0 && !isnan(nearest->heap[0].score)) {
            i = find(scores, i, count, threshold(nearest, is_above), nearest->largest);
            if (i == count)
                return;
        }
        offer(nearest, (lattice_candidate){first + (int64_t)i, rank_of(scores[i], nearest->largest), scores[i]});
    }
}

void lattice_offer_all(lattice_nearest *nearest, const lattice_nearest *other)
{
    for (int64_t i = 0; i < other->size; i++)
        offer(nearest, other->heap[i]);
}

void lattice_take_nearest(lattice_nearest *nearest, int64_t *positions, float *scores)
{
    lattice_candidate *heap = nearest->heap;
    for (int64_t size = nearest->size; size > 0; size--) { /* the worst goes last, again and again */
        positions[size - 1] = heap[0].position;
        scores[size - 1] = heap[0].score;
        heap[0] = heap[size - 1];
        sift_down(heap, size - 1, 0);
    }
    nearest->size = 0;
}
