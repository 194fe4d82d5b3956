/* WordPiece over code points (any text) and over the bytes of ASCII stretches (most text).
 *
 * The ASCII path does everything in one pass over the caller's own characters: a table of 128 entries says for each what
 * the normalizer and the pre-tokenizer make of it, and the trie is walked while the word's end is being looked for. When
 * the walk arrives there on a key, which most words do, the word is done without a second look. */
#include "wordpiece.h"

/* A word that failed becomes one unknown token; what was emitted for it goes. */
static int unknown(const lt_wordpiece *model, lt_tokens *tokens, size_t word_tokens, int32_t start, int32_t end) {
    tokens->size = word_tokens;
    return lt_tokens_push(tokens, model->unknown_id, start, end);
}

int lt_wordpiece_word(const lt_wordpiece *model, const lt_text *text, lt_span word, lt_tokens *tokens) {
    const lt_character *items = text->items;
    const lt_trie_node *nodes = model->vocabulary.nodes;
    size_t word_tokens = tokens->size;
    int32_t word_start = items[word.start].source, word_end = items[word.end - 1].source + 1;
    if (word.end - word.start > model->max_word_characters)
        return unknown(model, tokens, word_tokens, word_start, word_end);
    int32_t node = LT_TRIE_ROOT;
    for (int32_t start = word.start; start < word.end;) {
        int32_t id = -1, piece_end = start;
        for (int32_t i = start; node >= 0 && i < word.end; i++) {
            node = lt_trie_step_code_point(nodes, node, items[i].code_point);
            if (node >= 0 && nodes[node].value >= 0) {
                id = nodes[node].value;
                piece_end = i + 1;
            }
        }
        if (id < 0)
            return unknown(model, tokens, word_tokens, word_start, word_end);
        if (lt_tokens_push(tokens, id, items[start].source, items[piece_end - 1].source + 1) != LT_OK)
            return LT_NO_MEMORY;
        start = piece_end;
        node = model->continuation_root;
    }
    return LT_OK;
}

static inline __attribute__((always_inline)) lt_ascii_character ascii_at(const lt_ascii_character *table,
                                                                         const void *data, int kind, int32_t index) {
    uint32_t code_point = lt_read(data, kind, index);
    return code_point < 128 ? table[code_point] : (lt_ascii_character){LT_ASCII_GENERAL, 0};
}

/* Tokenizes the word start..end-1, whose first piece (id, piece_end) has been found already. */
static inline __attribute__((always_inline)) int
ascii_rest_of_word(const lt_wordpiece *model, const lt_ascii_character *table, const void *data, int kind,
                   int32_t start, int32_t end, int32_t id, int32_t piece_end, lt_tokens *tokens) {
    const lt_trie_node *nodes = model->vocabulary.nodes;
    size_t word_tokens = tokens->size;
    if (end - start > model->max_word_characters)
        return unknown(model, tokens, word_tokens, start, end);
    int32_t piece_start = start;
    for (;;) {
        if (id < 0)
            return unknown(model, tokens, word_tokens, start, end);
        if (lt_tokens_push(tokens, id, piece_start, piece_end) != LT_OK)
            return LT_NO_MEMORY;
        if (piece_end == end)
            return LT_OK;
        piece_start = piece_end;
        id = -1;
        int32_t node = model->continuation_root;
        for (int32_t i = piece_start; node >= 0 && i < end; i++) {
            node = lt_trie_step(nodes, node, table[lt_read(data, kind, i)].normalized);
            if (node >= 0 && nodes[node].value >= 0) {
                id = nodes[node].value;
                piece_end = i + 1;
            }
        }
    }
}

static inline __attribute__((always_inline)) int32_t ascii_path(const lt_wordpiece *model,
                                                                const lt_ascii_character *table, const void *data,
                                                                int kind, int32_t position, int32_t end,
                                                                lt_tokens *tokens, int *status) {
    const lt_trie_node *nodes = model->vocabulary.nodes;
    int32_t stretch = position; /* the stretch since the last space, given back if a GENERAL character turns up */
    size_t stretch_tokens = tokens->size;
    int32_t i = position;
    while (i < end) {
        lt_ascii_character here = ascii_at(table, data, kind, i);
        if (here.role == LT_ASCII_SPACE) {
            i++;
            stretch = i;
            stretch_tokens = tokens->size;
            continue;
        }
        int32_t start = i, id = -1, piece_end = start, node = LT_TRIE_ROOT;
        uint8_t role = here.role;
        while (here.role == role) {
            if (node >= 0) {
                node = lt_trie_step(nodes, node, here.normalized);
                if (node >= 0 && nodes[node].value >= 0) {
                    id = nodes[node].value;
                    piece_end = i + 1;
                }
            }
            i++;
            if (role == LT_ASCII_ALONE || i == end)
                break;
            here = ascii_at(table, data, kind, i);
        }
        if (role == LT_ASCII_GENERAL || (i < end && here.role == LT_ASCII_GENERAL)) {
            tokens->size = stretch_tokens;
            return stretch;
        }
        if (id >= 0 && piece_end == i && i - start <= model->max_word_characters)
            *status = lt_tokens_push(tokens, id, start, i);
        else
            *status = ascii_rest_of_word(model, table, data, kind, start, i, id, piece_end, tokens);
        if (*status != LT_OK)
            return end;
    }
    return end;
}

int32_t lt_wordpiece_ascii(const lt_wordpiece *model, const lt_ascii_character *table, const lt_input *input,
                           int32_t position, int32_t end, lt_tokens *tokens, int *status) {
    *status = LT_OK;
    switch (input->kind) {
    case 1:
        return ascii_path(model, table, input->data, 1, position, end, tokens, status);
    case 2:
        return ascii_path(model, table, input->data, 2, position, end, tokens, status);
    default:
        return ascii_path(model, table, input->data, 4, position, end, tokens, status);
    }
}
