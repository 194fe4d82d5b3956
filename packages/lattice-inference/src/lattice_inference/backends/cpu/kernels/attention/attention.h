/* y[i] = softmax over keys j of (scale q[i] . k[j]) times v[j], within each sequence of a packed batch.
 *
 * A task is one head of one block of query rows. Keys and values of the head are packed into the thread's scratch in the
 * GEMM's panel form, a segment of at most 512 keys at a time, so both products are the one-chain GEMM of gemm.h. A few rows
 * at a time go through all three steps, so that their scores stay in L1:
 *
 *     K^T panels [keys/16][dim][16]   scores [rows][keys] = Q K^T      p = exp(s - max), padded keys give 0
 *     V   panels [dim/16][keys][16]   output [rows][dim]  = p V        divided by the sum of p at the end
 *
 * Numeric design: graph/ops.py, op "attention", is the definition, down to the merging of segments left to right. The
 * maximum is exact, the sum of p goes through sixteen lanes and one fold, and each output is one chain over the keys. A
 * query's value depends on its own sequence only, and not on the block it falls in.
 *
 * With AVX-512 a task is run by attention_columns.h instead.
 */
#ifndef LATTICE_ATTENTION_H
#define LATTICE_ATTENTION_H

#if defined(LATTICE_ISA_AVX512)
#include "attention/attention_columns.h"
#endif
#include "rows/bfloat16_rows.h"
#include "linear/gemm.h"
#include "lattice/transpose.h"
#include "lattice/vector_math.h"
#include "rows/normalize.h"
#include "rows/lane_panels.h"
#include "attention/query_blocks.h"
#include "attention/softmax.h"

int64_t LATTICE_FN(attention_tasks)(const lattice_op *op, const lattice_step *step)
{
    return step->cu_query_blocks[step->sequences] * op->attention.heads;
}

/* v[key][dim] -> panels [dim / 16][key][16]; columns beyond head_dim are zeros. */
LATTICE_INLINE void pack_values(const float *values, int64_t stride, int64_t count, int64_t head_dim, float *panels)
{
    for (int64_t d = 0; d < head_dim; d += LATTICE_PANEL) {
        float *panel = panels + d * count;
        for (int64_t key = 0; key < count; key++)
            f32x16_store(panel + key * LATTICE_PANEL, load_part(values + key * stride, d, head_dim));
    }
}

/* y = o / l of `rows` rows from `first` on: o lies `width` floats apart, l and the maxima side by side. */
static void store_attended(const lattice_op *op, const lattice_step *step, int64_t first, int64_t head, int64_t rows,
                           const float *output, int64_t width, const float *sum, const float *maximum)
{
    const int64_t column = head * op->attention.head_dim;
    if (op->attention.sums.slot >= 0)
        for (int64_t r = 0; r < rows; r++) {
            float *kept = lattice_row(step, &op->attention.sums, first + r) + head;
            kept[0] = maximum[r];
            kept[op->attention.heads] = sum[r];
        }
    for (int64_t r = 0; r < rows; r++) {
        const f32x16 divisor = f32x16_set1(sum[r]);
        for (int64_t d = 0; d < op->attention.head_dim; d += 16) {
            const f32x16 value = f32x16_div(f32x16_load(output + r * width + d), divisor);
            if (op->rounded.slot >= 0) /* whose head_dim is a multiple of sixteen */
                store_bfloat16(bfloat16_row(step, &op->rounded, first + r) + column + d, value);
            else
                store_part(lattice_row(step, &op->output, first + r) + column, d, op->attention.head_dim, value);
        }
    }
}

#if defined(LATTICE_ISA_AVX512)
void LATTICE_FN(attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const query_block block = query_block_of(step, task / op->attention.heads);
    const int64_t head = task % op->attention.heads, head_dim = op->attention.head_dim;
    const int64_t width = lattice_round_up(head_dim, LATTICE_PANEL);
    const int64_t column = head * head_dim, kv_column = head / (op->attention.heads / op->attention.kv_heads) * head_dim;
    const column_attention of = {
        .queries = lattice_row(step, &op->input[0], block.first) + column,
        .keys = lattice_row(step, &op->input[1], block.begin) + kv_column,
        .values = lattice_row(step, &op->input[2], block.begin) + kv_column,
        .query_stride = op->input[0].stride,
        .key_stride = op->input[1].stride,
        .value_stride = op->input[2].stride,
        .query_count = block.rows,
        .query_rows = lattice_whole_query_rows(step->sizes),
        .key_count = block.end - block.begin,
        .head_dim = head_dim,
        .scale = op->attention.scale,
    };
    float *scratch = (float *)(step->scratch + thread * step->scratch_bytes);
    attend_by_columns(&of, scratch);
    const float *sum = scratch + of.query_rows * width, *maximum = sum + of.query_rows;
    float *rows = scratch + of.query_rows * (width + 2);
    for (int64_t row = 0; row < block.rows; row += LATTICE_PANEL) {
        const int64_t here = block.rows - row < LATTICE_PANEL ? block.rows - row : LATTICE_PANEL;
        turn_back(scratch + row * head_dim, here, head_dim, width, rows);
        store_attended(op, step, block.first + row, head, here, rows, width, sum + row, maximum + row);
    }
}
#else
void LATTICE_FN(attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const query_block block = query_block_of(step, task / op->attention.heads);
    const int64_t head = task % op->attention.heads, begin = block.begin, end = block.end, first = block.first, rows = block.rows;
    const int64_t head_dim = op->attention.head_dim, width = lattice_round_up(head_dim, LATTICE_PANEL);
    const int64_t column = head * head_dim, kv_column = head / (op->attention.heads / op->attention.kv_heads) * head_dim;

    const f32x16 scale = f32x16_set1(op->attention.scale);
    const int64_t score_rows = step->sizes->score_rows, block_rows = step->sizes->query_block_rows;
    const int64_t longest = step->max_seqlen < LATTICE_KEY_SEGMENT ? step->max_seqlen : LATTICE_KEY_SEGMENT;
    const int64_t most_keys = lattice_round_up(longest, LATTICE_PANEL);
    float *key_panels = (float *)(step->scratch + thread * step->scratch_bytes);
    float *value_panels = key_panels + most_keys * head_dim;
    float *scores = value_panels + most_keys * width;
    float *output2 = scores + score_rows * most_keys, *output = output2 + score_rows * width;
    float *maximum = output + block_rows * width, *sum = maximum + block_rows;

    for (int64_t key = begin; key < end; key += LATTICE_KEY_SEGMENT) {
        const int64_t keys = end - key < LATTICE_KEY_SEGMENT ? end - key : LATTICE_KEY_SEGMENT;
        const int64_t padded = lattice_round_up(keys, LATTICE_PANEL);
        const int merging = key > begin;
        pack_rows_in_lanes(lattice_row(step, &op->input[1], key) + kv_column, op->input[1].stride, keys, head_dim, key_panels);
        pack_values(lattice_row(step, &op->input[2], key) + kv_column, op->input[2].stride, keys, head_dim, value_panels);
        const lattice_output to_scores = {.y = scores, .stride = padded, .columns = padded};
        for (int64_t row = 0; row < rows; row += score_rows) {
            const int64_t here = rows - row < score_rows ? rows - row : score_rows;
            float maximum2[LATTICE_MOST_SCORE_ROWS], sum2[LATTICE_MOST_SCORE_ROWS];
            gemm_float32(lattice_row(step, &op->input[0], first + row) + column, op->input[0].stride, here, key_panels,
                         head_dim * LATTICE_PANEL, padded / LATTICE_PANEL, head_dim, &to_scores, 0);
            for (int64_t r = 0; r < here; r++) {
                if (op->rounded.slot < 0)
                    __builtin_prefetch(lattice_row(step, &op->output, first + row + r) + column, 1, 3);
                softmax_part(scores + r * padded, 0, keys, scale, merging ? &maximum2[r] : &maximum[row + r],
                            merging ? &sum2[r] : &sum[row + r]);
            }
            const lattice_output to_output = {
                .y = merging ? output2 : output + row * width, .stride = width, .columns = width};
            gemm_float32(scores, padded, here, value_panels, keys * LATTICE_PANEL, width / LATTICE_PANEL, keys, &to_output,
                         0);
            if (merging)
                for (int64_t r = 0; r < here; r++)
                    merge_segment(output + (row + r) * width, &maximum[row + r], &sum[row + r], output2 + r * width,
                                  maximum2[r], sum2[r], width);
        }
    }
    store_attended(op, step, first, head, rows, output, width, sum, maximum);
}
#endif

#endif
