/* Packing of ggml's blocks into the panels of block_format.h. */
#ifndef LATTICE_BLOCK_PACK_H
#define LATTICE_BLOCK_PACK_H

#include "linear/block_format.h"

/* `columns` (at most 16) rows of k weights, as the file has them one after the other, to one panel; the panel's other columns
 * are zeros. Returns 0 where a scale is NaN or infinite. */
int lattice_pack_block_panel(int format, const uint8_t *blocks, int64_t columns, int64_t k, uint8_t *panel);

#endif
