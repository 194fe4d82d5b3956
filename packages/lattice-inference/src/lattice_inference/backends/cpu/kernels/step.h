/* A step: a compiled program's ops as C structs, and what a batch gives them.
 *
 * The CPU backend writes the ops once, when it compiles a program; `lattice_step_run` walks them for every batch inside one
 * region of the thread pool. A kernel splits its op into tasks by the shape of the batch; a task writes only its own part
 * of the output, so the number of threads and the order of tasks never show in a result.
 */
#ifndef LATTICE_STEP_H
#define LATTICE_STEP_H

#include <stdint.h>

#define LATTICE_PANEL 16        /* output columns of a weight panel, panels being [k][16] */
#define LATTICE_KEY_SEGMENT 512 /* graph/ops.py: KEY_SEGMENT */
#define LATTICE_QUERY_BLOCK 128 /* query rows of one attention task */
#define LATTICE_SCORE_ROWS 24   /* query rows whose scores lie in cache together: whole tiles on every level */
#define LATTICE_MAX_SLOTS 32

enum { LATTICE_ROWS_TOKENS = 0, LATTICE_ROWS_SEQUENCES = 1 };

typedef enum {
    LATTICE_KERNEL_EMBED_ROWS = 0,
    LATTICE_KERNEL_LINEAR,
    LATTICE_KERNEL_ADD,
    LATTICE_KERNEL_ACTIVATION,
    LATTICE_KERNEL_LAYER_NORM,
    LATTICE_KERNEL_ATTENTION,
    LATTICE_KERNEL_POOL,
    LATTICE_KERNEL_L2_NORMALIZE,
    LATTICE_KERNEL_QUANTIZE_ROWS = 24, /* integer_rows.h */
    LATTICE_KERNEL_INT8_LINEAR,
    LATTICE_KERNEL_QUANTIZE_BLOCKS, /* block_rows.h */
    LATTICE_KERNEL_BLOCK_LINEAR,
    LATTICE_KERNEL_DEQUANTIZED_LINEAR, /* block or int8 weights by float rows */
    LATTICE_KERNEL_COUNT
} lattice_kernel_id;

typedef enum {
    LATTICE_ACTIVATION_NONE = 0,
    LATTICE_ACTIVATION_GELU_ERF,
    LATTICE_ACTIVATION_GELU_TANH,
    LATTICE_ACTIVATION_RELU,
    LATTICE_ACTIVATION_SILU,
    LATTICE_ACTIVATION_TANH,
} lattice_activation;

/* How the elements of a linear's panels and of an embedding's table lie in memory; from LATTICE_WEIGHT_BLOCKS on the formats of
 * block_format.h. */
typedef enum { LATTICE_WEIGHT_FLOAT32 = 0, LATTICE_WEIGHT_BFLOAT16, LATTICE_WEIGHT_FLOAT16, LATTICE_WEIGHT_INT8, LATTICE_WEIGHT_BLOCKS = 16 } lattice_weight_type;

enum { LATTICE_POOL_CLS = 0, LATTICE_POOL_MEAN, LATTICE_POOL_LAST };

/* Rows of floats in a slot: element (row, i) lies at slot + row * stride + column + i. slot < 0: no operand. */
typedef struct {
    int32_t slot;
    int32_t stride;
    int64_t column;
} lattice_view;

typedef struct {
    int32_t kernel;
    int32_t rows;       /* LATTICE_ROWS_* of the output */
    int32_t activation; /* of a linear's epilogue, or of an activation op */
    int32_t mode;       /* LATTICE_POOL_*, or which ids an embedding reads */
    int32_t heads, kv_heads, head_dim;
    float scale, epsilon;
    lattice_view input[3];
    lattice_view residual; /* added in a linear's or embedding's epilogue */
    lattice_view output;
    lattice_view quantized; /* where a layer norm writes its rows as integers too; slot < 0: nowhere */
    int32_t weight_type; /* LATTICE_WEIGHT_* */
    const void *weight;  /* panels of a linear, table of an embedding, scale (float32) of a norm */
    const float *bias;   /* NULL when the op has none */
    int64_t k;           /* columns read */
    int64_t n;           /* columns written */
} lattice_op;

typedef struct {
    int64_t tokens, sequences, max_seqlen;
    const int32_t *ids[3]; /* token_ids, token_type_ids, positions */
    const int32_t *cu_seqlens;
    const int32_t *cu_query_blocks; /* [sequences + 1]: blocks of LATTICE_QUERY_BLOCK rows before each sequence */
    float *slots[LATTICE_MAX_SLOTS];
    char *scratch;         /* `threads` stretches of scratch_bytes */
    int64_t scratch_bytes; /* a multiple of 64 */
    int threads;
    int dot; /* whether integer kernels use the level's dot product instruction */
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
    uint32_t dot_feature; /* LATTICE_FEATURE_* of the dot product instruction that this level has a body for, or 0 */
} lattice_kernel_table;

static inline int64_t lattice_rows(const lattice_op *op, const lattice_step *step)
{
    return op->rows == LATTICE_ROWS_TOKENS ? step->tokens : step->sequences;
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
    for (int64_t i = 0; i < step->sequences; i++)
        blocks[i + 1] = blocks[i] + (int32_t)lattice_divide_up(step->cu_seqlens[i + 1] - step->cu_seqlens[i], LATTICE_QUERY_BLOCK);
    step->cu_query_blocks = blocks;
}

/* Bytes of scratch that one thread needs for an op of this step. */
static inline int64_t lattice_scratch_bytes(const lattice_op *op, int64_t max_seqlen)
{
    if (op->kernel == LATTICE_KERNEL_DEQUANTIZED_LINEAR)
        return op->k * LATTICE_PANEL * (int64_t)sizeof(float);
    if (op->kernel != LATTICE_KERNEL_ATTENTION)
        return 0;
    const int64_t keys = lattice_round_up(max_seqlen < LATTICE_KEY_SEGMENT ? max_seqlen : LATTICE_KEY_SEGMENT, LATTICE_PANEL);
    const int64_t width = lattice_round_up(op->head_dim, LATTICE_PANEL);
    /* keys transposed, values, scores, the outputs of a segment, and those of all before it with their maxima and sums */
    const int64_t floats =
        keys * (op->head_dim + width) + LATTICE_SCORE_ROWS * (keys + width) + LATTICE_QUERY_BLOCK * (width + 2);
    return lattice_round_up(floats * (int64_t)sizeof(float), 64);
}

#endif
