/* What bfloat16_linear.c offers to the table of a level, and how bfloat16 weights and rows lie for it. */
#ifndef LATTICE_BFLOAT16_LINEAR_H
#define LATTICE_BFLOAT16_LINEAR_H

#include "step.h"

#define LATTICE_BFLOAT16_DEPTH 32 /* elements that a row is padded to a multiple of: what a tile takes at once */

/* Elements of a row of k with its padding, which is zeros in weights and in rows. */
static inline int64_t lattice_bfloat16_depth(int64_t k)
{
    return lattice_round_up(k, LATTICE_BFLOAT16_DEPTH);
}

/* Bfloat16 weights [n][k] in panels of 16 columns: [k / 2][16][2], a line of 64 bytes being two k of sixteen columns. */
static inline int64_t lattice_bfloat16_panel_bytes(int64_t k)
{
    return lattice_bfloat16_depth(k) * LATTICE_PANEL * (int64_t)sizeof(uint16_t);
}

/* Floats that a row of k elements takes in a slot. An odd number of cache lines: sixteen rows that are read together would
 * otherwise share a few sets of the cache. */
static inline int64_t lattice_bfloat16_row_floats(int64_t k)
{
    return (lattice_bfloat16_depth(k) / 32 | 1) * 16;
}

#endif
