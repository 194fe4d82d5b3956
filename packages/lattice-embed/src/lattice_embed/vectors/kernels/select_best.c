/* The best k of n scores without sorting all: a heap of the k best so far, with the worst of them on top.
 *
 * Nearly every score of a long list is worse than the top and costs one comparison: n + k log k log(n / k) on the average.
 */
#include <math.h>

#include "vector_kernels.h"

typedef struct {
    float score; /* larger is better here, whatever the caller's order */
    int64_t position;
} candidate;

/* Whether the score x at position i ranks behind the score y at position j. */
static inline int is_worse(float x, int64_t i, float y, int64_t j)
{
    return x < y || (x == y && i > j);
}

/* Restores the heap below `node` in arrays of `size`: every parent is worse than its children. */
static void sift_down(float *values, int64_t *positions, int64_t size, int64_t node)
{
    const candidate moving = {values[node], positions[node]};
    for (;;) {
        int64_t child = 2 * node + 1;
        if (child >= size)
            break;
        if (child + 1 < size && is_worse(values[child + 1], positions[child + 1], values[child], positions[child]))
            child++;
        if (!is_worse(values[child], positions[child], moving.score, moving.position))
            break;
        values[node] = values[child];
        positions[node] = positions[child];
        node = child;
    }
    values[node] = moving.score;
    positions[node] = moving.position;
}

void lattice_select_best(const float *scores, int64_t count, int64_t wanted, int largest, int64_t *positions,
                         float *values)
{
    /* Inside the heap larger is better and NaN is -infinity; the caller's own values are written at the end. */
#define RANKED(i) (isnan(scores[i]) ? -INFINITY : largest ? scores[i] : -scores[i])
    if (wanted <= 0)
        return;
    for (int64_t i = 0; i < wanted; i++) {
        values[i] = RANKED(i);
        positions[i] = i;
    }
    for (int64_t node = wanted / 2; node-- > 0;)
        sift_down(values, positions, wanted, node);
    for (int64_t i = wanted; i < count; i++) {
        const float score = RANKED(i);
        if (score > values[0]) { /* an equal one stands later and loses */
            values[0] = score;
            positions[0] = i;
            sift_down(values, positions, wanted, 0);
        }
    }
    for (int64_t size = wanted - 1; size > 0; size--) { /* the worst goes last, again and again */
        const candidate worst = {values[0], positions[0]};
        values[0] = values[size];
        positions[0] = positions[size];
        sift_down(values, positions, size, 0);
        values[size] = worst.score;
        positions[size] = worst.position;
    }
    for (int64_t i = 0; i < wanted; i++)
        values[i] = scores[positions[i]];
#undef RANKED
}
