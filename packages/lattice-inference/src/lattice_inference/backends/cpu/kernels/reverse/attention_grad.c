/* The reverse of attention, both masks; of one instruction set: this file is compiled once for each.
 *
 *     p[j] = exp(scale (q[i] . k[j]) - M) / l       e[j] = dy[i] . v[j]       z[j] = p[j] (e[j] - D)      D = dy[i] . y[i]
 *     dq[i] = scale (sum over j of z[j] k[j])
 *     dk[j] = scale (sum over heads of the key head, and rows i, of z[j] q[i])       dv[j] = the same sum of p[j] dy[i]
 *
 * M and l come from the forward pass. graph/reverse_ops.py, op "attention_grad", is the definition. Two kernels compute p and e
 * again, 64 query rows by 64 keys at a time in scratch, so that T x T numbers never exist:
 *
 *   attention_grad        a task is a head of a block of query rows, over all the keys that they see: dq
 *   attention_keys_grad   a task is a key head of a block of keys, over all the query rows that see them: dk, dv
 *
 * Numeric design: scores and e are chains over the head's dimensions, dq, dk and dv chains over keys or rows in ascending order,
 * to which what a row does not see adds nothing. No cut shows in a bit.
 */
#include "kernel_functions.h"

#include "rows/lane_panels.h"
#include "attention/query_blocks.h"
#include "lattice/vector_math.h"
#include "reverse/products.h"

#define MOST_QUERIES LATTICE_GRAD_QUERIES
#define MOST_KEYS LATTICE_GRAD_KEYS

/* Where the parts of a thread's scratch lie: scratch.h has their sizes. */
typedef struct {
    float *keys, *values; /* panels [MOST_KEYS / 16][dim][16] */
    float *p, *z;         /* [MOST_QUERIES][MOST_KEYS] */
    float *sums, *others; /* [64][width] */
} grad_scratch;

LATTICE_INLINE grad_scratch scratch_of(const lattice_op *op, const lattice_step *step, int thread)
{
    const int64_t dim = op->attention_grad->head_dim, width = lattice_round_up(dim, LATTICE_PANEL);
    grad_scratch scratch = {.keys = (float *)(step->scratch + thread * step->scratch_bytes)};
    scratch.values = scratch.keys + MOST_KEYS * dim;
    scratch.p = scratch.values + MOST_KEYS * dim;
    scratch.z = scratch.p + MOST_QUERIES * MOST_KEYS;
    scratch.sums = scratch.z + MOST_QUERIES * MOST_KEYS;
    scratch.others = scratch.sums + MOST_KEYS * width;
    return scratch;
}

/* The keys [first, end) of its sequence that the row at position `row` of `length` sees. */
LATTICE_INLINE void seen_keys(const lattice_attention_grad_record *of, int64_t row, int64_t length, int64_t *first, int64_t *end)
{
    *first = of->window > 0 && row + 1 > of->window ? row + 1 - of->window : 0;
    *end = of->is_causal ? row + 1 : length;
}

/* fold16 of a * b */
LATTICE_INLINE float inner_product(const float *a, const float *b, int64_t n)
{
    f32x16 sum = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16)
        sum = f32x16_fma(load_part(a, i, n), load_part(b, i, n), sum);
    return f32x16_fold_add(sum);
}

/* p and z of `rows` query rows from `row` on (of the batch), which lie in the sequence [begin, end), of one head, by `count` keys
 * from position `key` on, whose panels are ready. Pairs that do not see each other get 0. */
static void meet(const lattice_op *op, const lattice_step *step, const grad_scratch *scratch, int64_t begin, int64_t end,
                 int64_t head, int64_t row, int64_t rows, int64_t key, int64_t count)
{
    const lattice_attention_grad_record *of = op->attention_grad;
    const int64_t dim = of->head_dim, column = head * dim, panels = lattice_divide_up(count, LATTICE_PANEL);
    const lattice_output to_p = {.y = scratch->p, .stride = MOST_KEYS, .columns = panels * LATTICE_PANEL};
    const lattice_output to_z = {.y = scratch->z, .stride = MOST_KEYS, .columns = panels * LATTICE_PANEL};
    LATTICE_FN(lattice_multiply_panels)(lattice_row(step, &op->input[0], row) + column, op->input[0].stride, rows, scratch->keys,
                                        dim * LATTICE_PANEL, panels, dim, &to_p);
    LATTICE_FN(lattice_multiply_panels)(lattice_row(step, &of->dy, row) + column, of->dy.stride, rows, scratch->values,
                                        dim * LATTICE_PANEL, panels, dim, &to_z);
    const f32x16 scale = f32x16_set1(of->scale);
    for (int64_t r = 0; r < rows; r++) {
        const float *sums = lattice_row(step, &of->sums, row + r);
        const f32x16 most = f32x16_set1(sums[head]);
        const f32x16 inverse = f32x16_div(f32x16_set1(1.0f), f32x16_set1(sums[of->heads + head]));
        const f32x16 d = f32x16_set1(inner_product(lattice_row(step, &of->dy, row + r) + column,
                                                   lattice_row(step, &of->y, row + r) + column, dim));
        float *p = scratch->p + r * MOST_KEYS, *z = scratch->z + r * MOST_KEYS;
        int64_t first_seen, end_seen;
        seen_keys(of, row + r - begin, end - begin, &first_seen, &end_seen);
        first_seen = first_seen > key ? first_seen - key : 0;
        end_seen = end_seen > key ? (end_seen - key < count ? end_seen - key : count) : 0;
        if (first_seen >= end_seen) {
            memset(p, 0, MOST_KEYS * sizeof(float));
            memset(z, 0, MOST_KEYS * sizeof(float));
            continue;
        }
        for (int64_t j = first_seen / 16 * 16; j < end_seen; j += 16) {
            const f32x16 score = f32x16_sub(f32x16_mul(f32x16_load(p + j), scale), most);
            const f32x16 share = f32x16_mul(f32x16_exp(score), inverse);
            f32x16_store(p + j, share);
            f32x16_store(z + j, f32x16_mul(share, f32x16_sub(f32x16_load(z + j), d)));
        }
        memset(p, 0, (size_t)first_seen * sizeof(float));
        memset(z, 0, (size_t)first_seen * sizeof(float));
        memset(p + end_seen, 0, (size_t)(MOST_KEYS - end_seen) * sizeof(float));
        memset(z + end_seen, 0, (size_t)(MOST_KEYS - end_seen) * sizeof(float));
    }
}

LATTICE_INLINE void lay_out_keys(const lattice_op *op, const lattice_step *step, const grad_scratch *scratch, int64_t row,
                                 int64_t column, int64_t count)
{
    const int64_t dim = op->attention_grad->head_dim;
    pack_rows_in_lanes(lattice_row(step, &op->input[1], row) + column, op->input[1].stride, count, dim, scratch->keys);
    pack_rows_in_lanes(lattice_row(step, &op->input[2], row) + column, op->input[2].stride, count, dim, scratch->values);
}

/* y = scale x of rows of a head. */
static void store_scaled(const lattice_step *step, const lattice_view *y, int64_t row, int64_t column, int64_t rows, float scale,
                         const float *x, int64_t dim)
{
    const int64_t width = lattice_round_up(dim, LATTICE_PANEL);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < dim; d += 16)
            store_part(lattice_row(step, y, row + r) + column, d, dim,
                       f32x16_mul(f32x16_set1(scale), load_part(x + r * width, d, dim)));
}

int64_t LATTICE_FN(attention_grad_tasks)(const lattice_op *op, const lattice_step *step)
{
    return step->cu_query_blocks[step->sequences] * op->attention_grad->heads;
}

void LATTICE_FN(attention_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const lattice_attention_grad_record *of = op->attention_grad;
    const query_block block = query_block_of(step, task / of->heads);
    const int64_t head = task % of->heads, dim = of->head_dim, width = lattice_round_up(dim, LATTICE_PANEL);
    const int64_t kv_column = head / (of->heads / of->kv_heads) * dim;
    const grad_scratch scratch = scratch_of(op, step, thread);
    for (int64_t skipped = 0; skipped < block.rows; skipped += MOST_QUERIES) {
        const int64_t row = block.first + skipped, left = block.rows - skipped, rows = left < MOST_QUERIES ? left : MOST_QUERIES;
        int64_t first, end, unused;
        seen_keys(of, row - block.begin, block.end - block.begin, &first, &unused);
        seen_keys(of, row + rows - 1 - block.begin, block.end - block.begin, &unused, &end);
        memset(scratch.sums, 0, (size_t)(rows * width) * sizeof(float));
        for (int64_t key = first / LATTICE_PANEL * LATTICE_PANEL; key < end; key += MOST_KEYS) {
            const int64_t count = end - key < MOST_KEYS ? end - key : MOST_KEYS;
            lay_out_keys(op, step, &scratch, block.begin + key, kv_column, count);
            meet(op, step, &scratch, block.begin, block.end, head, row, rows, key, count);
            const lattice_product product = {.a = scratch.z, .a_row = MOST_KEYS, .a_step = 1,
                                             .b = lattice_row(step, &op->input[1], block.begin + key) + kv_column,
                                             .b_step = op->input[1].stride, .depth = count, .c = scratch.sums, .c_stride = width};
            add_product(&product, rows, dim);
        }
        store_scaled(step, &op->output, row, head * dim, rows, of->scale, scratch.sums, dim);
    }
}

int64_t LATTICE_FN(attention_keys_grad_tasks)(const lattice_op *op, const lattice_step *step)
{
    return step->cu_query_blocks[step->sequences] * op->attention_grad->kv_heads;
}

void LATTICE_FN(attention_keys_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const lattice_attention_grad_record *of = op->attention_grad;
    const query_block block = query_block_of(step, task / of->kv_heads); /* of keys here */
    const int64_t kv_head = task % of->kv_heads, group = of->heads / of->kv_heads, length = block.end - block.begin;
    const int64_t dim = of->head_dim, width = lattice_round_up(dim, LATTICE_PANEL);
    const grad_scratch scratch = scratch_of(op, step, thread);
    for (int64_t skipped = 0; skipped < block.rows; skipped += MOST_KEYS) {
        const int64_t left = block.rows - skipped, count = left < MOST_KEYS ? left : MOST_KEYS;
        const int64_t key = block.first + skipped - block.begin;
        const int64_t first = of->is_causal ? key : 0; /* the rows that see one of the keys */
        const int64_t last = of->window > 0 && key + count - 1 + of->window < length ? key + count - 1 + of->window : length;
        memset(scratch.sums, 0, (size_t)(count * width) * sizeof(float));
        memset(scratch.others, 0, (size_t)(count * width) * sizeof(float));
        lay_out_keys(op, step, &scratch, block.begin + key, kv_head * dim, count);
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int64_t i = first; i < last; i += MOST_QUERIES) {
                const int64_t rows = last - i < MOST_QUERIES ? last - i : MOST_QUERIES, row = block.begin + i;
                meet(op, step, &scratch, block.begin, block.end, head, row, rows, key, count);
                lattice_product product = {.a = scratch.z, .a_row = 1, .a_step = MOST_KEYS,
                                           .b = lattice_row(step, &op->input[0], row) + head * dim, .b_step = op->input[0].stride,
                                           .depth = rows, .c = scratch.sums, .c_stride = width};
                add_product(&product, count, dim);
                product.a = scratch.p;
                product.b = lattice_row(step, &of->dy, row) + head * dim;
                product.b_step = of->dy.stride;
                product.c = scratch.others;
                add_product(&product, count, dim);
            }
        store_scaled(step, &of->dk, block.begin + key, kv_head * dim, count, of->scale, scratch.sums, dim);
        store_scaled(step, &of->dv, block.begin + key, kv_head * dim, count, 1.0f, scratch.others, dim);
    }
}
