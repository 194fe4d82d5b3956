/* Rows of activations as two rows of block_rows.h each: the second holds what rounding the first left out.
 *
 *     first = x in blocks,  second = (x - scale * q) in blocks                        so x[k] ~ scale * q[k] + scale' * q'[k]
 *
 * A linear over both rows, added up, has the precision of 15 bits a row for one pass over its weights. It is for the linear
 * whose output is the result itself: the logits.
 */
#ifndef LATTICE_BLOCK_PAIRS_H
#define LATTICE_BLOCK_PAIRS_H

#include "rows/block_rows.h"

void LATTICE_FN(quantize_block_pairs_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    float *rest = (float *)(step->scratch + thread * step->scratch_bytes);
    int64_t first, end;
    task_rows(lattice_rows(op, step), task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++) {
        const float *x = lattice_row(step, &op->input[0], row);
        float *pair = lattice_row(step, &op->output, row);
        quantize_block_row(x, op->k, pair);
        const block_row rounded = block_row_at(pair, op->k);
        for (int64_t i = 0; i < op->k; i += 16) {
            const f32x16 q = f32x16_from_i32x16(i32x16_load_int8(rounded.q + i));
            f32x16_store(rest + i, f32x16_sub(f32x16_load(x + i), f32x16_mul(f32x16_set1(rounded.scales[i / LATTICE_BLOCK]), q)));
        }
        quantize_block_row(rest, op->k, pair + lattice_block_row_floats(op->k));
    }
}

#endif
