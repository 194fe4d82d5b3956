/* y = softmax over the positions j that a row sees of (scale q . k[j]) times v[j], with keys and values in pages.
 *
 * graph/ops.py, op "paged_attention", is the definition, down to the order of additions. Keys are [dim][token] and values
 * [token][width] in a page, so both products are the same tile over rows of b as they lie, for one new token and for a
 * thousand. The rows of a tile are queries of all heads that share a key head:
 *
 *     page of keys   [dim][token]      scores [rows][512] = Q K       a chain over the dimensions
 *     page of values [token][width]    output [rows][width] = p V     a chain over the keys that the row sees, page after page
 *
 * A task is one key head of
 *   - one segment of 512 keys of a sequence with few new rows: what it gives is a partial, and paged_merge merges partials;
 *   - one block of query rows of a sequence with many: it takes segment after segment and merges at once. It widens a segment
 *     to floats first, once for all its rows.
 * Both merge the same values in the same order, so how a step is cut shows in no bit. Keys that a row does not see are never
 * multiplied, whatever lies there: a page may hold what another sequence left.
 */
#ifndef LATTICE_PAGED_ATTENTION_H
#define LATTICE_PAGED_ATTENTION_H

#include "attention/kv_types.h"
#include "attention/kv_write.h"
#include "rows/bfloat16_rows.h"
#include "rows/rows.h"
#include "attention/softmax.h"

/* By four vectors of columns: what registers hold, and rows enough that widening a page's elements costs little beside them. */
#if defined(LATTICE_ISA_AVX512)
#define PAGED_TILE_ROWS 6
#else
#define PAGED_TILE_ROWS 3
#endif

#define KV float
#define KV_LOAD(p) vf_load(p)
#define KV_NAME(name) name##_float32
#include "attention/paged_tiles.h"

#define KV uint16_t
#define KV_LOAD(p) vf_load_bfloat16(p)
#define KV_NAME(name) name##_bfloat16
#include "attention/paged_tiles.h"

#define KV uint16_t
#define KV_LOAD(p) vf_load_float16(p)
#define KV_NAME(name) name##_float16
#include "attention/paged_tiles.h"

#define KV int8_t
#define KV_LOAD(p) vf_load_int8(p)
#define KV_NAME(name) name##_int8
#include "attention/paged_tiles.h"

/* What the rows of a task have in common. Row r is query head r % group of token r / group. */
typedef struct {
    const lattice_kv_layer *kv;
    const int32_t *pages; /* of the sequence */
    int64_t page_tokens;
    int64_t kv_head, group;
    int64_t position; /* of the first token */
    int64_t window;
    float scale;
    float *scores;    /* [LATTICE_SCORE_ROWS][LATTICE_KEY_SEGMENT] */
    float *wide_keys, *wide_values; /* of the segment as floats, in pages of LATTICE_WIDE_PAGE tokens; NULL: read where they lie */
    const float *packed_keys, *packed_values; /* of position 0 in rows of a step, which then count instead of pages; or NULL */
    int64_t packed_key_stride, packed_value_stride;
} paged_rows;

/* Keys [first, end) of a segment that a row sees; first >= end when it sees none. */
typedef struct {
    int64_t first, end;
} key_range;

LATTICE_INLINE key_range keys_seen(const paged_rows *rows, int64_t row, int64_t segment)
{
    const int64_t position = rows->position + row / rows->group - segment * LATTICE_KEY_SEGMENT;
    const int64_t first = rows->window > 0 ? position + 1 - rows->window : 0;
    return (key_range){first > 0 ? first : 0, position < LATTICE_KEY_SEGMENT ? position + 1 : LATTICE_KEY_SEGMENT};
}

LATTICE_INLINE void paged_product(int type, int64_t rows, const float *a, int64_t a_stride, const char *b, int64_t b_stride,
                                  int64_t k, float *c, int64_t c_stride, int64_t columns, int fresh, const char *next)
{
    switch (type) {
    case LATTICE_KV_FLOAT32:
        paged_product_float32(rows, a, a_stride, b, b_stride, k, c, c_stride, columns, fresh, next);
        return;
    case LATTICE_KV_BFLOAT16:
        paged_product_bfloat16(rows, a, a_stride, b, b_stride, k, c, c_stride, columns, fresh, next);
        return;
    case LATTICE_KV_FLOAT16:
        paged_product_float16(rows, a, a_stride, b, b_stride, k, c, c_stride, columns, fresh, next);
        return;
    default:
        paged_product_int8(rows, a, a_stride, b, b_stride, k, c, c_stride, columns, fresh, next);
    }
}

/* The page that holds a key of a segment. */
LATTICE_INLINE int64_t page_of(const paged_rows *rows, int64_t segment, int64_t key)
{
    return rows->pages[(segment * LATTICE_KEY_SEGMENT + key) / rows->page_tokens];
}

/* Tokens of a page as the products read them, and the type of its elements. */
LATTICE_INLINE int64_t read_tokens(const paged_rows *rows)
{
    return rows->wide_keys != NULL ? LATTICE_WIDE_PAGE : rows->page_tokens;
}

LATTICE_INLINE int read_type(const paged_rows *rows)
{
    return rows->wide_keys != NULL ? LATTICE_KV_FLOAT32 : rows->kv->type;
}

/* Where the keys [dim][token] of the page with a key of a segment are read, and its values [token][width]. */
LATTICE_INLINE const char *keys_at(const paged_rows *rows, int64_t segment, int64_t key)
{
    if (rows->wide_keys != NULL)
        return (const char *)(rows->wide_keys + key / LATTICE_WIDE_PAGE * LATTICE_WIDE_PAGE * rows->kv->head_dim);
    return kv_keys(rows->kv, page_of(rows, segment, key), rows->kv_head, rows->page_tokens);
}

LATTICE_INLINE const char *values_at(const paged_rows *rows, int64_t segment, int64_t key)
{
    if (rows->wide_keys != NULL)
        return (const char *)(rows->wide_values + key / LATTICE_WIDE_PAGE * LATTICE_WIDE_PAGE * rows->kv->width);
    return kv_values(rows->kv, page_of(rows, segment, key), rows->kv_head, rows->page_tokens);
}

/* y[rows][y_stride] = the elements x[rows][columns] of a type, columns being a multiple of 16. */
static void widen(int type, const char *x, int64_t rows, int64_t columns, float *y, int64_t y_stride)
{
    switch (type) {
    case LATTICE_KV_FLOAT32:
        widen_float32(x, rows, columns, y, y_stride);
        return;
    case LATTICE_KV_BFLOAT16:
        widen_bfloat16(x, rows, columns, y, y_stride);
        return;
    case LATTICE_KV_FLOAT16:
        widen_float16(x, rows, columns, y, y_stride);
        return;
    default:
        widen_int8(x, rows, columns, y, y_stride);
    }
}

/* Lays keys [first, end) of a segment, which are rows of a step, out like pages of floats. */
static void lay_out_segment(const paged_rows *rows, int64_t segment, int64_t first, int64_t end)
{
    const lattice_kv_layer *kv = rows->kv;
    for (int64_t key = first / TOKENS_AT_ONCE * TOKENS_AT_ONCE; key < end; key += TOKENS_AT_ONCE) {
        const int64_t position = segment * LATTICE_KEY_SEGMENT + key, slot = key % LATTICE_WIDE_PAGE;
        const int64_t here = end - key < TOKENS_AT_ONCE ? end - key : TOKENS_AT_ONCE;
        write_keys(rows->packed_keys + position * rows->packed_key_stride, rows->packed_key_stride, here, kv->head_dim,
                   LATTICE_KV_FLOAT32, (char *)((float *)keys_at(rows, segment, key) + slot), LATTICE_WIDE_PAGE, NULL);
        float *value = (float *)values_at(rows, segment, key) + slot * kv->width;
        for (int64_t t = 0; t < here; t++, value += kv->width) {
            memcpy(value, rows->packed_values + (position + t) * rows->packed_value_stride,
                   (size_t)kv->head_dim * sizeof(float));
            for (int64_t d = kv->head_dim; d < kv->width; d++)
                value[d] = 0.0f;
        }
    }
}

/* Widens the pages of keys [first, end) of a segment, once for all rows of a task. */
static void widen_segment(const paged_rows *rows, int64_t segment, int64_t first, int64_t end)
{
    if (rows->packed_keys != NULL) {
        lay_out_segment(rows, segment, first, end);
        return;
    }
    const lattice_kv_layer *kv = rows->kv;
    const int64_t tokens = rows->page_tokens;
    for (int64_t key = first / tokens * tokens; key < end; key += tokens) {
        const int64_t page = page_of(rows, segment, key), slot = key % LATTICE_WIDE_PAGE;
        widen(kv->type, kv_keys(kv, page, rows->kv_head, tokens), kv->head_dim, tokens,
              (float *)keys_at(rows, segment, key) + slot, LATTICE_WIDE_PAGE);
        widen(kv->type, kv_values(kv, page, rows->kv_head, tokens), tokens, kv->width,
              (float *)values_at(rows, segment, key) + slot * kv->width, kv->width);
    }
}

/* Scores of `count` rows against the pages that hold keys [first, end) of a segment. */
static void score_rows(const paged_rows *rows, const float *queries, int64_t count, int64_t segment, int64_t first, int64_t end)
{
    const lattice_kv_layer *kv = rows->kv;
    const int64_t tokens = read_tokens(rows), page_tokens = rows->page_tokens;
    const int type = read_type(rows);
    for (int64_t key = first / page_tokens * page_tokens; key < end;) {
        const int64_t slot = key % tokens, left = lattice_round_up(end - key, 16);
        const int64_t columns = left < tokens - slot ? left : tokens - slot;
        const char *keys = keys_at(rows, segment, key) + slot * kv_element_bytes(type);
        const char *next = key + columns < end ? keys_at(rows, segment, key + columns) : values_at(rows, segment, first);
        for (int64_t r = 0; r < count; r += PAGED_TILE_ROWS) {
            const int64_t here = count - r < PAGED_TILE_ROWS ? count - r : PAGED_TILE_ROWS;
            paged_product(type, here, queries + r * kv->width, kv->width, keys, tokens, kv->head_dim,
                          rows->scores + r * LATTICE_KEY_SEGMENT + key, LATTICE_KEY_SEGMENT, columns, 1, r == 0 ? next : keys);
        }
        if (kv->type == LATTICE_KV_INT8)
            for (int64_t j = key; j < key + columns; j += 16) {
                const float *scales = kv_key_scales(kv, page_of(rows, segment, j), rows->kv_head, page_tokens);
                const f32x16 scale = f32x16_load(scales + j % page_tokens);
                for (int64_t r = 0; r < count; r++) {
                    float *scores = rows->scores + r * LATTICE_KEY_SEGMENT + j;
                    f32x16_store(scores, f32x16_mul(f32x16_load(scores), scale));
                }
            }
        key += columns;
    }
}

/* output[count][width] += p[first, end) of each row times the values there, which lie in one page. */
static void weigh_values(const paged_rows *rows, const float *p, int64_t count, int64_t segment, int64_t first, int64_t end,
                         float *output, int64_t stride, const char *next)
{
    const lattice_kv_layer *kv = rows->kv;
    const int64_t slot = first % read_tokens(rows), page_tokens = rows->page_tokens;
    const int type = read_type(rows);
    const char *values = values_at(rows, segment, first) + slot * kv->width * kv_element_bytes(type);
    const float *weights = p + first;
    int64_t weight_stride = LATTICE_KEY_SEGMENT;
    float scaled[PAGED_TILE_ROWS * LATTICE_WIDE_PAGE];
    if (kv->type == LATTICE_KV_INT8) {
        for (int64_t key = first; key < end; key++) {
            const float *scales = kv_value_scales(kv, page_of(rows, segment, key), rows->kv_head, page_tokens);
            for (int64_t r = 0; r < count; r++)
                scaled[r * LATTICE_WIDE_PAGE + key - first] = p[r * LATTICE_KEY_SEGMENT + key] * scales[key % page_tokens];
        }
        weights = scaled;
        weight_stride = LATTICE_WIDE_PAGE;
    }
    paged_product(type, count, weights, weight_stride, values, kv->width, end - first, output, stride, kv->width, 0, next);
}

/* The same for a tile of rows of which each sees keys of its own: what all see is done together. */
static void weigh_tile(const paged_rows *rows, const float *p, const key_range *seen, int64_t count, int64_t segment,
                       float *output, int64_t stride, const char *next)
{
    int64_t first = seen[0].first, end = seen[0].end;
    for (int64_t r = 1; r < count; r++) {
        first = seen[r].first > first ? seen[r].first : first;
        end = seen[r].end < end ? seen[r].end : end;
    }
    if (first >= end) /* nothing, so each row goes through its own keys */
        first = end = LATTICE_KEY_SEGMENT;
    for (int64_t r = 0; r < count; r++) {
        const int64_t before = seen[r].end < first ? seen[r].end : first;
        if (seen[r].first < before)
            weigh_values(rows, p + r * LATTICE_KEY_SEGMENT, 1, segment, seen[r].first, before, output + r * stride, stride, next);
    }
    if (first < end)
        weigh_values(rows, p, count, segment, first, end, output, stride, next);
    for (int64_t r = 0; r < count; r++)
        if (end < seen[r].end)
            weigh_values(rows, p + r * LATTICE_KEY_SEGMENT, 1, segment, end, seen[r].end, output + r * stride, stride, next);
}

/* Adds the values of one page, keys [first, end) of a segment, to the outputs of `count` rows. */
static void weigh_page(const paged_rows *rows, const key_range *seen, int64_t count, int64_t segment, int64_t first, int64_t end,
                       float *output, int64_t stride, const char *next)
{
    for (int64_t r = 0; r < count;) {
        key_range here[PAGED_TILE_ROWS];
        int64_t height = 0; /* rows of a tile that see something */
        for (; height < PAGED_TILE_ROWS && r + height < count; height++) {
            const key_range *all = &seen[r + height];
            here[height] = (key_range){all->first > first ? all->first : first, all->end < end ? all->end : end};
            if (here[height].first >= here[height].end)
                break;
        }
        if (height > 0)
            weigh_tile(rows, rows->scores + r * LATTICE_KEY_SEGMENT, here, height, segment, output + r * stride, stride, next);
        r += height > 0 ? height : 1;
    }
}

/* One segment for rows `row` to `row + count`, at most LATTICE_SCORE_ROWS. Row r leaves its output at output + r * stride and its
 * maximum and sum at maximum[r * gap] and sum[r * gap]; a sum of 0 says that it sees no key of the segment. */
static void attend_segment(const paged_rows *rows, const float *queries, int64_t row, int64_t count, int64_t segment,
                           float *output, int64_t stride, float *maximum, float *sum, int64_t gap)
{
    key_range seen[LATTICE_SCORE_ROWS];
    int64_t first = LATTICE_KEY_SEGMENT, end = 0;
    for (int64_t r = 0; r < count; r++) {
        seen[r] = keys_seen(rows, row + r, segment);
        if (seen[r].first >= seen[r].end)
            continue;
        first = seen[r].first < first ? seen[r].first : first;
        end = seen[r].end > end ? seen[r].end : end;
    }
    if (first < end)
        score_rows(rows, queries, count, segment, first, end);
    const f32x16 scale = f32x16_set1(rows->scale);
    for (int64_t r = 0; r < count; r++) {
        sum[r * gap] = 0.0f;
        if (seen[r].first < seen[r].end)
            softmax_part(rows->scores + r * LATTICE_KEY_SEGMENT, seen[r].first, seen[r].end, scale, &maximum[r * gap],
                         &sum[r * gap]);
    }
    for (int64_t r = 0; r < count; r++)
        if (seen[r].first < seen[r].end)
            memset(output + r * stride, 0, (size_t)rows->kv->width * sizeof(float));
    const int64_t tokens = read_tokens(rows);
    for (int64_t key = first; key < end;) {
        const int64_t page_end = (key / tokens + 1) * tokens < end ? (key / tokens + 1) * tokens : end;
        const char *next = values_at(rows, segment, page_end < end ? page_end : key);
        weigh_page(rows, seen, count, segment, key, page_end, output, stride, next);
        key = page_end;
    }
}

/* Fills units[0 .. sequences] with how many parts, each of one task a key head, stand before every sequence, and
 * units[sequences + 1 ..] with the number of partials before it. */
static void count_units(const lattice_op *op, const lattice_step *step)
{
    int64_t *units = step->attention_units, *partials = units + step->sequences + 1;
    const int64_t group = op->paged.heads / op->paged.kv_heads;
    units[0] = partials[0] = 0;
    for (int64_t i = 0; i < step->sequences; i++) {
        const int64_t rows = step->cu_seqlens[i + 1] - step->cu_seqlens[i];
        int64_t first, end, here = lattice_divide_up(rows, lattice_paged_rows(group));
        partials[i + 1] = partials[i];
        if (lattice_is_cut_by_keys(rows, group)) {
            lattice_segments(step->context[i], rows, op->paged.window, &first, &end);
            here = end - first;
            partials[i + 1] += here * rows * op->paged.heads;
        }
        units[i + 1] = units[i] + here;
    }
}

int64_t LATTICE_FN(paged_attention_tasks)(const lattice_op *op, const lattice_step *step)
{
    count_units(op, step);
    return step->attention_units[step->sequences] * op->paged.kv_heads;
}

/* Writes what a segment has of a sequence's new keys and values, of one head. */
static void write_segment(const lattice_op *op, const lattice_step *step, int64_t sequence, int64_t segment, int64_t kv_head)
{
    const int64_t begin = step->cu_seqlens[sequence], end = step->cu_seqlens[sequence + 1];
    const int64_t token_0 = begin - step->context[sequence]; /* what would be the row of position 0 */
    int64_t first = token_0 + segment * LATTICE_KEY_SEGMENT, last = first + LATTICE_KEY_SEGMENT;
    first = first > begin ? first : begin;
    last = last < end ? last : end;
    write_sequence(step, &step->kv[op->paged.layer], &op->input[1], sequence, first, last, kv_head, kv_head + 1);
}

/* Copies the queries of `count` rows from token `token` on to [count][width]. */
static void gather_queries(const lattice_op *op, const lattice_step *step, int64_t token, int64_t count, int64_t kv_head,
                           float *queries)
{
    const int64_t group = op->paged.heads / op->paged.kv_heads, dim = op->paged.head_dim;
    const int64_t width = lattice_round_up(dim, LATTICE_PANEL);
    for (int64_t r = 0; r < count; r++)
        memcpy(queries + r * width,
               lattice_row(step, &op->input[0], token + r / group) + (kv_head * group + r % group) * dim,
               (size_t)dim * sizeof(float));
}

/* All segments for `count` rows of one key head, which begin at row `token` of the step: their outputs are written. */
static void attend_block(const lattice_op *op, const lattice_step *step, const paged_rows *rows, int64_t token, int64_t count,
                         int64_t first_segment, int64_t end_segment, float *queries, float *output2, float *results)
{
    const int64_t dim = op->paged.head_dim, width = lattice_round_up(dim, LATTICE_PANEL), partial = lattice_partial_floats(dim);
    gather_queries(op, step, token, count, rows->kv_head, queries);
    for (int64_t row = 0; row < count; row++)
        results[row * partial + width + 1] = 0.0f;
    for (int64_t segment = first_segment; segment < end_segment; segment++) {
        widen_segment(rows, segment, keys_seen(rows, 0, segment).first, keys_seen(rows, count - 1, segment).end);
        for (int64_t row = 0; row < count; row += LATTICE_SCORE_ROWS) {
            const int64_t here = count - row < LATTICE_SCORE_ROWS ? count - row : LATTICE_SCORE_ROWS;
            float maximum2[LATTICE_SCORE_ROWS], sum2[LATTICE_SCORE_ROWS];
            attend_segment(rows, queries + row * width, row, here, segment, output2, width, maximum2, sum2, 1);
            for (int64_t r = 0; r < here; r++) {
                float *result = results + (row + r) * partial, *maximum = result + width, *sum = maximum + 1;
                if (sum2[r] == 0.0f)
                    continue;
                if (*sum == 0.0f) {
                    memcpy(result, output2 + r * width, (size_t)width * sizeof(float));
                    *maximum = maximum2[r];
                    *sum = sum2[r];
                } else {
                    merge_segment(result, maximum, sum, output2 + r * width, maximum2[r], sum2[r], width);
                }
            }
        }
    }
    for (int64_t row = 0; row < count; row++) {
        const int64_t head = rows->kv_head * rows->group + row % rows->group, column = head * dim;
        if (op->paged.sums.slot >= 0) {
            float *kept = lattice_row(step, &op->paged.sums, token + row / rows->group) + head;
            kept[0] = results[row * partial + width];
            kept[op->paged.heads] = results[row * partial + width + 1];
        }
        const f32x16 divisor = f32x16_set1(results[row * partial + width + 1]);
        for (int64_t d = 0; d < dim; d += 16) {
            const f32x16 value = f32x16_div(f32x16_load(results + row * partial + d), divisor);
            if (op->rounded.slot >= 0) /* whose head_dim is a multiple of sixteen */
                store_bfloat16(bfloat16_row(step, &op->rounded, token + row / rows->group) + column + d, value);
            else
                store_part(lattice_row(step, &op->output, token + row / rows->group) + column, d, dim, value);
        }
    }
}

void LATTICE_FN(paged_attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const int64_t *units = step->attention_units, *partials = units + step->sequences + 1;
    const int64_t unit = task / op->paged.kv_heads, kv_head = task % op->paged.kv_heads;
    int64_t sequence = 0, first_segment, end_segment;
    while (unit >= units[sequence + 1])
        sequence++;
    const int64_t part = unit - units[sequence], group = op->paged.heads / op->paged.kv_heads;
    const int64_t begin = step->cu_seqlens[sequence], tokens = step->cu_seqlens[sequence + 1] - begin;
    const int64_t dim = op->paged.head_dim, width = lattice_round_up(dim, LATTICE_PANEL), partial = lattice_partial_floats(dim);
    const int64_t task_rows_most = lattice_paged_rows(group) * group;
    float *queries = (float *)(step->scratch + thread * step->scratch_bytes);
    float *scores = queries + task_rows_most * width, *output2 = scores + LATTICE_SCORE_ROWS * LATTICE_KEY_SEGMENT;
    float *results = output2 + LATTICE_SCORE_ROWS * width; /* [row][output, maximum, sum] */
    float *wide = results + task_rows_most * partial;
    paged_rows rows = {
        .kv = &step->kv[op->paged.layer],
        .pages = step->pages + step->cu_pages[sequence],
        .page_tokens = step->page_tokens,
        .kv_head = kv_head,
        .group = group,
        .position = step->context[sequence],
        .window = op->paged.window,
        .scale = op->paged.scale,
        .scores = scores,
    };
    if (lattice_is_cut_by_keys(tokens, group)) {
        const int64_t count = tokens * group;
        lattice_segments(step->context[sequence], tokens, op->paged.window, &first_segment, &end_segment);
        results = step->partials + (partials[sequence] + (part * op->paged.kv_heads + kv_head) * count) * partial;
        if (op->input[1].slot >= 0)
            write_segment(op, step, sequence, first_segment + part, kv_head);
        gather_queries(op, step, begin, count, kv_head, queries);
        for (int64_t row = 0; row < count; row += LATTICE_SCORE_ROWS) {
            const int64_t here = count - row < LATTICE_SCORE_ROWS ? count - row : LATTICE_SCORE_ROWS;
            float *result = results + row * partial;
            attend_segment(&rows, queries + row * width, row, here, first_segment + part, result, partial, result + width,
                           result + width + 1, partial);
        }
        return;
    }
    const int64_t block = lattice_paged_rows(group), skipped = part * block;
    const int64_t block_tokens = tokens - skipped < block ? tokens - skipped : block, count = block_tokens * group;
    rows.position += skipped;
    rows.wide_keys = wide;
    rows.wide_values = wide + LATTICE_KEY_SEGMENT * dim;
    lattice_segments(rows.position, block_tokens, op->paged.window, &first_segment, &end_segment);
    attend_block(op, step, &rows, begin + skipped, count, first_segment, end_segment, queries, output2, results);
}

int64_t LATTICE_FN(paged_merge_tasks)(const lattice_op *op, const lattice_step *step)
{
    if (step->attention_units[2 * step->sequences + 1] == 0)
        return 0;
    return step->threads == 1 ? 1 : step->sequences * op->paged.kv_heads;
}

/* Merges the partials of the sequences that were cut by their keys. */
static void merge_head(const lattice_op *op, const lattice_step *step, int64_t sequence, int64_t kv_head)
{
    const int64_t *units = step->attention_units, *partials = units + step->sequences + 1;
    const int64_t group = op->paged.heads / op->paged.kv_heads, begin = step->cu_seqlens[sequence];
    const int64_t count = (step->cu_seqlens[sequence + 1] - begin) * group;
    const int64_t dim = op->paged.head_dim, width = lattice_round_up(dim, LATTICE_PANEL), partial = lattice_partial_floats(dim);
    const int64_t segments = units[sequence + 1] - units[sequence];
    if (partials[sequence + 1] == partials[sequence])
        return;
    float *first = step->partials + (partials[sequence] + kv_head * count) * partial;
    for (int64_t row = 0; row < count; row++) {
        float *result = NULL;
        for (int64_t segment = 0; segment < segments; segment++) {
            float *next = first + (segment * op->paged.kv_heads * count + row) * partial;
            if (next[width + 1] == 0.0f)
                continue;
            if (result == NULL)
                result = next;
            else
                merge_segment(result, result + width, result + width + 1, next, next[width], next[width + 1], width);
        }
        float *y = lattice_row(step, &op->output, begin + row / group) + (kv_head * group + row % group) * dim;
        const f32x16 divisor = f32x16_set1(result[width + 1]);
        for (int64_t d = 0; d < dim; d += 16)
            store_part(y, d, dim, f32x16_div(f32x16_load(result + d), divisor));
    }
}

void LATTICE_FN(paged_merge_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    int64_t first, end;
    task_rows(step->sequences * op->paged.kv_heads, task, tasks, &first, &end);
    for (int64_t i = first; i < end; i++)
        merge_head(op, step, i / op->paged.kv_heads, i % op->paged.kv_heads);
}

#endif
