/* y[i] = softmax over keys j of (scale q[i] . k[j]) times v[j], within each sequence of a packed batch, by AMX.
 *
 * Queries, keys and values are rows of bfloat16, as linears before wrote them (bfloat16_rows.h); exponentials and their
 * sums are float32, and what multiplies values is rounded to bfloat16. A task is one head of one block of query rows, as
 * in attention.h, and a segment of at most 512 keys is laid out as the weights of two linears:
 *
 *     K^T panels [keys / 16][dim / 2][16][2]    scores [32][keys] = Q K^T      p = exp(s - max), rounded; padded keys give 0
 *     V   panels [dim / 16][keys / 2][16][2]    output [32][dim]  = p V        divided by the sum of p at the end
 *
 * Numeric design: each product is one chain in ascending k (amx_bfloat16.h), the sum of p goes through sixteen lanes
 * and one fold, segments are merged left to right. A query's value depends on its own sequence only, and not on the block it
 * falls in.
 */
#include "amx/amx_bfloat16.h"
#include "rows/bfloat16_rows.h"
#include "attention/query_blocks.h"

int64_t LATTICE_FN(amx_attention_tasks)(const lattice_op *op, const lattice_step *step)
{
    return step->cu_query_blocks[step->sequences] * op->attention.heads;
}

#if !defined(LATTICE_AMX_BFLOAT16)
void LATTICE_FN(amx_attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                            int thread)
{
    (void)op, (void)step, (void)task, (void)tasks, (void)thread; /* no program has this op where there are no tiles */
}
#else

#include "lattice/exp2.h"
#include "linear/linear_output.h"
#include "attention/softmax.h"

#define LOG2_E 0x1.715476p+0f
#define LN_2 0x1.62e43p-1f

/* 16 rows of 16 words -> 16 columns, `stride` bytes between rows of `x`, of which `rows` are there. */
LATTICE_INLINE void transpose_16x16(const char *x, int64_t stride, int64_t rows, char *y)
{
    __m512i a[16], b[16];
    LATTICE_UNROLL for (int i = 0; i < 16; i++)
        a[i] = i < rows ? _mm512_loadu_si512(x + i * stride) : _mm512_setzero_si512();
    LATTICE_UNROLL for (int i = 0; i < 16; i += 2)
    {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    LATTICE_UNROLL for (int i = 0; i < 16; i += 4)
    {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    /* a[4 q + c] holds column c + 4 l of rows 4 q to 4 q + 3 in its lane l */
    LATTICE_UNROLL for (int c = 0; c < 4; c++)
    {
        const __m512i first = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
        const __m512i second = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
        const __m512i third = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
        const __m512i fourth = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
        _mm512_storeu_si512(y + (c + 0) * 64, _mm512_shuffle_i32x4(first, second, 0x88));
        _mm512_storeu_si512(y + (c + 8) * 64, _mm512_shuffle_i32x4(first, second, 0xdd));
        _mm512_storeu_si512(y + (c + 4) * 64, _mm512_shuffle_i32x4(third, fourth, 0x88));
        _mm512_storeu_si512(y + (c + 12) * 64, _mm512_shuffle_i32x4(third, fourth, 0xdd));
    }
}

/* k[key][dim] -> panels [key / 16][dim / 2][16][2]; keys beyond the last are zeros. */
static void lay_keys(const uint16_t *keys, int64_t stride, int64_t count, int64_t head_dim, uint16_t *panels)
{
    for (int64_t key = 0; key < count; key += 16) {
        const int64_t here = count - key < 16 ? count - key : 16;
        for (int64_t d = 0; d < head_dim; d += 32)
            transpose_16x16((const char *)(keys + key * stride + d), stride * 2, here,
                            (char *)(panels + key * head_dim + d * LATTICE_PANEL));
    }
}

/* v[key][dim] -> panels [dim / 16][padded / 2][16][2]; keys from `count` on are zeros. */
static void lay_values(const uint16_t *values, int64_t stride, int64_t count, int64_t padded, int64_t head_dim,
                       uint16_t *panels)
{
    for (int64_t d = 0; d < head_dim; d += LATTICE_PANEL) {
        uint16_t *line = panels + d * padded;
        for (int64_t key = 0; key < padded; key += 2, line += 2 * LATTICE_PANEL) {
            const uint16_t *row = values + key * stride + d;
            __m512i pair = _mm512_setzero_si512();
            if (key < count)
                pair = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)row));
            if (key + 1 < count) {
                const __m512i odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(row + stride)));
                pair = _mm512_or_si512(pair, _mm512_slli_epi32(odd, 16));
            }
            _mm512_storeu_si512(line, pair);
        }
    }
}

/* p = exp(scale s - max) of `keys` scores, rounded, zeros up to `padded`; the maximum of scale s, and the sum of p unrounded. */
LATTICE_INLINE void softmax_row(const float *s, int64_t keys, int64_t padded, float scale, uint16_t *p, float *maximum,
                                float *sum)
{
    const f32x16 factor = _mm512_set1_ps(scale * LOG2_E), least = _mm512_set1_ps(-__builtin_inff());
    const __mmask16 last = (__mmask16)(0xffffu >> (-keys & 15)); /* of the last vector that holds keys */
    const int64_t whole = (keys - 1) / 16 * 16;
    f32x16 most = least;
    for (int64_t j = 0; j < whole; j += 16)
        most = _mm512_max_ps(_mm512_mul_ps(_mm512_loadu_ps(s + j), factor), most);
    most = _mm512_max_ps(_mm512_mask_mul_ps(least, last, _mm512_loadu_ps(s + whole), factor), most);
    const float top = f32x16_fold_max(most);
    const f32x16 shift = _mm512_set1_ps(-top);
    f32x16 total = _mm512_setzero_ps();
    for (int64_t j = 0; j < whole; j += 16) {
        const f32x16 value = f32x16_exp2_bounded(_mm512_fmadd_ps(_mm512_loadu_ps(s + j), factor, shift));
        total = _mm512_add_ps(total, value);
        store_bfloat16(p + j, value);
    }
    const f32x16 value = f32x16_exp2_bounded(_mm512_fmadd_ps(_mm512_maskz_loadu_ps(last, s + whole), factor, shift));
    total = _mm512_mask_add_ps(total, last, total, value);
    store_bfloat16(p + whole, _mm512_maskz_mov_ps(last, value));
    if (whole + 16 < padded)
        store_bfloat16(p + whole + 16, _mm512_setzero_ps());
    *maximum = top * LN_2;
    *sum = f32x16_fold_add(total);
}

void LATTICE_FN(amx_attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks,
                                            int thread)
{
    (void)tasks;
    const query_block block = query_block_of(step, task / op->attention.heads);
    const int64_t head = task % op->attention.heads, head_dim = op->attention.head_dim;
    const int64_t column = head * head_dim, kv_column = head / (op->attention.heads / op->attention.kv_heads) * head_dim;
    const lattice_amx_scratch parts = lattice_amx_scratch_of(op, step->max_seqlen, step->sizes);
    char *scratch = step->scratch + thread * step->scratch_bytes;
    uint16_t *key_panels = (uint16_t *)scratch, *value_panels = (uint16_t *)(scratch + parts.values);
    uint16_t *p = (uint16_t *)(scratch + parts.weights);
    float *scores = (float *)(scratch + parts.scores), *output2 = (float *)(scratch + parts.segment);
    float *output = (float *)(scratch + parts.output), *maximum = output + step->sizes->query_block_rows * head_dim;
    float *sum = maximum + step->sizes->query_block_rows;
    const int64_t q_stride = 2 * op->input[0].stride, output_stride = head_dim * (int64_t)sizeof(float);

    for (int64_t key = block.begin; key < block.end; key += LATTICE_KEY_SEGMENT) {
        const int64_t keys = block.end - key < LATTICE_KEY_SEGMENT ? block.end - key : LATTICE_KEY_SEGMENT;
        const int64_t padded = lattice_bfloat16_depth(keys), p_stride = 2 * lattice_bfloat16_row_floats(keys);
        const int64_t score_stride = padded * (int64_t)sizeof(float);
        const int merging = key > block.begin;
        lay_keys(bfloat16_row(step, &op->input[1], key) + kv_column, 2 * op->input[1].stride, keys, head_dim, key_panels);
        lay_values(bfloat16_row(step, &op->input[2], key) + kv_column, 2 * op->input[2].stride, keys, padded, head_dim,
                   value_panels);
        int64_t shaped = 0;
        for (int64_t row = 0; row < block.rows; row += AMX_MOST_ROWS) {
            const int64_t here = block.rows - row < AMX_MOST_ROWS ? block.rows - row : AMX_MOST_ROWS;
            float maximum2[AMX_MOST_ROWS], sum2[AMX_MOST_ROWS];
            if (here != shaped)
                amx_shape_bfloat16(shaped = here);
            amx_multiply_bfloat16(bfloat16_row(step, &op->input[0], block.first + row) + column, 2 * q_stride, here, key_panels,
                         head_dim * LATTICE_PANEL * 2, lattice_divide_up(keys, LATTICE_PANEL), head_dim / 32, scores,
                         score_stride);
            for (int64_t r = 0; r < here; r++)
                softmax_row(scores + r * padded, keys, padded, op->attention.scale, p + r * p_stride,
                            merging ? &maximum2[r] : &maximum[row + r], merging ? &sum2[r] : &sum[row + r]);
            amx_multiply_bfloat16(p, 2 * p_stride, here, value_panels, padded * LATTICE_PANEL * 2, head_dim / LATTICE_PANEL,
                                  padded / 32, merging ? output2 : output + row * head_dim, output_stride);
            if (merging)
                for (int64_t r = 0; r < here; r++)
                    merge_segment(output + (row + r) * head_dim, &maximum[row + r], &sum[row + r], output2 + r * head_dim,
                                  maximum2[r], sum2[r], head_dim);
        }
    }
    amx_release();
    for (int64_t r = 0; r < block.rows; r++) {
        const f32x16 factor = f32x16_set1(1.0f / sum[r]);
        for (int64_t d = 0; d < head_dim; d += 16) {
            const f32x16 value = f32x16_mul(f32x16_load(output + r * head_dim + d), factor);
            if (op->rounded.slot >= 0)
                store_bfloat16(bfloat16_row(step, &op->rounded, block.first + r) + column + d, value);
            else
                f32x16_store(lattice_row(step, &op->output, block.first + r) + column + d, value);
        }
    }
}
#endif
