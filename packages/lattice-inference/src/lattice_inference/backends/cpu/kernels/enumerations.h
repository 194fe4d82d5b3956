/* What an op or a program chooses among, each list once: the number and the name that Python says follow from it. */
#ifndef LATTICE_ENUMERATIONS_H
#define LATTICE_ENUMERATIONS_H

#define LATTICE_NUMBER(id, ...) id,

/* What an op has a row for. */
#define LATTICE_ROW_KINDS(ENTRY) \
    ENTRY(LATTICE_ROWS_TOKENS, "tokens") ENTRY(LATTICE_ROWS_SEQUENCES, "sequences") ENTRY(LATTICE_ROWS_LOGITS, "logit_rows")
enum { LATTICE_ROW_KINDS(LATTICE_NUMBER) LATTICE_ROWS_COUNT };

/* Which numbers of its tokens a batch gives. */
#define LATTICE_IDS(ENTRY)                                                                                             \
    ENTRY(LATTICE_IDS_TOKENS, "token_ids")                                                                             \
    ENTRY(LATTICE_IDS_TOKEN_TYPES, "token_type_ids") ENTRY(LATTICE_IDS_POSITIONS, "positions")
enum { LATTICE_IDS(LATTICE_NUMBER) LATTICE_IDS_COUNT };

#define LATTICE_ACTIVATIONS(ENTRY)                                                                                     \
    ENTRY(LATTICE_ACTIVATION_NONE, "none")                                                                             \
    ENTRY(LATTICE_ACTIVATION_GELU_ERF, "gelu_erf")                                                                     \
    ENTRY(LATTICE_ACTIVATION_GELU_TANH, "gelu_tanh")                                                                   \
    ENTRY(LATTICE_ACTIVATION_RELU, "relu")                                                                             \
    ENTRY(LATTICE_ACTIVATION_SILU, "silu")                                                                             \
    ENTRY(LATTICE_ACTIVATION_TANH, "tanh")                                                                             \
    ENTRY(LATTICE_ACTIVATION_SIGMOID, "sigmoid")
typedef enum { LATTICE_ACTIVATIONS(LATTICE_NUMBER) } lattice_activation;

/* How the elements of a linear's panels and of an embedding's table lie in memory; from LATTICE_WEIGHT_BLOCKS on the formats of
 * block_format.h. */
#define LATTICE_WEIGHT_TYPES(ENTRY)                                                                                    \
    ENTRY(LATTICE_WEIGHT_FLOAT32, "float32")                                                                           \
    ENTRY(LATTICE_WEIGHT_BFLOAT16, "bfloat16")                                                                         \
    ENTRY(LATTICE_WEIGHT_FLOAT16, "float16")                                                                           \
    ENTRY(LATTICE_WEIGHT_INT8, "int8")                                                                                 \
    ENTRY(LATTICE_WEIGHT_BFLOAT16_PAIRS, "bfloat16_pairs")
typedef enum { LATTICE_WEIGHT_TYPES(LATTICE_NUMBER) LATTICE_WEIGHT_BLOCKS } lattice_weight_type;

/* What multiplies rows of bfloat16 by weights of bfloat16: two multiply-adds, the level's dot product, or AMX, which
 * fingerprints call tiles. */
#define LATTICE_BFLOAT16_PRODUCTS(ENTRY)                                                                               \
    ENTRY(LATTICE_BFLOAT16_WIDENED, "widened") ENTRY(LATTICE_BFLOAT16_DOT, "dot") ENTRY(LATTICE_BFLOAT16_AMX, "tiles")
typedef enum { LATTICE_BFLOAT16_PRODUCTS(LATTICE_NUMBER) } lattice_bfloat16_products;

/* How keys and values lie in pages, and the bytes of an element. */
#define LATTICE_KV_TYPES(ENTRY)                                                                                        \
    ENTRY(LATTICE_KV_FLOAT32, "float32", 4)                                                                            \
    ENTRY(LATTICE_KV_BFLOAT16, "bfloat16", 2) ENTRY(LATTICE_KV_FLOAT16, "float16", 2) ENTRY(LATTICE_KV_INT8, "int8", 1)
typedef enum { LATTICE_KV_TYPES(LATTICE_NUMBER) } lattice_kv_type;

/* Which dimensions of a head a rotary position turns together. */
#define LATTICE_PAIRINGS(ENTRY) ENTRY(LATTICE_PAIRING_HALF, "half") ENTRY(LATTICE_PAIRING_INTERLEAVED, "interleaved")
enum { LATTICE_PAIRINGS(LATTICE_NUMBER) };

#define LATTICE_POOLS(ENTRY) ENTRY(LATTICE_POOL_CLS, "cls") ENTRY(LATTICE_POOL_MEAN, "mean") ENTRY(LATTICE_POOL_LAST, "last")
enum { LATTICE_POOLS(LATTICE_NUMBER) };

/* Functions of vector_math.h that tests call by name, and what each makes of sixteen lanes. */
#define LATTICE_FUNCTIONS(ENTRY)                                                                                       \
    ENTRY(LATTICE_FUNCTION_EXP, "exp", f32x16_exp)                                                                     \
    ENTRY(LATTICE_FUNCTION_ERF, "erf", f32x16_erf)                                                                     \
    ENTRY(LATTICE_FUNCTION_TANH, "tanh", f32x16_tanh) ENTRY(LATTICE_FUNCTION_LOG, "log", f32x16_log)
enum { LATTICE_FUNCTIONS(LATTICE_NUMBER) };

#endif
