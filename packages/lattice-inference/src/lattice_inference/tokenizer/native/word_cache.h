/* The words of one call that a Unigram model has cut to pieces already: text repeats its words, and finding the best path
 * through one costs ten times as much as recognizing it.
 *
 * A table with one place a hash; a new word takes the place of the one before. It belongs to one call, so it needs no lock
 * and no bound beside its size, and it is made only once the call has had some words. */
#ifndef LT_WORD_CACHE_H
#define LT_WORD_CACHE_H

#include "text.h"

enum {
    LT_CACHED_CHARACTERS = 14, /* longest word that is kept, in characters */
    LT_CACHED_TOKENS = 6,      /* most tokens of a word that is kept */
    LT_CACHE_WORDS = 4096,     /* places, a power of two */
    LT_CACHE_FROM = 96,        /* words before a table is made */
};

typedef struct {
    uint16_t length; /* in characters; 0: nothing here */
    uint16_t count;  /* of tokens */
    uint32_t characters[LT_CACHED_CHARACTERS];
    int32_t ids[LT_CACHED_TOKENS];
    uint8_t starts[LT_CACHED_TOKENS], ends[LT_CACHED_TOKENS]; /* the tokens' places in the word */
} lt_cached_word;

/* Returns the word's place, which holds it already if *is_hit, or NULL if it is not kept. */
lt_cached_word *lt_word_cache_place(lt_scratch *scratch, const lt_character *items, int32_t length, bool *is_hit);

#endif
