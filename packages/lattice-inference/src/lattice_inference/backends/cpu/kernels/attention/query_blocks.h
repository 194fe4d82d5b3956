/* The blocks of query rows that attention over packed rows is cut into. */
#ifndef LATTICE_QUERY_BLOCKS_H
#define LATTICE_QUERY_BLOCKS_H

#include "step.h"

/* Query rows [first, first + rows) of the sequence with the rows [begin, end). */
typedef struct {
    int64_t begin, end, first, rows;
} query_block;

/* The sequence that holds query block `block`: the last one that begins at or before it. */
static inline int64_t sequence_of_block(const lattice_step *step, int64_t block)
{
    int64_t low = 0, high = step->sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (step->cu_query_blocks[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static inline query_block query_block_of(const lattice_step *step, int64_t block)
{
    const int64_t sequence = sequence_of_block(step, block);
    const int64_t begin = step->cu_seqlens[sequence], end = step->cu_seqlens[sequence + 1];
    const int64_t most = step->sizes->query_block_rows, first = begin + (block - step->cu_query_blocks[sequence]) * most;
    return (query_block){begin, end, first, end - first < most ? end - first : most};
}

#endif
