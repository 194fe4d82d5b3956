/* y = softmax over the rows j of its sequence that a row of a packed batch sees of (scale q . k[j]) times v[j].
 *
 * graph/ops.py, op "attention" with the mask "causal", is the definition: that of "paged_attention" over rows. So are the
 * kernels: a task lays the keys and values of a segment out like pages of floats (paged_attention.h), and what follows is the
 * same code. A row of a packed batch therefore has the bits that it has over pages of float32.
 *
 * A task is one key head of a part of a block of query rows; blocks are cut evenly, and the last of a sequence may be empty.
 */
#ifndef LATTICE_CAUSAL_ATTENTION_H
#define LATTICE_CAUSAL_ATTENTION_H

#include "attention/paged_attention.h"
#include "attention/query_blocks.h"

int64_t LATTICE_FN(causal_attention_tasks)(const lattice_op *op, const lattice_step *step)
{
    return step->cu_query_blocks[step->sequences] * lattice_causal_parts(op, step->sizes) * op->paged.kv_heads;
}

void LATTICE_FN(causal_attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const int64_t parts = lattice_causal_parts(op, step->sizes), most = lattice_causal_rows(op, step->sizes);
    const query_block block = query_block_of(step, task / op->paged.kv_heads / parts);
    const int64_t kv_head = task % op->paged.kv_heads, skipped = task / op->paged.kv_heads % parts * most;
    const int64_t group = op->paged.heads / op->paged.kv_heads, dim = op->paged.head_dim, width = lattice_round_up(dim, LATTICE_PANEL);
    const int64_t left = block.rows - skipped, tokens = left < most ? left : most, token = block.first + skipped;
    if (tokens <= 0)
        return;
    float *queries = (float *)(step->scratch + thread * step->scratch_bytes), *scores = queries + most * group * width;
    float *output2 = scores + LATTICE_SCORE_ROWS * LATTICE_KEY_SEGMENT, *results = output2 + LATTICE_SCORE_ROWS * width;
    float *wide = results + most * group * lattice_partial_floats(dim);
    const lattice_kv_layer kv = {
        .type = LATTICE_KV_FLOAT32, .kv_heads = op->paged.kv_heads, .head_dim = (int32_t)dim, .width = (int32_t)width};
    const paged_rows rows = {
        .kv = &kv,
        .page_tokens = LATTICE_WIDE_PAGE,
        .kv_head = kv_head,
        .group = group,
        .position = token - block.begin,
        .window = op->paged.window,
        .scale = op->paged.scale,
        .scores = scores,
        .wide_keys = wide,
        .wide_values = wide + LATTICE_KEY_SEGMENT * dim,
        .packed_keys = lattice_row(step, &op->input[1], block.begin) + kv_head * dim,
        .packed_values = lattice_row(step, &op->input[2], block.begin) + kv_head * dim,
        .packed_key_stride = op->input[1].stride,
        .packed_value_stride = op->input[2].stride,
    };
    int64_t first_segment, end_segment;
    lattice_segments(rows.position, tokens, op->paged.window, &first_segment, &end_segment);
    attend_block(op, step, &rows, token, tokens * group, first_segment, end_segment, queries, output2, results);
}

#endif
