/* Many texts, or pairs of texts, to one packed array of tokens: truncation and the template's special tokens included. */
#ifndef LT_BATCH_H
#define LT_BATCH_H

#include "pipeline.h"

enum {
    LT_TRUNCATION_TOO_SHORT = -2, /* only one side may be cut, and all of it is not enough */
    LT_LONE_SURROGATE = -3,
    LT_TOO_MANY_TOKENS = -4, /* more than an int32 counts */
    LT_NO_ROOM = -5,         /* the limit is below the number of special tokens */
};

/* One part of a template: the tokens of the first (sequence 0) or second (1) text, or a special token (-1). */
typedef struct {
    int32_t sequence, id, type_id;
} lt_template_part;

typedef struct {
    const lt_template_part *parts;
    size_t count;
} lt_template;

typedef enum { LT_LONGEST_FIRST, LT_ONLY_FIRST, LT_ONLY_SECOND } lt_truncation_strategy;

typedef struct {
    int32_t max_tokens; /* special tokens included; -1: no limit */
    lt_truncation_strategy strategy;
    bool cut_left; /* drop tokens at the beginning instead of at the end */
} lt_truncation;

/* The result; arrays grow as needed and belong to the caller (lt_batch_free). */
typedef struct {
    lt_token *tokens; /* special tokens have the range 0..0 */
    int32_t *type_ids;
    size_t size, token_capacity, type_capacity;
    size_t failed_text;        /* after an error: which text */
    int32_t failed_character;  /* after LT_LONE_SURROGATE: which character of it */
} lt_batch;

/* Encodes count texts: texts[i] alone by the template single, or, if seconds is not NULL and seconds[i].data is not NULL,
 * with seconds[i] by the template pair. Writes where text i's tokens end to boundaries[i + 1], how many tokens it has
 * without truncation to token_counts[i] and whether it was cut to truncated[i]. Needs no Python: the caller drops the GIL. */
int lt_encode_batch(const lt_pipeline *pipeline, const lt_input *texts, const lt_input *seconds, size_t count,
                    lt_template single, lt_template pair, lt_truncation truncation, bool find_special, lt_batch *batch,
                    int32_t *boundaries, int32_t *token_counts, uint8_t *truncated);

void lt_batch_free(lt_batch *batch);

#endif
