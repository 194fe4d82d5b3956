/* The normalizers Replace and Prepend. */
#ifndef LT_REPLACE_H
#define LT_REPLACE_H

#include "text.h"

/* Replaces each match by content. With literal_size > 0 a match is that text; else it is a run of at least minimum and
 * at most maximum of one character (or of white space), as long as can be, which must begin or end where the text does if
 * at_start or at_end says so. */
typedef struct {
    const uint32_t *literal;
    size_t literal_size;
    uint32_t character;
    bool is_whitespace; /* any white space instead of the character */
    bool at_start, at_end;
    size_t minimum, maximum;
    const uint32_t *content;
    size_t content_size;
} lt_replacement;

int lt_replace(const lt_replacement *replacement, const lt_text *in, lt_text *out);

/* Writes content and then the text. */
int lt_prepend(const lt_replacement *replacement, const lt_text *in, lt_text *out);

#endif
