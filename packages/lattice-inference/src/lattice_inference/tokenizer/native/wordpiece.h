/* WordPiece: a word becomes the longest piece of the vocabulary that begins it, then the longest continuing piece (with
 * the prefix, usually ##) that begins the rest, and so on; a word with a part in no piece becomes one unknown token. */
#ifndef LT_WORDPIECE_H
#define LT_WORDPIECE_H

#include "text.h"
#include "trie.h"

typedef struct {
    lt_trie vocabulary;
    int32_t continuation_root; /* the trie's node behind the prefix, or LT_TRIE_NONE if no key begins with it */
    int32_t unknown_id;
    int32_t max_word_characters; /* longer words become one unknown token */
} lt_wordpiece;

/* What the ASCII path does with a character: a role, and for the roles that make words the normalized character. */
typedef enum {
    LT_ASCII_GENERAL, /* not ASCII, or not one character after normalizing: the general path must take it */
    LT_ASCII_SPACE,   /* separates words and is in none */
    LT_ASCII_ALONE,   /* a word by itself */
    LT_ASCII_RUN,     /* part of a run of its kind, which is a word */
    LT_ASCII_OTHER_RUN,
} lt_ascii_role;

typedef struct {
    uint8_t role, normalized;
} lt_ascii_character;

/* Tokenizes the characters start..end-1 of text as one word. */
int lt_wordpiece_word(const lt_wordpiece *model, const lt_text *text, lt_span word, lt_tokens *tokens);

/* Tokenizes input[position:end] as far as the ASCII path can and returns where it stopped: at end, or at the start of a
 * stretch between two spaces that holds a character of role LT_ASCII_GENERAL. *status says whether memory ran out. */
int32_t lt_wordpiece_ascii(const lt_wordpiece *model, const lt_ascii_character *table, const lt_input *input,
                           int32_t position, int32_t end, lt_tokens *tokens, int *status);

#endif
