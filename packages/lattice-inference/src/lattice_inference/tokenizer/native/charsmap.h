/* SentencePiece's precompiled normalizer: replacement rules in a double-array trie over UTF-8.
 *
 * Hugging Face's library does not apply the rules as SentencePiece does. It goes from grapheme cluster to grapheme cluster;
 * if some rule matches the beginning of a cluster of fewer than six bytes, the shortest such rule replaces the whole
 * cluster, what the rule does not cover included; else each character of the cluster is replaced by the shortest rule
 * that begins it. Models in its form were made with that, so we do the same. */
#ifndef LT_CHARSMAP_H
#define LT_CHARSMAP_H

#include "text.h"

/* The rules, as they lie in a file. Nothing in them is believed: every index is checked where it is used, and a rule that
 * points outside does not match. */
typedef struct {
    const uint32_t *units; /* darts-clone's units */
    size_t unit_count;
    const uint8_t *replacements; /* valid UTF-8, each replacement ended by a NUL or the end */
    size_t replacement_bytes;
} lt_charsmap;

/* Writes the text with rules applied. */
int lt_charsmap_normalize(const lt_charsmap *map, const lt_text *in, lt_text *out);

#endif
