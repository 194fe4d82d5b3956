/* Writes the keys and values of a step's tokens into pages: keys one column of [dim][token], values one row of [token][width].
 *
 * A task takes a head, and a run of tokens where heads are fewer than threads: so no two threads write lines of memory in turns.
 * Where attention takes a sequence by its keys (paged_attention.h) and was given the new ones, its tasks write those that they
 * are about to read, and this op leaves them out.
 * Up to sixteen tokens of a page are rounded side by side, and then each dimension's are stored together.
 */
#ifndef LATTICE_KV_WRITE_H
#define LATTICE_KV_WRITE_H

#include "attention/kv_types.h"
#include "lattice/transpose.h"
#include "rows/rows.h"

#define TOKENS_AT_ONCE 16
#define ROUNDED_AT_ONCE 256 /* elements of a head, rounded in one go */

/* Whether attention writes what is new of a sequence: op->kv_write.attention_heads says that it was given it. */
LATTICE_INLINE int is_written_by_attention(const lattice_op *op, const lattice_step *step, int64_t sequence)
{
    const int64_t rows = step->cu_seqlens[sequence + 1] - step->cu_seqlens[sequence];
    return op->kv_write.attention_heads > 0 && lattice_is_cut_by_keys(rows, op->kv_write.attention_heads / op->kv_write.kv_heads);
}

int64_t LATTICE_FN(kv_write_tasks)(const lattice_op *op, const lattice_step *step)
{
    int64_t sequence = 0;
    while (sequence < step->sequences && is_written_by_attention(op, step, sequence))
        sequence++;
    if (sequence == step->sequences)
        return 0;
    if (step->threads == 1 || step->tokens <= step->sizes->row_task_rows)
        return 1;
    const int64_t heads = step->kv[op->kv_write.layer].kv_heads;
    return heads * lattice_divide_up(step->threads, heads);
}

/* y[column][token] = x[token][column]: `tokens` elements side by side, y_stride elements from one column to the next. */
#define TURN_ROUND(type)                                                                                               \
    static void turn_##type(const type *x, int64_t x_stride, int64_t tokens, int64_t columns, type *y, int64_t y_stride) \
    {                                                                                                                  \
        for (int64_t i = 0; i < columns; i++)                                                                          \
            for (int64_t t = 0; t < tokens; t++)                                                                       \
                y[i * y_stride + t] = x[t * x_stride + i];                                                             \
    }
TURN_ROUND(float)
TURN_ROUND(uint16_t)
TURN_ROUND(int8_t)

/* Sixteen whole tokens of keys in float32, bfloat16 or float16: sixteen dimensions at a time are turned in registers. */
static void write_sixteen_keys(const float *x, int64_t x_stride, int64_t dim, int type, char *keys, int64_t page_tokens)
{
    for (int64_t i = 0; i < dim; i += 16) {
        float turned[16 * TOKENS_AT_ONCE];
        for (int64_t t = 0; t < TOKENS_AT_ONCE; t += 8)
            for (int64_t j = 0; j < 16; j += 8)
                transpose_8x8(x + t * x_stride + i + j, x_stride, turned + j * TOKENS_AT_ONCE + t, TOKENS_AT_ONCE);
        for (int64_t j = 0; j < 16; j++) {
            char *row = keys + (i + j) * page_tokens * kv_element_bytes(type);
            if (type == LATTICE_KV_FLOAT32)
                memcpy(row, turned + j * TOKENS_AT_ONCE, TOKENS_AT_ONCE * sizeof(float));
            else
                round_to_halves(turned + j * TOKENS_AT_ONCE, TOKENS_AT_ONCE, type, (uint16_t *)row);
        }
    }
}

/* Keys of `tokens` tokens of one head, `x_stride` floats apart, to columns from `keys` on; of int8 their scales to `scales`. */
static void write_keys(const float *x, int64_t x_stride, int64_t tokens, int64_t dim, int type, char *keys, int64_t page_tokens,
                       float *scales)
{
    if (type != LATTICE_KV_INT8 && tokens == TOKENS_AT_ONCE && dim % 16 == 0) {
        write_sixteen_keys(x, x_stride, dim, type, keys, page_tokens);
        return;
    }
    if (type == LATTICE_KV_FLOAT32) {
        turn_float(x, x_stride, tokens, dim, (float *)keys, page_tokens);
        return;
    }
    if (type == LATTICE_KV_INT8) {
        int8_t rounded[TOKENS_AT_ONCE * LATTICE_MAX_HEAD_DIM];
        for (int64_t t = 0; t < tokens; t++)
            scales[t] = round_to_int8(x + t * x_stride, dim, rounded + t * dim);
        turn_int8_t(rounded, dim, tokens, dim, (int8_t *)keys, page_tokens);
        return;
    }
    uint16_t rounded[TOKENS_AT_ONCE * ROUNDED_AT_ONCE];
    for (int64_t first = 0; first < dim; first += ROUNDED_AT_ONCE) {
        const int64_t here = dim - first < ROUNDED_AT_ONCE ? dim - first : ROUNDED_AT_ONCE;
        for (int64_t t = 0; t < tokens; t++)
            round_to_halves(x + t * x_stride + first, here, type, rounded + t * here);
        turn_uint16_t(rounded, here, tokens, here, (uint16_t *)keys + first * page_tokens, page_tokens);
    }
}

static void write_value(const float *x, int64_t dim, int type, char *value, float *scale)
{
    if (type == LATTICE_KV_FLOAT32)
        memcpy(value, x, (size_t)dim * sizeof(float));
    else if (type == LATTICE_KV_INT8)
        *scale = round_to_int8(x, dim, (int8_t *)value);
    else
        round_to_halves(x, dim, type, (uint16_t *)value);
}

/* Tokens [first, end) of the step, all of one page of a sequence, the first of them in `slot`; views: of keys, of values. */
static void write_tokens(const lattice_step *step, const lattice_kv_layer *kv, const lattice_view *views, int64_t first,
                         int64_t end, int64_t page, int64_t slot, int64_t head)
{
    const int64_t dim = kv->head_dim, page_tokens = step->page_tokens, element = kv_element_bytes(kv->type);
    const int is_int8 = kv->type == LATTICE_KV_INT8;
    float none[TOKENS_AT_ONCE];
    float *key_scales = is_int8 ? kv_key_scales(kv, page, head, page_tokens) + slot : none;
    float *value_scales = is_int8 ? kv_value_scales(kv, page, head, page_tokens) + slot : none;
    write_keys(lattice_row(step, &views[0], first) + head * dim, views[0].stride, end - first, dim, kv->type,
               kv_keys(kv, page, head, page_tokens) + slot * element, page_tokens, key_scales);
    char *values = kv_values(kv, page, head, page_tokens) + slot * kv->width * element;
    for (int64_t t = first; t < end; t++, values += kv->width * element)
        write_value(lattice_row(step, &views[1], t) + head * dim, dim, kv->type, values, &value_scales[t - first]);
}

/* Tokens [first, end) of the step, all of one sequence. */
static void write_sequence(const lattice_step *step, const lattice_kv_layer *kv, const lattice_view *views, int64_t sequence,
                           int64_t first, int64_t end, int64_t first_head, int64_t end_head)
{
    const int64_t page_tokens = step->page_tokens;
    for (int64_t next; first < end; first = next) {
        const int64_t position = step->context[sequence] + first - step->cu_seqlens[sequence], slot = position % page_tokens;
        const int64_t page = step->pages[step->cu_pages[sequence] + position / page_tokens];
        next = first + TOKENS_AT_ONCE - slot % TOKENS_AT_ONCE; /* pages hold a multiple of them */
        if (next > end)
            next = end;
        for (int64_t head = first_head; head < end_head; head++)
            write_tokens(step, kv, views, first, next, page, slot, head);
    }
}

void LATTICE_FN(kv_write_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const int64_t heads = step->kv[op->kv_write.layer].kv_heads, runs = tasks < heads ? 1 : tasks / heads;
    const int64_t first_head = tasks < heads ? 0 : task % heads, end_head = tasks < heads ? heads : first_head + 1;
    int64_t first, end, sequence = 0;
    task_rows(step->tokens, tasks < heads ? 0 : task / heads, runs, &first, &end);
    while (first < end) {
        while (first >= step->cu_seqlens[sequence + 1])
            sequence++;
        const int64_t here = end < step->cu_seqlens[sequence + 1] ? end : step->cu_seqlens[sequence + 1];
        if (!is_written_by_attention(op, step, sequence))
            write_sequence(step, &step->kv[op->kv_write.layer], op->input, sequence, first, here, first_head, end_head);
        first = here;
    }
}

#endif
