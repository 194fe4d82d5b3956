/* The least that can be done to every byte of some memory: its floats added up, in four streams, for which prefetchers keep more
 * lines on their way than for one. */
#ifndef BENCHMARKS_FOUR_STREAMS_H
#define BENCHMARKS_FOUR_STREAMS_H

#include <stdint.h>

#include "lattice/simd.h"

/* The sum of `count` floats, whole vectors in each stream, read `passes` times. */
static float read_four_streams(const float *x, size_t count, int64_t passes)
{
    const size_t stream = count / 4;
    f32x16 sums[4] = {f32x16_zero(), f32x16_zero(), f32x16_zero(), f32x16_zero()};
    for (int64_t pass = 0; pass < passes; pass++)
        for (size_t at = 0; at < stream; at += 16)
            for (size_t i = 0; i < 4; i++)
                sums[i] = f32x16_add(sums[i], f32x16_load(x + i * stream + at));
    float lanes[16], sum = 0.0f;
    f32x16_store(lanes, f32x16_add(f32x16_add(sums[0], sums[1]), f32x16_add(sums[2], sums[3])));
    for (int i = 0; i < 16; i++) /* every lane counts, or the compiler leaves out its loads */
        sum += lanes[i];
    return sum;
}

#endif
