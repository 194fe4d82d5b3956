/* The whole way from a text to its tokens: added tokens, normalizer, pre-tokenizer, model. */
#ifndef LT_PIPELINE_H
#define LT_PIPELINE_H

#include "added_tokens.h"
#include "bpe.h"
#include "normalize.h"
#include "pre_tokenize.h"
#include "text.h"
#include "unigram.h"
#include "wordpiece.h"

enum { LT_MAX_STEPS = 64, LT_TRIM_BY_TEXT = UINT16_MAX };

/* How many characters of a token's text are white space, at either end. */
typedef struct {
    uint16_t leading, trailing;
} lt_trim;

/* Which model a pipeline has. */
typedef enum { LT_MODEL_WORDPIECE, LT_MODEL_UNIGRAM, LT_MODEL_BPE } lt_model_kind;

/* Immutable once built, so any number of threads may use one. */
typedef struct {
    lt_added_tokens raw_added;        /* searched in the text as it is */
    lt_added_tokens normalized_added; /* searched in the normalized text */
    lt_step normalize_steps[LT_MAX_STEPS];
    size_t normalize_count;
    lt_step split_steps[LT_MAX_STEPS];
    size_t split_count;
    lt_model_kind kind;
    lt_wordpiece model;
    lt_bpe bpe;
    bool has_direct_path; /* for BPE: input that the normalizer would not change is split and encoded as it lies there */
    /* For each id, how many white space characters its token begins and ends with: the post-processor takes them out of
     * the token's range. NULL: it does not. LT_TRIM_BY_TEXT: what a match of the added token takes beside itself counts
     * too, so the text must be looked at. */
    lt_trim *trims;
    bool trim_keeps_prefix; /* one space at a text's beginning may be the pre-tokenizer's and is not taken out */
    lt_unigram unigram;
    bool has_ascii_path;
    lt_ascii_character ascii[128];
} lt_pipeline;

/* Fills in what follows from the rest: the ASCII table. */
int lt_pipeline_finish(lt_pipeline *pipeline, lt_scratch *scratch);

void lt_pipeline_free(lt_pipeline *pipeline);

/* Copies the characters start..end-1 of input into scratch->text. */
int lt_load(const lt_input *input, int32_t start, int32_t end, lt_scratch *scratch);

/* Appends the tokens of input; special added tokens are ordinary text unless find_special. */
int lt_tokenize(const lt_pipeline *pipeline, const lt_input *input, bool find_special, lt_scratch *scratch,
                lt_tokens *tokens);

#endif
