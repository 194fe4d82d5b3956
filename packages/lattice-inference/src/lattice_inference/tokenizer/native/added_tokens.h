/* Added tokens: strings that are found in a text before it is split and become one token each. */
#ifndef LT_ADDED_TOKENS_H
#define LT_ADDED_TOKENS_H

#include "text.h"
#include "trie.h"

enum {
    LT_ADDED_SINGLE_WORD = 1, /* only where no word character touches it */
    LT_ADDED_STRIP_LEFT = 2,  /* takes the white space before it */
    LT_ADDED_STRIP_RIGHT = 4, /* takes the white space after it */
    LT_ADDED_SPECIAL = 8,
};

/* The added tokens that are searched in one form of the text (raw or normalized). The trie's values index tokens. */
typedef struct {
    lt_trie trie;
    const int32_t *ids;
    const uint8_t *flags;
    uint8_t can_start[256]; /* by the low byte of a code point: no token starts so if 0 */
} lt_added_tokens;

/* A text in which added tokens are searched: a Python str, or an lt_text if characters is not NULL. */
typedef struct {
    const lt_character *characters;
    const void *data;
    int kind;
    const uint8_t *plain; /* as in lt_input */
} lt_haystack;

/* Where the search stands, and what lt_added_next found. */
typedef struct {
    int32_t start, end;      /* the part of the haystack that is searched */
    int32_t position;        /* where the search goes on */
    int32_t text_start;      /* end of the last token found: ordinary text begins here */
    int32_t id;              /* the token found */
    int32_t token_start, token_end;
} lt_added_search;

/* Finds the next token: the leftmost match, of those the longest. Returns false if there is none. */
bool lt_added_next(const lt_added_tokens *tokens, lt_haystack haystack, bool find_special, lt_added_search *search);

#endif
