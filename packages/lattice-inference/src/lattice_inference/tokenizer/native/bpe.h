/* Byte-pair encoding: a word is cut into units (UTF-8 bytes or characters), and then, again and again, the two neighbours
 * whose merge has the lowest rank become one token, the leftmost of equals first.
 *
 * Positions in a word count bytes of UTF-8. */
#ifndef LT_BPE_H
#define LT_BPE_H

#include "pre_tokenize.h"
#include "string_table.h"
#include "text.h"

enum {
    LT_BPE_CONTINUES = 1, /* a unit that is not the first of its word: the prefix stands before it */
    LT_BPE_ENDS = 2,      /* the last unit of its word: the suffix stands behind it */
    LT_BPE_VARIANTS = 4,
    LT_BPE_SPARES = 8,       /* scratches kept for later calls: as many threads profit from warm caches */
    LT_BPE_MAX_JOINS = 64,
};

enum { LT_BPE_NO_RANK = INT32_MAX };

/* A merge in the hash table of pairs. */
typedef struct {
    uint64_t pair; /* left id in the upper half, right id in the lower; UINT64_MAX: empty */
    int32_t rank, id;
} lt_bpe_merge;

typedef struct {
    uint32_t key; /* code point | variant << 21; UINT32_MAX: empty */
    int32_t id;
} lt_bpe_character;

typedef struct {
    lt_bpe_merge *merges; /* NULL: the model is not set */
    size_t merge_mask, merge_count;
    uint64_t seed;
    int32_t *rank_ids; /* rank -> id of the token that the merge makes */
    bool byte_level;   /* units are bytes, else characters */
    bool has_affixes;
    int32_t byte_ids[LT_BPE_VARIANTS][256]; /* -1: no such token */
    lt_bpe_character *characters;
    size_t character_mask;
    bool byte_fallback; /* a unit that is no token becomes the tokens of its bytes */
    int32_t fallback_ids[256];
    int32_t unknown_id; /* what another one becomes; -1: nothing */
    bool fuse_unknown;  /* unknown units in a row become one token */
    bool ignore_merges; /* a word that is a token is that token */
    lt_string_table words; /* for ignore_merges: the bytes of every token; owns word_bytes */
    uint8_t *word_bytes;
    /* If true, no token reaches across a place before U+2581 where another character than one of joins stands, so a text
     * that is one word can be cut there without changing its tokens. */
    bool cuts_at_spaces;
    uint32_t joins[LT_BPE_MAX_JOINS];
    size_t join_count;
    struct lt_bpe_scratch *_Atomic *spares; /* [LT_BPE_SPARES] */
} lt_bpe;

/* What a model is built from. */
typedef struct {
    const uint8_t *data;
    int32_t length;
    int32_t id;
} lt_bpe_token;

typedef struct {
    const uint8_t *left, *right;
    int32_t left_length, right_length;
} lt_bpe_pair;

typedef struct {
    const lt_bpe_token *tokens;
    size_t token_count;
    const lt_bpe_pair *merges;
    size_t merge_count;
    const uint8_t *prefix, *suffix;
    int32_t prefix_length, suffix_length;
} lt_bpe_source;

enum {
    LT_BPE_LEFT_MISSING = -10, /* a merge of what is no token */
    LT_BPE_RIGHT_MISSING = -11,
    LT_BPE_MERGED_MISSING = -12, /* a merge to what is no token */
    LT_BPE_SHORT_RIGHT = -13,    /* the right side is shorter than the prefix */
};

/* Builds the model; the flags byte_level, byte_fallback, fuse_unknown, ignore_merges and unknown_id are set before. After
 * an error about a merge, *failed is its index. */
int lt_bpe_build(lt_bpe *model, const lt_bpe_source *source, size_t *failed);

void lt_bpe_free(lt_bpe *model);

/* The code point that stands for a byte in the vocabulary of a byte-level model (GPT-2's table). */
uint32_t lt_byte_character(uint8_t byte);

/* Words whose tokens are known: direct-mapped, so bounded, and compared byte by byte, so exact. */
enum { LT_BPE_CACHE_BITS = 14, LT_BPE_KEY_BYTES = 23, LT_BPE_CACHED_TOKENS = 7 };

typedef struct {
    uint64_t key[3]; /* the word's bytes, then zeros, then its length in the last byte; all 0: empty */
    int32_t ids[LT_BPE_CACHED_TOKENS];
    uint8_t ends[LT_BPE_CACHED_TOKENS];
    uint8_t count;
} lt_bpe_cached;

/* A node of the list that a long word is merged in. */
typedef struct {
    int32_t id, end, previous, next, rank;
} lt_bpe_node;

typedef struct {
    uint64_t *items;
    size_t size, capacity;
} lt_bpe_heap;

/* The places of one rank, in order: a list in lt_bpe_scratch.queued. */
typedef struct {
    int32_t first, last; /* -1: empty */
} lt_bpe_queue;

typedef struct {
    int32_t position, next;
} lt_bpe_queued;

/* Buffers of one call, and the cache, which outlives it. */
typedef struct lt_bpe_scratch {
    lt_bpe_cached *cache; /* [1 << LT_BPE_CACHE_BITS] */
    int32_t *ids, *ends;  /* the tokens of the word at hand, and where each ends */
    size_t size, ids_capacity, ends_capacity;
    uint8_t *bytes; /* the word's UTF-8 */
    size_t bytes_capacity;
    int32_t *owners; /* of an irregular word: which character each byte belongs to */
    size_t owners_capacity;
    lt_bpe_node *nodes;
    size_t nodes_capacity;
    lt_bpe_heap heap;     /* rank << 32 | position */
    lt_bpe_heap ranks;    /* those with a queue that is not empty */
    lt_bpe_queue *queues; /* by rank; NULL until the first huge word */
    lt_bpe_queued *queued;
    size_t queued_size, queued_capacity;
} lt_bpe_scratch;

/* Takes a scratch of the model's, or makes one; NULL: no memory. */
lt_bpe_scratch *lt_bpe_lend(const lt_bpe *model);

/* Gives it back, for the next call or to be freed. */
void lt_bpe_return(const lt_bpe *model, lt_bpe_scratch *scratch);

static inline uint32_t lt_bpe_character_hash(uint32_t key) {
    return key * 0x9E3779B1u ^ key >> 15;
}

/* The id of a unit of a model over characters, or -1. */
static inline int32_t lt_bpe_character_id(const lt_bpe *model, uint32_t code_point, int variant) {
    uint32_t key = code_point | (uint32_t)variant << 21;
    size_t i = lt_bpe_character_hash(key) & model->character_mask;
    while (model->characters[i].key != key) {
        if (model->characters[i].key == UINT32_MAX)
            return -1;
        i = (i + 1) & model->character_mask;
    }
    return model->characters[i].id;
}

static inline uint64_t lt_bpe_pair_hash(uint64_t pair, uint64_t seed) {
    uint64_t hash = (pair ^ seed) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

/* The rank of the merge of two tokens, or LT_BPE_NO_RANK. */
static inline int32_t lt_bpe_rank(const lt_bpe *model, int32_t left, int32_t right) {
    if (left < 0 || right < 0)
        return LT_BPE_NO_RANK;
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = lt_bpe_pair_hash(pair, model->seed) & model->merge_mask;
    while (model->merges[i].pair != pair) {
        if (model->merges[i].pair == UINT64_MAX)
            return LT_BPE_NO_RANK;
        i = (i + 1) & model->merge_mask;
    }
    return model->merges[i].rank;
}

/* Merges the tokens scratch->ids[0..size-1], which end at scratch->ends, in place. */
int lt_bpe_merge_word(const lt_bpe *model, lt_bpe_scratch *scratch);

/* Appends the tokens of the words of text that the spans name. */
int lt_bpe_words(const lt_bpe *model, lt_bpe_scratch *scratch, const lt_text *text, const lt_spans *words,
                 lt_tokens *tokens);

/* Splits input[start:end], which no normalizer changes, by scanners only, and appends the tokens of its words. */
int lt_bpe_input(const lt_bpe *model, const lt_step *steps, size_t step_count, lt_bpe_scratch *scratch,
                 const lt_input *input, int32_t start, int32_t end, lt_tokens *tokens);

#endif
