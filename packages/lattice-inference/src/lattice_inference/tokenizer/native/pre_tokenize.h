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
    LT_SPLIT_GPT2,                    /* from here the scanners of word_scan.h: GPT-2's regex */
    LT_SPLIT_QWEN2,
    LT_SPLIT_QWEN35,
    LT_SPLIT_LLAMA3,
    LT_SPLIT_DIGITS,                  /* each digit alone */
    LT_SPLIT_DIGIT_RUNS,              /* runs of digits, runs of others */
    LT_SPLIT_EXTERNAL,                /* argument: lt_external_splitter */
    LT_SPLIT_PREFIX_SPACE,            /* splits nothing: a span that does not begin with a space gets one */
    LT_SPLIT_BYTE_LEVEL,              /* splits nothing: the model sees UTF-8 bytes; always the last step */
    LT_SPLIT_STEPS,
} lt_split_step;

enum { LT_EXTERNAL_FAILED = -8 };

/* A splitter outside of the C code: function appends the words of characters[0..size-1], as spans moved by offset, and
 * returns LT_OK or LT_EXTERNAL_FAILED. */
typedef struct {
    int (*function)(void *context, const lt_character *characters, int32_t size, int32_t offset, lt_spans *out);
    void *context;
} lt_external_splitter;

/* Splits the characters start..end-1 of text into scratch->spans, which point into scratch->words; each step splits the
 * spans of the one before. */
int lt_pre_tokenize(const lt_step *steps, size_t count, const lt_text *text, int32_t start, int32_t end,
                    lt_scratch *scratch);

#endif
