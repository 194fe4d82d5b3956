/* Grapheme clusters: what a reader sees as one character, by the rules of Unicode's annex 29 as Hugging Face's library
 * has them. Only the precompiled normalizer needs them. */
#ifndef LT_GRAPHEME_H
#define LT_GRAPHEME_H

#include "text.h"

enum {
    LT_GRAPHEME_EXTENDS = 1,
    LT_GRAPHEME_CONTROL = 2,
    LT_GRAPHEME_PREPENDS = 4,
    LT_GRAPHEME_PICTOGRAPH = 8,
    LT_GRAPHEME_PICTOGRAPH_SKIPS = 16,
    LT_GRAPHEME_CONSONANT = 32,
    LT_GRAPHEME_LINKER = 64,
    LT_GRAPHEME_CONSONANT_SKIPS = 128,
    LT_GRAPHEME_JOINS_LEADING = 256,
    LT_GRAPHEME_JOINS_VOWEL = 512,
    LT_GRAPHEME_JOINS_TRAILING = 1024,
};

/* Returns where the cluster that begins at start ends; start < text->size. */
size_t lt_grapheme_end(const lt_text *text, size_t start);

#endif
