/* y[i] = softmax over keys j of (scale q[i] . k[j]) times v[j], within each sequence of a packed batch.
 *
 * A task is one head of one block of query rows. Keys and values of the head are packed into the thread's scratch in the
 * GEMM's panel form, a segment of at most 512 keys at a time, so both products are the one-chain GEMM of gemm.h:
 *
 *     K^T panels [keys/16][dim][16]   scores [rows][keys] = Q K^T      p = exp(s - max), padded keys give 0
 *     V   panels [dim/16][keys][16]   output [rows][dim]  = p V        divided by the sum of p at the end
 *
 * Numeric design: graph/ops.py, op "attention", is the definition, down to the merging of segments left to right. The
 * maximum is exact, the sum of p goes through sixteen lanes and one fold, and each output is one chain over the keys. A
 * query's value depends on its own sequence only, and not on the block it falls in.
 */
#ifndef LATTICE_ATTENTION_H
#define LATTICE_ATTENTION_H

#include "gemm.h"
#include "lattice/vector_math.h"
#include "normalize.h"

static int64_t attention_tasks(const lattice_op *op, const lattice_step *step)
{
    return step->cu_query_blocks[step->sequences] * op->heads;
}

/* k[key][dim] -> panels [key / 16][dim][16]; the last panel is filled with zeros. */
LATTICE_INLINE void pack_keys(const float *keys, int64_t stride, int64_t count, int64_t head_dim, float *panels)
{
    for (int64_t key = 0; key < count; key += LATTICE_PANEL) {
        const int64_t here = count - key < LATTICE_PANEL ? count - key : LATTICE_PANEL;
        float *panel = panels + key * head_dim;
        if (here < LATTICE_PANEL)
            memset(panel, 0, head_dim * LATTICE_PANEL * sizeof(float));
        for (int64_t j = 0; j < here; j++) {
            const float *row = keys + (key + j) * stride;
            for (int64_t d = 0; d < head_dim; d++)
                panel[d * LATTICE_PANEL + j] = row[d];
        }
    }
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

/* s -> exp(x - max(x)) for x = scale s, in place; returns the maximum and the sum. `padded` is `keys` rounded up to 16. */
LATTICE_INLINE void softmax_row(float *s, int64_t keys, int64_t padded, f32x16 scale, float *maximum, float *sum)
{
    for (int64_t j = keys; j < padded; j++)
        s[j] = -__builtin_inff();
    f32x16 most = f32x16_mul(f32x16_load(s), scale);
    for (int64_t j = 16; j < padded; j += 16)
        most = f32x16_max(most, f32x16_mul(f32x16_load(s + j), scale));
    *maximum = f32x16_fold_max(most);
    const f32x16 shift = f32x16_set1(*maximum);
    f32x16 total = f32x16_zero();
    for (int64_t j = 0; j < padded; j += 16) {
        const f32x16 p = f32x16_exp(f32x16_sub(f32x16_mul(f32x16_load(s + j), scale), shift));
        f32x16_store(s + j, p);
        total = f32x16_add(total, p);
    }
    *sum = f32x16_fold_add(total);
}

static float exponential(float x)
{
    float lanes[16];
    f32x16_store(lanes, f32x16_exp(f32x16_set1(x)));
    return lanes[0];
}

/* Folds a later segment's (output, maximum, sum) into those of the segments before it. */
LATTICE_INLINE void merge_segment(float *output, float *maximum, float *sum, const float *output2, float maximum2,
                                  float sum2, int64_t width)
{
    const float most = *maximum > maximum2 ? *maximum : maximum2;
    const float factor = exponential(*maximum - most), factor2 = exponential(maximum2 - most);
    const f32x16 f1 = f32x16_set1(factor), f2 = f32x16_set1(factor2);
    for (int64_t d = 0; d < width; d += 16)
        f32x16_store(output + d, f32x16_fma(f32x16_load(output2 + d), f2, f32x16_mul(f32x16_load(output + d), f1)));
    float lanes[16];
    f32x16_store(lanes, f32x16_fma(f32x16_set1(sum2), f2, f32x16_mul(f32x16_set1(*sum), f1)));
    *sum = lanes[0];
    *maximum = most;
}

/* The sequence that holds query block `block`: the last one that begins at or before it. */
LATTICE_INLINE int64_t sequence_of_block(const lattice_step *step, int64_t block)
{
    int64_t low = 0, high = step->sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (step->cu_query_blocks[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void attention_run(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const int64_t head = task % op->heads, block = task / op->heads;
    const int64_t sequence = sequence_of_block(step, block);
    const int64_t begin = step->cu_seqlens[sequence], end = step->cu_seqlens[sequence + 1];
    const int64_t first = begin + (block - step->cu_query_blocks[sequence]) * LATTICE_QUERY_BLOCK;
    const int64_t rows = end - first < LATTICE_QUERY_BLOCK ? end - first : LATTICE_QUERY_BLOCK;
    const int64_t head_dim = op->head_dim, width = lattice_round_up(head_dim, LATTICE_PANEL);
    const int64_t column = head * head_dim, kv_column = head / (op->heads / op->kv_heads) * head_dim;

    const f32x16 scale = f32x16_set1(op->scale);
    const int64_t longest = step->max_seqlen < LATTICE_KEY_SEGMENT ? step->max_seqlen : LATTICE_KEY_SEGMENT;
    const int64_t most_keys = lattice_round_up(longest, LATTICE_PANEL);
    float *key_panels = (float *)(step->scratch + thread * step->scratch_bytes);
    float *value_panels = key_panels + most_keys * head_dim;
    float *scores = value_panels + most_keys * width;
    float *output = scores + LATTICE_QUERY_BLOCK * most_keys, *output2 = output + LATTICE_QUERY_BLOCK * width;
    float *maximum = output2 + LATTICE_QUERY_BLOCK * width, *sum = maximum + LATTICE_QUERY_BLOCK;

    for (int64_t key = begin; key < end; key += LATTICE_KEY_SEGMENT) {
        const int64_t keys = end - key < LATTICE_KEY_SEGMENT ? end - key : LATTICE_KEY_SEGMENT;
        const int64_t padded = lattice_round_up(keys, LATTICE_PANEL);
        pack_keys(lattice_row(step, &op->input[1], key) + kv_column, op->input[1].stride, keys, head_dim, key_panels);
        pack_values(lattice_row(step, &op->input[2], key) + kv_column, op->input[2].stride, keys, head_dim, value_panels);
        const lattice_output to_scores = {.y = scores, .stride = padded, .columns = padded};
        gemm(lattice_row(step, &op->input[0], first) + column, op->input[0].stride, rows, key_panels,
             head_dim * LATTICE_PANEL, padded / LATTICE_PANEL, head_dim, &to_scores, 0);
        const int merging = key > begin;
        float maximum2[LATTICE_QUERY_BLOCK], sum2[LATTICE_QUERY_BLOCK];
        for (int64_t r = 0; r < rows; r++)
            softmax_row(scores + r * padded, keys, padded, scale, merging ? &maximum2[r] : &maximum[r],
                        merging ? &sum2[r] : &sum[r]);
        const lattice_output to_output = {.y = merging ? output2 : output, .stride = width, .columns = width};
        gemm(scores, padded, rows, value_panels, keys * LATTICE_PANEL, width / LATTICE_PANEL, keys, &to_output, 0);
        if (merging)
            for (int64_t r = 0; r < rows; r++)
                merge_segment(output + r * width, &maximum[r], &sum[r], output2 + r * width, maximum2[r], sum2[r], width);
    }
    for (int64_t r = 0; r < rows; r++) {
        float *y = lattice_row(step, &op->output, first + r) + column;
        const f32x16 divisor = f32x16_set1(sum[r]);
        for (int64_t d = 0; d < head_dim; d += 16)
            store_part(y, d, head_dim, f32x16_div(f32x16_load(output + r * width + d), divisor));
    }
}

#endif
