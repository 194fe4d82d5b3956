/* Text while it is being tokenized, and the tokens that come out. All buffers grow geometrically and are reused.
 *
 * Functions that may need memory return LT_OK or LT_NO_MEMORY; other failures have numbers of their own. */
#ifndef LT_TEXT_H
#define LT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum {
    LT_OK = 0,
    LT_NO_MEMORY = -1,
    LT_NO_UNKNOWN = -6,    /* a character is in no piece, and the model has no unknown token */
    LT_TEXT_TOO_LONG = -7, /* once normalized */
};

/* A Python str as it lies in memory: 1, 2 or 4 bytes a character. */
typedef struct {
    const void *data;
    int32_t length;       /* characters */
    uint8_t kind;         /* 1, 2 or 4 */
    const uint8_t *plain; /* NULL, or for each character whether it can be no part of a special token */
} lt_input;

static inline __attribute__((always_inline)) uint32_t lt_read(const void *data, int kind, int32_t index) {
    switch (kind) {
    case 1:
        return ((const uint8_t *)data)[index];
    case 2:
        return ((const uint16_t *)data)[index];
    default:
        return ((const uint32_t *)data)[index];
    }
}

/* Makes room for needed elements of element_size bytes behind *data. */
static inline int lt_reserve(void **data, size_t *capacity, size_t needed, size_t element_size) {
    if (needed <= *capacity)
        return LT_OK;
    size_t grown = *capacity + *capacity / 2;
    if (grown < needed)
        grown = needed;
    if (grown < 64)
        grown = 64;
    if (grown > SIZE_MAX / element_size)
        return LT_NO_MEMORY;
    void *moved = realloc(*data, grown * element_size);
    if (moved == NULL)
        return LT_NO_MEMORY;
    *data = moved;
    *capacity = grown;
    return LT_OK;
}

/* One character of a normalized text and the index of the character of the original text that it stands for. A
 * normalizer that splits a character gives all parts the same source; one that joins several keeps the first. */
typedef struct {
    uint32_t code_point;
    int32_t source;
} lt_character;

typedef struct {
    lt_character *items;
    size_t size, capacity;
} lt_text;

static inline int lt_text_reserve(lt_text *text, size_t needed) {
    return lt_reserve((void **)&text->items, &text->capacity, needed, sizeof(lt_character));
}

/* A half-open range of characters of an lt_text. */
typedef struct {
    int32_t start, end;
} lt_span;

typedef struct {
    lt_span *items;
    size_t size, capacity;
} lt_spans;

static inline int lt_spans_push(lt_spans *spans, int32_t start, int32_t end) {
    if (lt_reserve((void **)&spans->items, &spans->capacity, spans->size + 1, sizeof(lt_span)) != LT_OK)
        return LT_NO_MEMORY;
    spans->items[spans->size++] = (lt_span){start, end};
    return LT_OK;
}

/* A token: its id and the half-open range of characters of the original text that it covers. */
typedef struct {
    int32_t id, start, end;
} lt_token;

typedef struct {
    lt_token *items;
    size_t size, capacity;
} lt_tokens;

static inline int lt_tokens_push(lt_tokens *tokens, int32_t id, int32_t start, int32_t end) {
    if (tokens->size == tokens->capacity &&
        lt_reserve((void **)&tokens->items, &tokens->capacity, tokens->size + 1, sizeof(lt_token)) != LT_OK)
        return LT_NO_MEMORY;
    tokens->items[tokens->size++] = (lt_token){id, start, end};
    return LT_OK;
}

struct lt_bpe_scratch;

/* The buffers of one call; two calls never share one. */
typedef struct {
    lt_text text, other_text;   /* a normalizer step reads one and writes the other */
    lt_spans spans, other_spans; /* the same for pre-tokenizer steps */
    const lt_text *words;        /* what spans point into: text, or split_text if a pre-tokenizer changed the words */
    lt_text split_text, other_split_text;
    struct lt_bpe_scratch *bpe; /* lent by the model, which takes it back */
    void *paths; /* Unigram's (lt_unigram_path) */
    size_t path_capacity;
    void *word_cache; /* Unigram's (lt_cached_word), or NULL as long as there is none */
    int32_t words_seen;
} lt_scratch;

static inline void lt_scratch_free(lt_scratch *scratch) {
    free(scratch->text.items);
    free(scratch->other_text.items);
    free(scratch->spans.items);
    free(scratch->other_spans.items);
    free(scratch->split_text.items);
    free(scratch->other_split_text.items);
    free(scratch->paths);
    free(scratch->word_cache);
}

#endif
