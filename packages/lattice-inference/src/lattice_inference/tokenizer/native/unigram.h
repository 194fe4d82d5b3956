/* Unigram (SentencePiece): a word becomes the sequence of pieces whose scores add up to the most.
 *
 * Scores are added from the left in double precision, and of equal sums the one found first stays: the one whose last
 * piece is longest. Where no single piece covers a character, an unknown token may cover it, at the lowest score of the
 * vocabulary less ten; neighbouring unknown tokens become one. These are Hugging Face's choices, ties included. */
#ifndef LT_UNIGRAM_H
#define LT_UNIGRAM_H

#include "text.h"
#include "trie.h"

typedef struct {
    const lt_trie_node *nodes; /* the pieces with their ids; NULL: no piece */
    const double *scores;      /* by id */
    double unknown_score;
    int32_t unknown_id; /* -1: none, and a text that needs one is an error */
    bool byte_fallback; /* an unknown token becomes the pieces of its bytes, if there is one for each */
    int32_t byte_ids[256]; /* -1: no such piece */
} lt_unigram;

/* The best way to a place in a word: how it ends. */
typedef struct {
    double score;
    int32_t start; /* of the last piece; -1: not reached yet */
    int32_t id;
} lt_unigram_path;

/* Tokenizes the characters of word as one word. Returns LT_NO_UNKNOWN if it needs an unknown token and there is none. */
int lt_unigram_word(const lt_unigram *model, const lt_text *text, lt_span word, lt_scratch *scratch, lt_tokens *tokens);

#endif
