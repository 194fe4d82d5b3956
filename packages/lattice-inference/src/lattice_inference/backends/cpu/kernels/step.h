/* A step: a compiled program's ops as C structs, and what a batch gives them.
 *
 * The CPU backend writes the ops once, when it compiles a program; `lattice_step_run` walks them for every batch inside one
 * region of the thread pool. A kernel splits its op into tasks by the shape of the batch; a task writes only its own part
 * of the output, so the number of threads and the order of tasks never show in a result.
 */
#ifndef LATTICE_STEP_H
#define LATTICE_STEP_H

#include <stdint.h>

#include "enumerations.h"
#include "kernel_list.h"
#include "recurrent/slot_layout.h"
#include "tile_table.h"

#define LATTICE_PANEL 16        /* output columns of a weight panel, panels being [k][16] */
#define LATTICE_KEY_SEGMENT 512 /* graph/ops.py: KEY_SEGMENT */
#define LATTICE_SCORE_ROWS 24   /* rows of paged attention whose scores lie in cache together: whole tiles on every level */
#define LATTICE_QUERY_COLUMNS 32 /* queries of a pass where they lie in the lanes of vectors */
#define LATTICE_WIDE_PAGE 64     /* tokens of a page that a task of paged attention widens for its rows */
#define LATTICE_PAGED_ROWS 192  /* rows times heads of a group in one task of paged attention */
#define LATTICE_AMX_BYTES (768 * 1024) /* of rows that a task multiplies by AMX */
#define LATTICE_MAX_HEAD_DIM 1024 /* of keys and values in pages */
#define LATTICE_MOST_TAPS 16 /* graph/recurrent_ops.py: MOST_TAPS */
#define LATTICE_TURNED_DEPTH 1024 /* outputs of a linear whose weights a task of reverse/input_grad.c turns at once */
#define LATTICE_TURNED_COLUMNS 128 /* and inputs of it */
#define LATTICE_FACTOR_ROWS 64     /* of a task of reverse/factors.c */
#define LATTICE_FACTOR_COLUMNS 512 /* that it takes at once */
#define LATTICE_FACTOR_SHARE 64    /* columns of A, or rows of B, whose gradient is a task */
#define LATTICE_LOSS_COLUMNS 256   /* of logits that exist at once: reverse/cross_entropy.c */
#define LATTICE_LOSS_ROWS 128      /* of its tasks */
#define LATTICE_GRAD_QUERIES 64    /* query rows and keys that meet at once in reverse/attention_grad.c */
#define LATTICE_GRAD_KEYS 64
#define LATTICE_MAX_SLOTS (1 << 16) /* a handful, but for programs that are observed or trained */
#define LATTICE_FEW_SLOTS 64 /* so many a step holds itself, without asking for memory */
#define LATTICE_LOW_RANK_ALONE 2048 /* vectors of multiply-adds of adapters that one thread takes for itself */
#define LATTICE_BLOCK_ROWS 56   /* that a task of a linear takes at least: a few whole tiles on every level */

/* Rows of floats in a slot: element (row, i) lies at slot + row * stride + column + i. slot < 0: no operand. */
typedef struct {
    int32_t slot;
    int32_t stride;
    int64_t column;
} lattice_view;

/* What a kernel needs beside the rows that it reads and writes: a record for each kind, which kernel_list.h names.
 *
 * Weights lie as LATTICE_WEIGHT_* says. A range is low and high that rows are quantized within; NULL: each row within its own. */
typedef struct {
    int32_t ids; /* LATTICE_IDS_* */
    int32_t weight_type;
    int32_t packed; /* the table lies in panels, as a linear's weight */
    const void *table;
    lattice_view residual;
} lattice_embed_record;

typedef struct {
    int32_t weight_type;
    int32_t activation; /* with one there is no residual */
    const void *weight; /* panels */
    const float *bias;  /* may be NULL */
    lattice_view residual;
} lattice_linear_record;

typedef struct {
    float epsilon;
    int32_t heads; /* parts of a row that a root mean square norm takes one by one; 0 being 1 */
    const float *weight, *bias; /* of a layer norm only: bias, and quantized, where its rows are written as integers too */
    lattice_view quantized;
    const float *range;
} lattice_norm_record;

typedef struct {
    const float *range;
} lattice_quantize_record;

typedef struct {
    int32_t heads, kv_heads, head_dim;
    float scale;
    lattice_view sums; /* where the maxima and sums of every head go, if a reverse pass reads them; slot < 0: nowhere */
} lattice_attention_record;

typedef struct {
    int32_t heads, kv_heads, head_dim;
    float scale;
    int32_t layer, window; /* window 0: no limit; the layer is of pages only, not of causal attention over packed rows */
    lattice_view sums;     /* as of attention, of causal attention only */
} lattice_paged_record;

typedef struct {
    int32_t layer, kv_heads;
    int32_t attention_heads; /* of the attention that was given what is new; 0: none was */
} lattice_kv_write_record;

typedef struct {
    const float *frequencies;
    float scale;
} lattice_angles_record;

typedef struct {
    int32_t heads, head_dim;
    int32_t width;   /* of the dimensions that are turned */
    int32_t pairing; /* LATTICE_PAIRING_* */
} lattice_rope_record;

/* Of an op of a mixture of experts: where its table of routes lies (experts/routes.h); slot < 0: it is none. */
typedef struct {
    lattice_view table;
    int32_t count, chosen; /* experts, and those that a row goes through */
    int32_t normalized;    /* the shares of those are divided by their sum */
    int64_t matrix_bytes;  /* of a linear over grouped rows, from one expert's weight to the next; else 0 */
} lattice_experts;

#define LATTICE_ROWS_PART (-1) /* in place of LATTICE_ROWS_*: the op is a part of one, of `part_rows` rows */

typedef struct {
    int32_t group; /* which of an adapter's groups adds to these columns */
} lattice_low_rank_record;

/* Of an op that reads or changes the factors of a trained adapter: see reverse/factors.c. */
typedef struct {
    int32_t site;   /* in the step's list */
    int32_t number; /* that its draws of dropout have */
    int32_t rank;
    float scale;
    lattice_view input; /* a fourth input: x of low_rank_grad */
} lattice_factors_record;

/* Of the reverse of attention, which has more operands than an op: see reverse/attention_grad.c. */
typedef struct {
    int32_t heads, kv_heads, head_dim;
    float scale;
    int32_t is_causal, window;
    lattice_view y, sums, dy, dk, dv;
} lattice_attention_grad_record;

/* Of a loss over a linear's outputs: see reverse/cross_entropy.c. */
typedef struct {
    int32_t weight_type;
    const void *weight; /* panels */
    int64_t outputs;
    lattice_view dx; /* slot < 0: no gradient is wanted */
} lattice_loss_record;

typedef struct {
    int32_t state, taps;
    const float *weight; /* [taps][columns] */
} lattice_short_conv_record;

typedef struct {
    int32_t state, key_heads, value_heads, key_dim, value_dim;
    int32_t interleaved; /* value head h uses key head h % key_heads; else h / (value_heads / key_heads) */
    const float *dt_bias, *decay;
} lattice_delta_record;

typedef struct {
    int32_t kernel;
    int32_t rows;   /* LATTICE_ROWS_* of the output */
    int32_t pairs;  /* 1: two rows of the input, one after the other, are added up to one */
    int32_t each;   /* rows for one row of the step: of rows that are sent to experts the chosen ones, else 1 */
    int32_t number; /* of the op in its program */
    int64_t part_rows;
    lattice_experts experts;
    lattice_view input[3];
    lattice_view output;
    lattice_view rounded; /* where rows are written as bfloat16: by a norm besides the output, by others in its place */
    int64_t k;            /* columns read */
    int64_t n;            /* columns written */
    union {
        lattice_embed_record embed;
        lattice_linear_record linear;
        lattice_norm_record norm;
        lattice_quantize_record quantize;
        lattice_attention_record attention;
        lattice_paged_record paged;
        lattice_kv_write_record kv_write;
        lattice_angles_record angles;
        lattice_rope_record rope;
        lattice_low_rank_record low_rank;
        lattice_short_conv_record short_conv;
        lattice_delta_record delta;
        lattice_factors_record factors;
        lattice_loss_record loss;
        const lattice_attention_grad_record *attention_grad; /* the plan's */
        int32_t input_rows; /* which of the step's inputs */
        int32_t activation; /* LATTICE_ACTIVATION_* */
        int32_t pool;       /* LATTICE_POOL_* */
    };
} lattice_op;

/* What a layer keeps in a page, page_stride bytes from one page to the next: keys [kv_head][dim][token], values
 * [kv_head][token][width], width being head_dim rounded up to 16, and for int8 the scale of every vector, [kv_head][token]. */
typedef struct {
    char *keys, *values, *key_scales, *value_scales; /* in page 0 */
    int64_t page_stride;
    int32_t type; /* LATTICE_KV_* */
    int32_t kv_heads, head_dim, width;
} lattice_kv_layer;

/* Bytes of an element of keys or values. */
static inline int64_t lattice_kv_bytes(int type)
{
#define LATTICE_KV_BYTES(id, name, bytes)                                                                              \
    if (type == id)                                                                                                    \
        return bytes;
    LATTICE_KV_TYPES(LATTICE_KV_BYTES)
#undef LATTICE_KV_BYTES
    __builtin_unreachable();
}

/* What an adapter adds to one linear: see linear/low_rank.h. */
typedef struct {
    const void *b;           /* panels [columns / 16][rank][16] */
    int64_t rank;
    int64_t panel;           /* where its A begins among the group's panels, and its values in a row of them */
    int64_t column, columns; /* of the rows that are changed */
    float scale;
} lattice_low_rank_part;

/* What an adapter adds to the linears that one op covers, in the order of their columns; without parts nothing. */
typedef struct {
    const void *a; /* panels [panels][k][16]: those of each part after those of the one before */
    const lattice_low_rank_part *parts;
    int64_t panels, column_panels; /* of all parts, of A and of the columns */
    int64_t work;                  /* vectors of multiply-adds of a row */
    int32_t part_count;
    int32_t weight_type;           /* of A and of every B: float32, bfloat16 or float16 */
} lattice_low_rank_group;

/* The adapters of a step. Rows of adapter i are rows[kind][bounds[kind][i]] to rows[kind][bounds[kind][i + 1] - 1], ascending,
 * by LATTICE_ROWS_*. */
typedef struct {
    int64_t count;
    const lattice_low_rank_group *const *groups; /* of each adapter */
    const int32_t *rows[LATTICE_ROWS_COUNT], *bounds[LATTICE_ROWS_COUNT];
} lattice_step_adapters;

/* Random draws of a step, by reverse/draws.h: dropout, or noise. */
typedef struct {
    int32_t is_on;
    uint64_t seed, step;
    uint32_t threshold; /* words below it drop their element; the others multiply theirs by the factor */
    float factor;
    double alpha; /* of noise */
} lattice_draws;

/* A trained adapter's factors and the sums of their gradients: A [rank][k], B [n][rank]. */
typedef struct {
    const float *a, *b;
    float *da, *db;
} lattice_site;

/* What a step of a program for training has besides. */
typedef struct {
    const lattice_site *sites;
    const int32_t *targets;       /* [logit_count] */
    const float *target_weights;  /* [logit_count] */
    lattice_draws dropout, noise;
} lattice_training;

typedef struct {
    int64_t serial; /* another one for each run of a program in this process */
    int64_t tokens, sequences, max_seqlen, logit_count;
    const int32_t *ids[LATTICE_IDS_COUNT]; /* by LATTICE_IDS_* */
    const int32_t *cu_seqlens;
    const int32_t *cu_query_blocks; /* [sequences + 1]: blocks of query rows before each sequence */
    const int32_t *logit_rows;      /* [logit_count] */
    const lattice_tile_sizes *sizes;
    /* Of programs that keep keys and values: */
    const lattice_kv_layer *kv;
    int64_t page_tokens;    /* 16, 32 or 64 */
    const int32_t *context; /* [sequences]: tokens in the pages before this step */
    const int32_t *pages, *cu_pages; /* the pages of sequence b are pages[cu_pages[b]] to pages[cu_pages[b + 1] - 1] */
    int64_t *attention_units;        /* [2][sequences + 1]: see paged_attention.h */
    float *partials;                 /* what parts of a sequence's keys give, until they are merged */
    /* Of programs with recurrent layers: what slot 0 holds of each of their states (recurrent/slot_layout.h), the floats from
     * one slot to the next, and the slots of each sequence; the one to write is used if the end of a block is crossed. */
    float *const *recurrent;
    int64_t slot_floats;
    const int32_t *read_slots, *write_slots;
    lattice_step_adapters adapters;
    const float *const *inputs;       /* of input_rows */
    const lattice_training *training; /* of programs for training only */
    float **slots; /* [the plan's slots] */
    char *scratch;         /* `threads` stretches of scratch_bytes */
    int64_t scratch_bytes; /* a multiple of 64 */
    int threads;
    int dot;   /* whether integer kernels use the level's dot product instruction */
    int amx;   /* whether kernels use AMX, where they have a body for it */
    int bfloat16; /* LATTICE_BFLOAT16_*: what multiplies rows of bfloat16 */
} lattice_step;

typedef struct {
    /* how many tasks the op makes for this step */
    int64_t (*tasks)(const lattice_op *op, const lattice_step *step);
    void (*run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread);
} lattice_kernel;

/* What one instruction set offers. */
typedef struct {
    lattice_kernel kernels[LATTICE_KERNEL_COUNT];
    void (*elementwise)(int function, const float *x, float *y, int64_t count);
    uint32_t dot_feature;   /* LATTICE_FEATURE_* of the dot product instruction that this level has a body for, or 0 */
    uint32_t amx_features; /* LATTICE_FEATURE_* of the kinds of AMX that this level has bodies for, all needed, or 0 */
    uint32_t bfloat16_dot_feature, bfloat16_amx_feature; /* the same of bodies for bfloat16 */
} lattice_kernel_table;

static inline int64_t lattice_rows(const lattice_op *op, const lattice_step *step)
{
    if (op->rows == LATTICE_ROWS_PART)
        return op->part_rows;
    return (op->rows == LATTICE_ROWS_TOKENS      ? step->tokens
            : op->rows == LATTICE_ROWS_SEQUENCES ? step->sequences
                                                 : step->logit_count) *
           op->each
           << op->pairs;
}

static inline float *lattice_row(const lattice_step *step, const lattice_view *view, int64_t row)
{
    return step->slots[view->slot] + row * view->stride + view->column;
}

static inline int64_t lattice_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t lattice_round_up(int64_t a, int64_t b)
{
    return lattice_divide_up(a, b) * b;
}

/* Fills `blocks` [sequences + 1] with how many blocks of query rows stand before each sequence, and hands them to the step. */
static inline void lattice_count_query_blocks(lattice_step *step, int32_t *blocks)
{
    blocks[0] = 0;
    for (int64_t i = 0; i < step->sequences; i++) {
        const int64_t rows = step->cu_seqlens[i + 1] - step->cu_seqlens[i];
        blocks[i + 1] = blocks[i] + (int32_t)lattice_divide_up(rows, step->sizes->query_block_rows);
    }
    step->cu_query_blocks = blocks;
}

/* Query rows that a task of paged attention takes at once, with `group` query heads to a key head. */
static inline int64_t lattice_paged_rows(int64_t group)
{
    return group >= LATTICE_PAGED_ROWS ? 1 : LATTICE_PAGED_ROWS / group;
}

/* The parts that a block of query rows of causal attention is cut into, and the rows of a part. */
static inline int64_t lattice_causal_parts(const lattice_op *op, const lattice_tile_sizes *sizes)
{
    return lattice_divide_up(sizes->query_block_rows, lattice_paged_rows(op->paged.heads / op->paged.kv_heads));
}

static inline int64_t lattice_causal_rows(const lattice_op *op, const lattice_tile_sizes *sizes)
{
    return lattice_divide_up(sizes->query_block_rows, lattice_causal_parts(op, sizes));
}

/* Whether a sequence with so few rows is cut by its keys and not by its rows. */
static inline int lattice_is_cut_by_keys(int64_t rows, int64_t group)
{
    return rows == 1 || rows * group <= LATTICE_SCORE_ROWS;
}

/* Segments of keys that the `rows` rows after `context` see, all together: [first, end). */
static inline void lattice_segments(int64_t context, int64_t rows, int64_t window, int64_t *first, int64_t *end)
{
    const int64_t first_key = window > 0 && context + 1 > window ? context + 1 - window : 0;
    *first = first_key / LATTICE_KEY_SEGMENT;
    *end = lattice_divide_up(context + rows, LATTICE_KEY_SEGMENT);
}

/* Floats that a row of one head leaves for a segment: the output, the maximum and the sum. */
static inline int64_t lattice_partial_floats(int64_t head_dim)
{
    return lattice_round_up(head_dim, LATTICE_PANEL) + LATTICE_PANEL;
}

/* Floats of partials that a paged attention needs in this step. */
static inline int64_t lattice_partials(const lattice_op *op, int64_t sequences, const int32_t *cu_seqlens, const int32_t *context)
{
    int64_t rows_times_segments = 0;
    for (int64_t i = 0; i < sequences; i++) {
        const int64_t rows = cu_seqlens[i + 1] - cu_seqlens[i];
        int64_t first, end;
        if (!lattice_is_cut_by_keys(rows, op->paged.heads / op->paged.kv_heads))
            continue;
        lattice_segments(context[i], rows, op->paged.window, &first, &end);
        rows_times_segments += rows * (end - first);
    }
    return rows_times_segments * op->paged.heads * lattice_partial_floats(op->paged.head_dim);
}

/* Where the parts of the scratch of attention by AMX begin, in bytes after its keys: see amx_attention.c. */
typedef struct {
    int64_t values, weights, scores, segment, output, bytes;
} lattice_amx_scratch;

static inline lattice_amx_scratch lattice_amx_scratch_of(const lattice_op *op, int64_t max_seqlen, const lattice_tile_sizes *sizes)
{
    const int64_t keys = lattice_round_up(max_seqlen < LATTICE_KEY_SEGMENT ? max_seqlen : LATTICE_KEY_SEGMENT, 32);
    lattice_amx_scratch parts;
    parts.values = keys * op->attention.head_dim * 2;
    parts.weights = parts.values + keys * op->attention.head_dim * 2;
    parts.scores = parts.weights + 32 * (keys + 32) * 2;
    parts.segment = parts.scores + 32 * keys * 4;
    parts.output = parts.segment + 32 * op->attention.head_dim * 4;
    parts.bytes = parts.output + sizes->query_block_rows * (op->attention.head_dim + 2) * 4;
    return parts;
}

/* The most rows of k floats that one task of a float32 linear multiplies, and may copy. */
static inline int64_t lattice_linear_block(int64_t k, const lattice_tile_sizes *sizes)
{
    const int64_t rows = sizes->linear_block_bytes / (k * (int64_t)sizeof(float));
    return rows < LATTICE_BLOCK_ROWS ? LATTICE_BLOCK_ROWS : rows;
}

/* Rows of `stride` floats that a task multiplies by AMX: what stays in L2 with a panel. */
static inline int64_t lattice_amx_rows(int64_t stride)
{
    const int64_t rows = LATTICE_AMX_BYTES / (stride * (int64_t)sizeof(float)) / LATTICE_PANEL * LATTICE_PANEL;
    return rows > 4 * LATTICE_PANEL ? rows : 4 * LATTICE_PANEL;
}

/* The query rows of a task of attention, in whole vectors. */
static inline int64_t lattice_whole_query_rows(const lattice_tile_sizes *sizes)
{
    return lattice_round_up(sizes->query_block_rows, LATTICE_PANEL);
}

/* Bytes of scratch that one thread needs for an op of this step; `amx`: whether its kernels use AMX. */
static inline int64_t lattice_scratch_bytes(const lattice_op *op, int64_t max_seqlen, int amx, const lattice_tile_sizes *sizes)
{
    if (op->kernel == LATTICE_KERNEL_BLOCK_LINEAR && amx) /* amx_blocks.h: of the blocks of two panels, of rows by blocks,
                                                             * sixteen rows, and what they are of */
        return op->k / 32 * (2 * (2 * 512 + 256) + lattice_amx_rows(op->input[0].stride) * 8) + LATTICE_PANEL * op->k + 64;
    if (op->kernel == LATTICE_KERNEL_DEQUANTIZED_LINEAR)
        return op->k * LATTICE_PANEL * (int64_t)sizeof(float);
    if (op->kernel == LATTICE_KERNEL_AMX_ATTENTION)
        return lattice_round_up(lattice_amx_scratch_of(op, max_seqlen, sizes).bytes, 64);
    if (op->kernel == LATTICE_KERNEL_LINEAR)
        return op->linear.weight_type == LATTICE_WEIGHT_FLOAT32
                   ? lattice_round_up(lattice_linear_block(op->k, sizes) * op->k * (int64_t)sizeof(float), 64)
                   : 0;
    if (op->kernel == LATTICE_KERNEL_DELTA_RULE)
        return lattice_round_up(
            lattice_delta_scratch_of(op->delta.key_dim, op->delta.value_dim).floats * (int64_t)sizeof(float), 64);
    if (op->kernel == LATTICE_KERNEL_QUANTIZE_BLOCK_PAIRS)
        return lattice_round_up(op->k * (int64_t)sizeof(float), 64);
    int64_t floats = 0;
    if (op->kernel == LATTICE_KERNEL_ATTENTION) {
        const int64_t dim = op->attention.head_dim, width = lattice_round_up(dim, LATTICE_PANEL);
        const int64_t keys =
            lattice_round_up(max_seqlen < LATTICE_KEY_SEGMENT ? max_seqlen : LATTICE_KEY_SEGMENT, LATTICE_PANEL);
        /* keys, values, scores, the queries and the outputs of a segment, sixteen rows of outputs, and the outputs of all
         * segments before it with their maxima and sums */
        const int64_t together = sizes->score_rows > LATTICE_QUERY_COLUMNS ? sizes->score_rows : LATTICE_QUERY_COLUMNS;
        floats = keys * (dim + width) + together * (keys + 2 * width) + LATTICE_PANEL * width +
                 lattice_whole_query_rows(sizes) * (width + 2);
    } else if (op->kernel == LATTICE_KERNEL_CAUSAL_ATTENTION) { /* as of paged attention with many rows */
        const int64_t dim = op->paged.head_dim, width = lattice_round_up(dim, LATTICE_PANEL);
        const int64_t rows = lattice_causal_rows(op, sizes) * (op->paged.heads / op->paged.kv_heads);
        floats = LATTICE_KEY_SEGMENT * (dim + width) + rows * width + LATTICE_SCORE_ROWS * (LATTICE_KEY_SEGMENT + width) +
                 rows * lattice_partial_floats(dim);
    } else if (op->kernel == LATTICE_KERNEL_PAGED_ATTENTION) {
        const int64_t dim = op->paged.head_dim, width = lattice_round_up(dim, LATTICE_PANEL);
        const int64_t group = op->paged.heads / op->paged.kv_heads, rows = lattice_paged_rows(group) * group;
        /* queries, scores, the outputs of a segment, and those of all before it with their maxima and sums; and where rows
         * are many a segment of keys and values, widened */
        if (!lattice_is_cut_by_keys(max_seqlen, group))
            floats = LATTICE_KEY_SEGMENT * (dim + width);
        floats += rows * width + LATTICE_SCORE_ROWS * (LATTICE_KEY_SEGMENT + width) + rows * lattice_partial_floats(dim);
    }
    return lattice_round_up(floats * (int64_t)sizeof(float), 64);
}

#endif
