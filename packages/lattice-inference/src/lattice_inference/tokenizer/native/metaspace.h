/* The pre-tokenizer Metaspace: spaces become a visible character, usually U+2581, which is also put before a word. */
#ifndef LT_METASPACE_H
#define LT_METASPACE_H

#include "text.h"

typedef enum {
    LT_PREPEND_ALWAYS, /* to each word */
    LT_PREPEND_FIRST,  /* to the word that begins where the text does */
    LT_PREPEND_NEVER,
    LT_PREPEND_SCHEMES,
} lt_prepend_scheme;

typedef struct {
    uint32_t replacement;
    uint8_t scheme; /* an lt_prepend_scheme */
    bool split;     /* a word ends before each replacement character */
} lt_metaspace;

/* Writes the changed words of text, which spans names, end to end to out, and their places to out_spans. */
int lt_metaspace_split(const lt_metaspace *metaspace, const lt_text *text, const lt_spans *spans, lt_text *out,
                       lt_spans *out_spans);

#endif
