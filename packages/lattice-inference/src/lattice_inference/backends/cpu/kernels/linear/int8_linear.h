/* What int8_linear.c offers to the table of a level, and the layout of int8 weights. */
#ifndef LATTICE_INT8_LINEAR_H
#define LATTICE_INT8_LINEAR_H

#include "step.h"

/* The most elements of a row: 255 * 127 * depth must stay below 2^31. */
#define LATTICE_INT8_DEPTH 65536

/* Int8 weights [n][k] with a scale an output, in panels of 16: the scales (float), the sums over k of the integers (int32),
 * then the integers as [k / 4][16][4], k padded to a multiple of 16. */
static inline int64_t lattice_int8_panel_bytes(int64_t k)
{
    return 2 * LATTICE_PANEL * 4 + lattice_round_up(k, 16) * LATTICE_PANEL;
}

/* Floats that a quantized row of k elements takes in a slot, on any level: whole lines of cache, so that a row's elements begin
 * with one. */
static inline int64_t lattice_integer_row_floats(int64_t k)
{
    return 16 + lattice_round_up(2 * k, 64) / 4;
}

#endif
