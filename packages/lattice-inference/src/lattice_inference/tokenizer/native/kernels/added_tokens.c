/* Finds added tokens by walking their trie from each position; the walk is as short as the longest token. */
#include "added_tokens.h"

#include "unicode.h"

static inline uint32_t at(lt_haystack haystack, int32_t index) {
    return haystack.characters ? haystack.characters[index].code_point
                               : lt_read(haystack.data, haystack.kind, index);
}

static inline bool is_plain(lt_haystack haystack, int32_t index) {
    return haystack.plain[haystack.characters ? haystack.characters[index].source : index] != 0;
}

/* Returns the index of the longest token at position and its end, or -1. Special tokens that are plain in part do not
 * count: a text cannot take away the token that stands before it. Whether all of the match is plain goes to *plain. */
static int32_t longest_match(const lt_added_tokens *tokens, lt_haystack haystack, int32_t position, int32_t end,
                             int32_t *match_end, bool *plain) {
    const lt_trie_node *nodes = tokens->trie.nodes;
    int32_t node = LT_TRIE_ROOT, found = -1, plain_characters = 0;
    for (int32_t i = position; i < end; i++) {
        node = lt_trie_step_code_point(nodes, node, at(haystack, i));
        if (node < 0)
            break;
        if (haystack.plain != NULL)
            plain_characters += is_plain(haystack, i);
        int32_t value = nodes[node].value;
        if (value < 0)
            continue;
        bool partly = plain_characters > 0 && plain_characters < i + 1 - position;
        if (partly && (tokens->flags[value] & LT_ADDED_SPECIAL))
            continue;
        found = value;
        *match_end = i + 1;
        *plain = plain_characters == i + 1 - position;
    }
    return found;
}

bool lt_added_next(const lt_added_tokens *tokens, lt_haystack haystack, bool find_special, lt_added_search *search) {
    if (tokens->trie.nodes == NULL)
        return false;
    while (search->position < search->end) {
        if (!tokens->can_start[at(haystack, search->position) & 0xFF]) {
            search->position++;
            continue;
        }
        int32_t start = search->position, end = start;
        bool plain = false;
        int32_t index = longest_match(tokens, haystack, start, search->end, &end, &plain);
        if (index < 0) {
            search->position++;
            continue;
        }
        /* A match that is then rejected has still been read: the search goes on behind it, as Hugging Face's does. */
        search->position = end;
        uint8_t flags = tokens->flags[index];
        if ((flags & LT_ADDED_SPECIAL) && (plain || !find_special))
            continue;
        if (flags & LT_ADDED_SINGLE_WORD) {
            bool touches_left = start > search->start && lt_has(at(haystack, start - 1), LT_UNICODE_WORD);
            bool touches_right = end < search->end && lt_has(at(haystack, end), LT_UNICODE_WORD);
            if (touches_left || touches_right)
                continue;
        }
        if (flags & LT_ADDED_STRIP_LEFT) {
            int32_t stripped = start;
            while (stripped > search->text_start && lt_has(at(haystack, stripped - 1), LT_UNICODE_WHITESPACE))
                stripped--;
            start = stripped > search->text_start ? stripped : search->text_start;
        }
        if (flags & LT_ADDED_STRIP_RIGHT)
            while (end < search->end && lt_has(at(haystack, end), LT_UNICODE_WHITESPACE))
                end++;
        if (start >= end)
            continue; /* all of it had already gone to the token before */
        search->id = tokens->ids[index];
        search->token_start = start;
        search->token_end = end;
        return true;
    }
    return false;
}
