/* Pre-tokenizers: how a normalized text is split into the words that the model sees. */
#ifndef LT_PRE_TOKENIZE_H
#define LT_PRE_TOKENIZE_H

#include "step.h"
#include "text.h"

/* One way of splitting; pre_tokenizers.py turns a tokenizer.json's pre_tokenizer into a list of these. */
typedef enum {
    LT_SPLIT_WHITESPACE,              /* at white space, which goes */
    LT_SPLIT_WORD_RUNS,               /* runs of word characters, runs of others; white space goes (\w+|[^\w\s]+) */
    LT_SPLIT_PUNCTUATION_ISOLATED,    /* each punctuation character alone */
    LT_SPLIT_PUNCTUATION_REMOVED,     /* at punctuation, which goes */
    LT_SPLIT_PUNCTUATION_CONTIGUOUS,  /* runs of punctuation */
    LT_SPLIT_PUNCTUATION_TO_PREVIOUS, /* a punctuation character ends the word before it */
    LT_SPLIT_PUNCTUATION_TO_NEXT,     /* a punctuation character begins the word after it */
    LT_SPLIT_METASPACE,               /* spaces become visible characters; argument: lt_metaspace */
    LT_SPLIT_STEPS,
} lt_split_step;

/* Splits the characters start..end-1 of text into scratch->spans, which point into scratch->words; each step splits the
 * spans of the one before. */
int lt_pre_tokenize(const lt_step *steps, size_t count, const lt_text *text, int32_t start, int32_t end,
                    lt_scratch *scratch);

#endif
