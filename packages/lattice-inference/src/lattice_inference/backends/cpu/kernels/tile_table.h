/* How work is cut on each instruction set: sizes that were measured, and that change no bit of a result.
 *
 * Kernels read them from the step, which has those of its instruction set. `tools/tune_tiles.py` measures other values on the
 * machine that it runs on, prints this table and writes its column (`--write`). What is not here is given by registers (tiles
 * of R rows by P panels), by layouts, or by the order of additions (segments of 512 keys), and is no choice.
 *
 *   step_tokens              tokens that go through the whole model at once: what one step's activations take of the caches
 *   row_task_rows            rows in a task of ops that work row by row: enough to be worth handing to another thread
 *   query_block_rows         query rows of a task of attention, which lays out the keys and values of its head for them
 *   score_rows               of them whose scores lie in L1 together
 *   linear_block_bytes       of rows of floats that a task of a linear keeps in L2
 *   linear_few_rows          up to here reading the weights once is what counts
 *   linear_packing_panels    from here on copying the rows of a task costs less than it brings (AVX-512)
 *   linear_tasks             tasks a thread, which even out the ends
 *   linear_few_rows_tasks    the same with few rows, where longer runs of panels stream better
 *   int8_block_bytes         of rows of integers that a task keeps in L2
 *   int8_amx_rows            rows of a task by AMX: in L1, and what they become in L2
 *   int8_amx_least_rows      fewer leave most of a tile register empty: vectors are faster
 *   int8_tasks               tasks a thread
 *   bfloat16_block_bytes     of rows of bfloat16 that a task keeps in L2
 *   bfloat16_tasks           tasks a thread
 */
#ifndef LATTICE_TILE_TABLE_H
#define LATTICE_TILE_TABLE_H

#include <stdint.h>

/* clang-format off */
#define LATTICE_TILE_TABLE(SIZE) \
    /*   name,                     least,    most, baseline,   avx2, avx512,   neon */ \
    SIZE(step_tokens,                 64,   16384,     1024,   1024,   1024,   1024) \
    SIZE(row_task_rows,                1,    4096,       16,     16,     16,     16) \
    SIZE(query_block_rows,            16,    1024,      128,    128,    128,    128) \
    SIZE(score_rows,                   1,      64,       24,     24,     24,     24) \
    SIZE(linear_block_bytes,       16384, 8388608,   262144,  65536,  65536, 262144) \
    SIZE(linear_few_rows,              8,     256,       32,     32,     16,     32) \
    SIZE(linear_packing_panels,        1,    1024,       24,     24,     24,     24) \
    SIZE(linear_tasks,                 1,      64,        4,      4,      4,      4) \
    SIZE(linear_few_rows_tasks,        1,      64,        2,      2,      2,      2) \
    SIZE(int8_block_bytes,         16384, 8388608,   196608,  65536, 196608, 196608) \
    SIZE(int8_amx_rows,               16,    1024,       64,     64,     64,     64) \
    SIZE(int8_amx_least_rows,          1,      64,        8,      8,      8,      8) \
    SIZE(int8_tasks,                   1,      64,        4,      4,      4,      4) \
    SIZE(bfloat16_block_bytes,     16384, 8388608,   524288, 524288, 524288, 524288) \
    SIZE(bfloat16_tasks,               1,      64,        4,      4,      4,      4)
/* clang-format on */

#define LATTICE_TILE_FIELD(name, least, most, baseline, avx2, avx512, neon) int64_t name;
typedef struct {
    LATTICE_TILE_TABLE(LATTICE_TILE_FIELD)
} lattice_tile_sizes;
#undef LATTICE_TILE_FIELD

#define LATTICE_TILE_COUNT ((int)(sizeof(lattice_tile_sizes) / sizeof(int64_t)))

/* What the table says of one size; `isas` in the order of lattice/cpu.h. */
typedef struct {
    const char *name;
    int64_t least, most, isas[4];
} lattice_tile_row;

#define LATTICE_MOST_SCORE_ROWS 64 /* that the table allows */

#endif
