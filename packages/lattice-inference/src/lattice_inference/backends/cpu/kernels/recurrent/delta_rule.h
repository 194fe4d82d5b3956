/* The gated delta rule in blocks of LATTICE_DELTA_BLOCK tokens (graph/recurrent_ops.py has the meaning).
 *
 * Shapes and layouts: S (key_dim, value_dim) and all rows of a block lie in panels of sixteen columns, as slot_layout.h says. The
 * rows of a block that a step brings are multiplied together: their keys and queries by S and by the block's keys
 * (products of gemm.h). Then they are finished one after the other, each from the rows r before it. At the end of a block S is
 * multiplied by D and gets the products of keys and rows in the order of the rows.
 *
 * No sum depends on which rows a step brings: each is one chain, over key_dim or over the rows of the block.
 *
 * A task is a value head of a sequence, or, where those are fewer than threads, a share of its panels; such tasks work on
 * copies of the keys, and the first of them keeps the new ones. Blocks that begin and end in a step stay in scratch.
 *
 * Bound by memory for one row (S is read once, and written once in a block), by multiply-adds for many.
 */
#ifndef LATTICE_DELTA_RULE_H
#define LATTICE_DELTA_RULE_H

#include "lattice/vector_math.h"
#include "linear/low_rank.h"
#include "recurrent/slot_layout.h"
#include "rows/normalize.h"

#define BLOCK LATTICE_DELTA_BLOCK
#define SMALLEST_NORMAL 0x1p-126f

#if defined(LATTICE_ISA_AVX512)
#define DELTA_PANELS 4 /* whose rows are finished side by side: eight chains */
#define FOLD_ROWS 8
#elif defined(LATTICE_ISA_AVX2)
#define DELTA_PANELS 2
#define FOLD_ROWS 4
#else
#define DELTA_PANELS 1
#define FOLD_ROWS 2
#endif

LOW_RANK_TILE(delta_fold_tile, float, vf_load, FOLD_ROWS, 1)
LOW_RANK_TILE(delta_fold_row, float, vf_load, 1, 1)

/* The shares of panels that a value head is cut into. */
LATTICE_INLINE int64_t delta_shares(const lattice_op *op, const lattice_step *step)
{
    const int64_t heads = step->sequences * op->delta.value_heads;
    const int64_t panels = lattice_delta_layout_of(op->delta.key_dim, op->delta.value_dim).panels;
    const int64_t wanted = heads >= step->threads ? 1 : lattice_divide_up(step->threads, heads);
    return wanted < panels ? wanted : panels;
}

int64_t LATTICE_FN(delta_rule_tasks)(const lattice_op *op, const lattice_step *step)
{
    return step->sequences * op->delta.value_heads * delta_shares(op, step);
}

/* log(1 + e) for e from 0 to 1: 2 atanh(s) with s = e / (2 + e), by its series. */
LATTICE_INLINE f32x16 log_of_one_plus(f32x16 e)
{
    const f32x16 s = f32x16_div(e, f32x16_add(f32x16_set1(2.0f), e)), square = f32x16_mul(s, s);
    f32x16 p = f32x16_set1(1.0f / 15.0f);
    for (int odd = 13; odd >= 3; odd -= 2)
        p = f32x16_fma(p, square, f32x16_set1(1.0f / (float)odd));
    const f32x16 twice = f32x16_add(s, s);
    return f32x16_fma(f32x16_mul(twice, square), p, twice);
}

LATTICE_INLINE f32x16 softplus(f32x16 x)
{
    const f32x16 e = f32x16_exp(f32x16_neg(f32x16_abs(x)));
    return f32x16_add(f32x16_max(f32x16_zero(), x), log_of_one_plus(e));
}

LATTICE_INLINE f32x16 without_subnormals(f32x16 x)
{
    return f32x16_select(f32x16_less(x, f32x16_set1(SMALLEST_NORMAL)), f32x16_zero(), x);
}

/* A task: panels [panel, panel + panels) of a value head. Parts of slots begin at the head, those of scratch where they say. */
typedef struct {
    const lattice_op *op;
    const lattice_step *step;
    int64_t head, key_head, panel, panels;
    int is_whole, keeps_keys;
    lattice_delta_layout layout;
    lattice_delta_scratch parts;
    float *scratch;
} delta_task;

/* The block that rows are added to; S and rows from the task's first panel on. */
typedef struct {
    const float *state;
    float *keys, *rows, *alphas;
    float decay[BLOCK] __attribute__((aligned(64))); /* d of the last row */
    float decay_of_state;                            /* its D */
} delta_block;

LATTICE_INLINE void decay_once(delta_block *block, int64_t t)
{
    const float alpha = block->alphas[t];
    for (int64_t j = 0; j < BLOCK; j += 16)
        f32x16_store(block->decay + j,
                     without_subnormals(f32x16_mul(f32x16_load(block->decay + j), f32x16_set1(alpha))));
    block->decay[t] = 1.0f;
    const float product = block->decay_of_state * alpha;
    block->decay_of_state = product < SMALLEST_NORMAL ? 0.0f : product;
}

/* x normalised to length 1 and scaled, to y; n elements. */
static void delta_normalize(const float *x, float *y, int64_t n, float scale)
{
    f32x16 squares = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 value = load_part(x, i, n);
        squares = f32x16_fma(value, value, squares);
    }
    const f32x16 inverse = f32x16_set1(1.0f / square_root(f32x16_fold_add(squares) + 1e-6f)), by = f32x16_set1(scale);
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 normal = f32x16_mul(load_part(x, i, n), inverse);
        store_part(y, i, n, scale == 1.0f ? normal : f32x16_mul(normal, by));
    }
}

/* Keys and queries of rows [row, row + count) of the step, which are the rows from t on of the block, to scratch; the keys also
 * to the block, and alphas; betas to scratch. */
static void delta_prepare(const delta_task *task, delta_block *block, int64_t row, int64_t count, int64_t t)
{
    const lattice_op *op = task->op;
    const int64_t dim = op->delta.key_dim;
    float *keys = task->scratch, *queries = keys + count * dim;
    float a[BLOCK] = {0}, b[BLOCK] = {0}, alphas[BLOCK];
    const float scale = 1.0f / square_root((float)dim);
    for (int64_t i = 0; i < count; i++) {
        const float *x = lattice_row(task->step, &op->input[0], row + i) + task->key_head * dim;
        delta_normalize(x + op->delta.key_heads * dim, keys + i * dim, dim, 1.0f);
        delta_normalize(x, queries + i * dim, dim, scale);
        float *panel = block->keys + (t + i) / 16 * dim * 16 + (t + i) % 16;
        for (int64_t k = 0; k < dim; k++)
            panel[k * 16] = keys[i * dim + k];
        a[i] = lattice_row(task->step, &op->input[1], row + i)[task->head];
        b[i] = lattice_row(task->step, &op->input[2], row + i)[task->head];
    }
    const f32x16 bias = f32x16_set1(op->delta.dt_bias[task->head]), decay = f32x16_set1(op->delta.decay[task->head]);
    for (int64_t i = 0; i < count; i += 16) {
        const f32x16 gate = f32x16_mul(decay, softplus(f32x16_add(f32x16_load(a + i), bias)));
        f32x16_store(alphas + i, without_subnormals(f32x16_exp(gate)));
        const f32x16 one = f32x16_set1(1.0f), share = f32x16_exp(f32x16_neg(f32x16_load(b + i)));
        f32x16_store(task->scratch + task->parts.betas + i, f32x16_div(one, f32x16_add(one, share)));
    }
    memcpy(block->alphas + t, alphas, (size_t)count * sizeof(float));
}

/* Finishes row t of the block in `panels` panels. of_key, of_query: its products with S; key, query: with the keys of the block,
 * times d; rows: the block's rows from the first of these panels on; columns: of v and y that are left from there on. */
LATTICE_INLINE void delta_row(int panels, const delta_block *block, int64_t t, const float *of_key, const float *of_query,
                              const float *key, const float *query, float beta, float *rows, const float *v, float *y,
                              int64_t columns)
{
    const f32x16 decay = f32x16_set1(block->decay_of_state);
    f32x16 u[DELTA_PANELS], o[DELTA_PANELS];
    LATTICE_UNROLL for (int p = 0; p < panels; p++)
    {
        u[p] = f32x16_mul(decay, f32x16_load(of_key + p * 16));
        o[p] = f32x16_mul(decay, f32x16_load(of_query + p * 16));
    }
    for (int64_t j = 0; j < t; j++) {
        const f32x16 by_key = f32x16_set1(key[j]), by_query = f32x16_set1(query[j]);
        LATTICE_UNROLL for (int p = 0; p < panels; p++)
        {
            const f32x16 r = f32x16_load(rows + (p * BLOCK + j) * 16);
            u[p] = f32x16_fma(by_key, r, u[p]);
            o[p] = f32x16_fma(by_query, r, o[p]);
        }
    }
    LATTICE_UNROLL for (int p = 0; p < panels; p++)
    {
        const f32x16 r = f32x16_mul(f32x16_set1(beta), f32x16_sub(load_part(v, p * 16, columns), u[p]));
        f32x16_store(rows + (p * BLOCK + t) * 16, r);
        store_part(y, p * 16, columns, f32x16_fma(f32x16_set1(query[t]), r, o[p]));
    }
}

/* Adds rows [row, row + count) of the step to the block, from its row t on. */
static void delta_rows(const delta_task *task, delta_block *block, int64_t row, int64_t count, int64_t t)
{
    const lattice_op *op = task->op;
    const int64_t dim = op->delta.key_dim, width = task->panels * 16;
    float *keys = task->scratch, *dots = keys + task->parts.dots, *products = keys + task->parts.products;
    const float *betas = keys + task->parts.betas;
    delta_prepare(task, block, row, count, t);
    const lattice_output to_dots = {.y = dots, .stride = BLOCK, .columns = BLOCK};
    const lattice_output to_products = {.y = products, .stride = width, .columns = width};
    gemm_float32(keys, dim, 2 * count, block->keys, dim * 16, lattice_divide_up(t + count, 16), dim, &to_dots, 0);
    gemm_float32(keys, dim, 2 * count, block->state, dim * 16, task->panels, dim, &to_products, count == 1);
    for (int64_t i = 0; i < count; i++) {
        float *key = dots + i * BLOCK, *query = dots + (count + i) * BLOCK;
        decay_once(block, t + i);
        for (int64_t j = 0; j <= t + i; j += 16) {
            const f32x16 decay = f32x16_load(block->decay + j);
            f32x16_store(key + j, f32x16_mul(decay, f32x16_load(key + j)));
            f32x16_store(query + j, f32x16_mul(decay, f32x16_load(query + j)));
        }
        const float *of_key = products + i * width, *of_query = products + (count + i) * width;
        const int64_t column = task->panel * 16, values = task->head * op->delta.value_dim + column;
        const float *v = lattice_row(task->step, &op->input[0], row + i) + 2 * op->delta.key_heads * dim + values;
        float *y = lattice_row(task->step, &op->output, row + i) + values;
        int64_t p = 0;
        for (; p + DELTA_PANELS <= task->panels; p += DELTA_PANELS)
            delta_row(DELTA_PANELS, block, t + i, of_key + p * 16, of_query + p * 16, key, query, betas[i],
                      block->rows + p * BLOCK * 16, v + p * 16, y + p * 16, op->delta.value_dim - column - p * 16);
        for (; p < task->panels; p++)
            delta_row(1, block, t + i, of_key + p * 16, of_query + p * 16, key, query, betas[i], block->rows + p * BLOCK * 16,
                      v + p * 16, y + p * 16, op->delta.value_dim - column - p * 16);
    }
}

/* S after a whole block, to `next`, which may be the block's own. */
static void delta_fold(const delta_task *task, const delta_block *block, float *next)
{
    const int64_t dim = task->op->delta.key_dim;
    float *factors = task->scratch + task->parts.factors;
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < BLOCK; j += 16)
            f32x16_store(factors + i * BLOCK + j,
                         f32x16_mul(f32x16_load(block->decay + j), f32x16_load(block->keys + (j * dim + i * 16))));
    const f32x16 decay = f32x16_set1(block->decay_of_state);
    for (int64_t i = 0; i < task->panels * dim; i++)
        f32x16_store(next + i * 16, f32x16_mul(decay, f32x16_load(block->state + i * 16)));
    for (int64_t p = 0; p < task->panels; p++) {
        const float *rows = block->rows + p * BLOCK * 16;
        float *state = next + p * dim * 16, *y[FOLD_ROWS];
        int64_t i = 0;
        for (; i + FOLD_ROWS <= dim; i += FOLD_ROWS) {
            for (int r = 0; r < FOLD_ROWS; r++)
                y[r] = state + (i + r) * 16;
            delta_fold_tile(factors + i * BLOCK, BLOCK, BLOCK, rows, y, 0);
        }
        for (; i < dim; i++) {
            y[0] = state + i * 16;
            delta_fold_row(factors + i * BLOCK, BLOCK, BLOCK, rows, y, 0);
        }
    }
}

/* Takes the first t keys and alphas of a block from a slot to scratch: other tasks may be writing those behind them. */
static void delta_copy_keys(const delta_task *task, const float *slot, delta_block *block, int64_t t)
{
    const int64_t dim = task->op->delta.key_dim;
    for (int64_t first = 0; first < t; first += 16)
        for (int64_t i = 0; i < dim; i++)
            memcpy(block->keys + first * dim + i * 16, slot + task->layout.keys + first * dim + i * 16,
                   (size_t)(t - first < 16 ? t - first : 16) * sizeof(float));
    memcpy(block->alphas, slot + task->layout.alphas, (size_t)t * sizeof(float));
}

/* Keeps keys and alphas [t, end) of a block, from scratch, in a slot. */
static void delta_keep_keys(const delta_task *task, const delta_block *block, float *slot, int64_t t, int64_t end)
{
    const int64_t dim = task->op->delta.key_dim;
    for (int64_t j = t; j < end; j++)
        for (int64_t i = 0; i < dim; i++)
            slot[task->layout.keys + (j / 16 * dim + i) * 16 + j % 16] = block->keys[(j / 16 * dim + i) * 16 + j % 16];
    memcpy(slot + task->layout.alphas + t, block->alphas + t, (size_t)(end - t) * sizeof(float));
}

/* Runs `count` rows of a sequence after `context`, which begin at `row` of the step; slots from the head on. */
static void delta_sequence(const delta_task *task, int64_t row, int64_t count, int64_t context, float *read, float *write)
{
    const int64_t dim = task->op->delta.key_dim, end = context + count, last = end - end % BLOCK;
    const int64_t state = task->panel * dim * 16, rows = task->layout.rows + task->panel * BLOCK * 16;
    delta_block block = {.state = read + state};
    if (context == 0)
        memset(read + state, 0, (size_t)(task->panels * dim * 16) * sizeof(float));
    for (int64_t position = context, here; position < end; position += here, row += here) {
        const int64_t t = position % BLOCK;
        here = end - position < BLOCK - t ? end - position : BLOCK - t;
        float *slot = position == context ? read : position == last ? write : NULL;
        const int in_place = slot != NULL && task->is_whole;
        block.keys = in_place ? slot + task->layout.keys : task->scratch + task->parts.keys;
        block.alphas = in_place ? slot + task->layout.alphas : task->scratch + task->parts.alphas;
        block.rows = slot != NULL ? slot + rows : task->scratch + task->parts.rows;
        block.decay_of_state = 1.0f;
        memset(block.decay, 0, sizeof(block.decay));
        if (t > 0 && !in_place)
            delta_copy_keys(task, read, &block, t);
        for (int64_t i = 0; i < t; i++)
            decay_once(&block, i);
        delta_rows(task, &block, row, here, t);
        if (slot != NULL && !in_place && task->keeps_keys)
            delta_keep_keys(task, &block, slot, t, t + here);
        if (t + here == BLOCK) {
            float *next = position + here == last ? write + state : task->scratch + task->parts.state;
            delta_fold(task, &block, next);
            block.state = next;
        }
    }
}

void LATTICE_FN(delta_rule_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const int64_t shares = delta_shares(op, step), unit = task / shares, sequence = unit / op->delta.value_heads;
    delta_task here = {
        .op = op,
        .step = step,
        .head = unit % op->delta.value_heads,
        .is_whole = shares == 1,
        .keeps_keys = task % shares == 0,
        .layout = lattice_delta_layout_of(op->delta.key_dim, op->delta.value_dim),
        .parts = lattice_delta_scratch_of(op->delta.key_dim, op->delta.value_dim),
        .scratch = (float *)(step->scratch + thread * step->scratch_bytes),
    };
    here.key_head = op->delta.interleaved ? here.head % op->delta.key_heads
                                          : here.head / (op->delta.value_heads / op->delta.key_heads);
    int64_t end;
    task_rows(here.layout.panels, task % shares, shares, &here.panel, &end);
    here.panels = end - here.panel;
    float *kept = step->recurrent[op->delta.state] + here.head * here.layout.floats;
    const int64_t row = step->cu_seqlens[sequence];
    delta_sequence(&here, row, step->cu_seqlens[sequence + 1] - row, step->context[sequence],
                   kept + step->read_slots[sequence] * step->slot_floats,
                   kept + step->write_slots[sequence] * step->slot_floats);
}

#undef BLOCK

#endif
