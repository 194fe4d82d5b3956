/* Walks the ops of a step: the one door from Python into the kernels. */
#ifndef LATTICE_RUN_STEP_H
#define LATTICE_RUN_STEP_H

#include "lattice/pool.h"
#include "step.h"

/* The kernels of an instruction set; NULL when this build has none for it. */
const lattice_kernel_table *lattice_kernels(int isa);

/* The table of tile_table.h: how work is cut on an instruction set, and one row of the table. */
void lattice_tile_sizes_of(int isa, lattice_tile_sizes *sizes);
const lattice_tile_row *lattice_tile_row_of(int index);

/* Runs `count` ops for `step`, on at most step->threads threads of `pool`. Large steps queue for the pool; small ones that
 * find it taken run alone. */
void lattice_step_run(const lattice_op *ops, int64_t count, const lattice_step *step, const lattice_kernel_table *table,
                      lattice_pool *pool);

/* W [n][k] of elements of 2 or 4 bytes -> panels [n / 16][k][16]; missing columns of the last panel are zeros. */
void lattice_pack_panels(const void *weight, int64_t n, int64_t k, int64_t element_bytes, void *panels);

/* Bfloat16 W [n][k] -> panels as bfloat16_linear.h has them; what is missing of columns and of depth is zeros. */
void lattice_pack_bfloat16_panels(const uint16_t *weight, int64_t n, int64_t k, uint16_t *panels);

/* Int8 W [n][k] with a scale for each of n -> panels as int8_linear.h has them; missing columns are zeros. */
void lattice_pack_int8_panels(const int8_t *weight, const float *scales, int64_t n, int64_t k, char *panels);

#endif
