/* The pieces of a vocabulary with their scores, searchable by text and by id. */
#ifndef LT_PIECES_H
#define LT_PIECES_H

#include "text.h"
#include "trie.h"

enum {
    LT_PIECES_MALFORMED = -20, /* failed_piece is not a pair of string and number, or the array does not end */
    LT_PIECES_BAD_TEXT = -21,  /* failed_piece has a text that is no Unicode text */
    LT_PIECES_BAD_SCORE = -22, /* failed_piece has a score that is too large a number */
    LT_PIECES_TOO_LONG = -23,  /* failed_piece has more than max_piece_bytes */
    LT_PIECES_TOO_MANY = -24,  /* more text than max_text_bytes */
    LT_PIECES_REPEATED = -25,  /* there are two such arrays */
};

/* Piece i is text[ends[i - 1]:ends[i]] (from 0 for the first) and has the id i. */
typedef struct {
    uint8_t *text;
    size_t text_capacity;
    int32_t *ends;
    size_t end_capacity;
    double *scores;
    size_t score_capacity;
    int32_t count;
    double lowest_score; /* infinity if there are no pieces */
    lt_trie trie;        /* of two equal pieces, the later one counts; the empty one is not in it */
    int32_t failed_piece;
} lt_pieces;

static inline int32_t lt_piece_start(const lt_pieces *pieces, int32_t id) {
    return id > 0 ? pieces->ends[id - 1] : 0;
}

/* Appends a piece. */
int lt_pieces_push(lt_pieces *pieces, const uint8_t *text, size_t size, double score);

/* Builds the trie and finds the lowest score, once all pieces are there. */
int lt_pieces_index(lt_pieces *pieces);

/* Returns the id of a piece, or -1. */
int32_t lt_pieces_find(const lt_pieces *pieces, const uint8_t *text, size_t size);

void lt_pieces_free(lt_pieces *pieces);

/* Reads the array "vocab" of [string, number] in the object "model" of a tokenizer.json. *start and *end are its place,
 * brackets included, or 0 if there is none. The rest of the file is only skipped: the caller checks it, without the array.
 */
int lt_pieces_read(lt_pieces *pieces, const uint8_t *json, size_t size, size_t max_piece_bytes, size_t max_text_bytes,
                   size_t *start, size_t *end);

/* Reads the pieces of a SentencePiece model, a protobuf message, and copies its other fields to rest, which has room for
 * size bytes; types has room for a byte a piece, and max_pieces says how many those are. Texts are not checked to be UTF-8.
 * Returns false for a message with anything unexpected, or if memory runs out. */
bool lt_pieces_read_protobuf(lt_pieces *pieces, const uint8_t *data, size_t size, int32_t max_pieces, uint8_t *types,
                             uint8_t *rest, size_t *rest_size);

#endif
