/* The functions of every kernel of the level that is compiled for, declared by the list of kernels, and what its files offer to
 * one another. */
#ifndef LATTICE_KERNEL_FUNCTIONS_H
#define LATTICE_KERNEL_FUNCTIONS_H

#include "lattice/simd.h"
#include "linear/linear_output.h"
#include "step.h"

#define LATTICE_DECLARE(id, name, record, tasks, run)                                                                  \
    int64_t LATTICE_FN(tasks)(const lattice_op *op, const lattice_step *step);                                         \
    void LATTICE_FN(run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks_of_op, int thread);
LATTICE_KERNELS(LATTICE_DECLARE)
#undef LATTICE_DECLARE

/* Of int8_linear.c: x [n] as a row of integer_rows.h, within the range that is fixed, or its own where that is NULL; `dot`: in
 * the form that the level's dot product instruction takes. */
void LATTICE_FN(lattice_quantize_row)(const float *x, int64_t n, const float *fixed, int dot, float *row);

/* Of block_linear.c: row `id` of a table that lies in block panels, n floats, to y; plus `residual`, which may be y, if not
 * NULL. */
void LATTICE_FN(lattice_block_table_row)(const lattice_op *op, int64_t id, const float *residual, float *y);

/* Of block_linear.c: elements [first, first + count) of the k of a panel of int8 or of blocks as float32 [count][16]; they begin
 * and end with records of blocks, or with lines of four of int8. */
void LATTICE_FN(lattice_widen_panel)(int weight_type, const void *weights, int64_t k, int64_t panel, int64_t first, int64_t count,
                                     float *y);

/* Of bfloat16_linear.c: all of a linear over rows of bfloat16, in one task. */
void LATTICE_FN(lattice_multiply_pairs)(const lattice_op *op, const lattice_step *step);

/* Of kernels.c: rows of floats by panels of float32 weights, [k][16] each, `panel_stride` floats apart. */
void LATTICE_FN(lattice_multiply_panels)(const float *x, int64_t x_stride, int64_t rows, const float *weights, int64_t panel_stride,
                                         int64_t panels, int64_t k, const lattice_output *output);

#endif
