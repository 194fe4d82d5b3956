/* Writes the keys and values of a step's tokens into pages: keys one column of [dim][token], values one row of [token][width].
 *
 * A task takes a run of tokens. Tokens of one page may be written by two threads, each its own elements.
 */
#ifndef LATTICE_KV_WRITE_H
#define LATTICE_KV_WRITE_H

#include "kv_types.h"
#include "paged.h"
#include "row_parts.h"

#define ROUNDED_AT_ONCE 256 /* elements of a head, rounded in one go */

/* One key or value of one head, from `x` on, to elements `step` apart. */
LATTICE_INLINE void write_floats(const float *x, int64_t n, int type, char *target, int64_t step)
{
    if (type == LATTICE_KV_FLOAT32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)target)[i * step] = x[i];
        return;
    }
    uint16_t rounded[ROUNDED_AT_ONCE];
    for (int64_t first = 0; first < n; first += ROUNDED_AT_ONCE) {
        const int64_t here = n - first < ROUNDED_AT_ONCE ? n - first : ROUNDED_AT_ONCE;
        round_to_halves(x + first, here, type, rounded);
        for (int64_t i = 0; i < here; i++)
            ((uint16_t *)target)[(first + i) * step] = rounded[i];
    }
}

LATTICE_INLINE void write_int8(const float *x, int64_t n, int8_t *rounded, int8_t *target, int64_t step, float *scale)
{
    *scale = round_to_int8(x, n, rounded);
    for (int64_t i = 0; i < n; i++)
        target[i * step] = rounded[i];
}

void LATTICE_FN(kv_write_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const lattice_kv_layer *kv = &step->kv[op->layer];
    const int64_t dim = kv->head_dim, width = kv->width, page_tokens = step->page_tokens;
    const int64_t element = kv_element_bytes(kv->type);
    int8_t rounded[LATTICE_MAX_HEAD_DIM];
    int64_t first, end, sequence = 0;
    task_rows(step->tokens, task, tasks, &first, &end);
    for (int64_t t = first; t < end; t++) {
        while (t >= step->cu_seqlens[sequence + 1])
            sequence++;
        const int64_t position = step->context[sequence] + t - step->cu_seqlens[sequence];
        const int64_t page = step->pages[step->cu_pages[sequence] + position / page_tokens], slot = position % page_tokens;
        const float *key = lattice_row(step, &op->input[0], t), *value = lattice_row(step, &op->input[1], t);
        for (int64_t head = 0; head < kv->kv_heads; head++, key += dim, value += dim) {
            char *keys = kv_keys(kv, page, head, page_tokens) + slot * element;
            char *values = kv_values(kv, page, head, page_tokens) + slot * width * element;
            if (kv->type == LATTICE_KV_INT8) {
                write_int8(key, dim, rounded, (int8_t *)keys, page_tokens, kv_key_scales(kv, page, head, page_tokens) + slot);
                write_int8(value, dim, rounded, (int8_t *)values, 1, kv_value_scales(kv, page, head, page_tokens) + slot);
            } else {
                write_floats(key, dim, kv->type, keys, page_tokens);
                write_floats(value, dim, kv->type, values, 1);
            }
        }
    }
}

#endif
