/* How recurrent layers lie in a slot: what a sequence keeps at some position, with the block that the position lies in.
 *
 * Of a short convolution: the rows before the block that its first rows still need, and the rows of the block,
 * [taps - 1 + LATTICE_DELTA_BLOCK][columns].
 *
 * Of the gated delta rule, for each value head one after the other: S at the block's beginning, [value_dim / 16][key_dim][16];
 * the keys of the block, [LATTICE_DELTA_BLOCK / 16][key_dim][16]; its rows r, [value_dim / 16][LATTICE_DELTA_BLOCK][16]; and its
 * alphas. All are panels of products, so a step reads them in place.
 */
#ifndef LATTICE_SLOT_LAYOUT_H
#define LATTICE_SLOT_LAYOUT_H

#include <stdint.h>

#define LATTICE_DELTA_BLOCK 32 /* graph/recurrent_ops.py: DELTA_BLOCK */
#define LATTICE_DELTA_PANEL 16

/* Floats of a short convolution in a slot. */
static inline int64_t lattice_short_conv_floats(int64_t columns, int64_t taps)
{
    return ((taps - 1 + LATTICE_DELTA_BLOCK) * columns + 15) / 16 * 16;
}

/* Where the parts of a value head begin, in floats, and all of them. */
typedef struct {
    int64_t panels; /* of value_dim */
    int64_t keys, rows, alphas, floats;
} lattice_delta_layout;

static inline lattice_delta_layout lattice_delta_layout_of(int64_t key_dim, int64_t value_dim)
{
    lattice_delta_layout layout;
    layout.panels = (value_dim + LATTICE_DELTA_PANEL - 1) / LATTICE_DELTA_PANEL;
    layout.keys = layout.panels * key_dim * LATTICE_DELTA_PANEL;
    layout.rows = layout.keys + LATTICE_DELTA_BLOCK * key_dim;
    layout.alphas = layout.rows + layout.panels * LATTICE_DELTA_BLOCK * LATTICE_DELTA_PANEL;
    layout.floats = layout.alphas + LATTICE_DELTA_BLOCK;
    return layout;
}

/* Where the parts of a thread's scratch begin, in floats, and all of them. */
typedef struct {
    int64_t dots, products, factors, keys, rows, state, alphas, betas, floats;
} lattice_delta_scratch;

static inline lattice_delta_scratch lattice_delta_scratch_of(int64_t key_dim, int64_t value_dim)
{
    const int64_t block = LATTICE_DELTA_BLOCK, width = lattice_delta_layout_of(key_dim, value_dim).panels * LATTICE_DELTA_PANEL;
    lattice_delta_scratch parts; /* first the block's keys and queries, [2][block][key_dim] */
    parts.dots = 2 * block * key_dim;
    parts.products = parts.dots + 2 * block * block;
    parts.factors = parts.products + 2 * block * width;
    parts.keys = parts.factors + block * key_dim;
    parts.rows = parts.keys + block * key_dim;
    parts.state = parts.rows + block * width;
    parts.alphas = parts.state + key_dim * width;
    parts.betas = parts.alphas + block;
    parts.floats = parts.betas + block;
    return parts;
}

#endif
