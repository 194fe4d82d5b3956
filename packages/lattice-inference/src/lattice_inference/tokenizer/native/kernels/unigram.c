/* The best path through a word, by Viterbi; see unigram.h. */
#include "unigram.h"

#include "word_cache.h"

/* Until the word is done, tokens have the range of the word's characters that they stand for. */

/* Emits the run of unknown tokens start..end-1 of the word as one token, or as its bytes. A run can be a piece by itself: a
 * piece whose characters the path went through one by one. */
static int emit_unknown(const lt_unigram *model, const lt_character *items, int32_t start, int32_t end,
                        lt_tokens *tokens) {
    int32_t node = LT_TRIE_ROOT;
    for (int32_t i = start; model->nodes != NULL && node >= 0 && i < end; i++)
        node = lt_trie_step_code_point(model->nodes, node, items[i].code_point);
    if (model->nodes != NULL && node >= 0 && model->nodes[node].value >= 0)
        return lt_tokens_push(tokens, model->nodes[node].value, start, end);
    if (model->byte_fallback) {
        size_t before = tokens->size;
        bool is_whole = true;
        for (int32_t i = end - 1; i >= start && is_whole; i--) { /* backwards, as all tokens are emitted */
            uint32_t rest = items[i].code_point;
            int continuation = rest < 0x80 ? 0 : rest < 0x800 ? 1 : rest < 0x10000 ? 2 : 3;
            for (int left = continuation; left >= 0 && is_whole; left--) {
                static const uint8_t lead[4] = {0, 0xC0, 0xE0, 0xF0};
                uint32_t byte = left > 0 ? 0x80 | (rest & 0x3F) : lead[continuation] | rest;
                rest >>= 6;
                is_whole = model->byte_ids[byte] >= 0;
                if (is_whole && lt_tokens_push(tokens, model->byte_ids[byte], start, end) != LT_OK)
                    return LT_NO_MEMORY;
            }
        }
        if (is_whole)
            return LT_OK;
        tokens->size = before;
    }
    return lt_tokens_push(tokens, model->unknown_id, start, end);
}

/* Follows the path back from the word's end; tokens come out last to first and are turned round. */
static int emit_path(const lt_unigram *model, const lt_character *items, const lt_unigram_path *paths, int32_t length,
                     lt_tokens *tokens) {
    size_t word_tokens = tokens->size;
    for (int32_t end = length; end > 0;) {
        int32_t start = paths[end].start;
        int status;
        if (paths[end].id == model->unknown_id) {
            while (start > 0 && paths[start].id == model->unknown_id)
                start = paths[start].start;
            status = emit_unknown(model, items, start, end, tokens);
        } else {
            status = lt_tokens_push(tokens, paths[end].id, start, end);
        }
        if (status != LT_OK)
            return status;
        end = start;
    }
    for (size_t low = word_tokens, high = tokens->size; low + 1 < high; low++, high--) {
        lt_token swapped = tokens->items[low];
        tokens->items[low] = tokens->items[high - 1];
        tokens->items[high - 1] = swapped;
    }
    return LT_OK;
}

/* Finds the best path to each place of a word and emits the one to its end. */
static int tokenize_word(const lt_unigram *model, const lt_character *items, int32_t length, lt_scratch *scratch,
                         lt_tokens *tokens) {
    const lt_trie_node *nodes = model->nodes;
    if (lt_reserve(&scratch->paths, &scratch->path_capacity, (size_t)length + 1, sizeof(lt_unigram_path)) != LT_OK)
        return LT_NO_MEMORY;
    lt_unigram_path *paths = scratch->paths;
    paths[0] = (lt_unigram_path){0.0, 0, -2};
    for (int32_t i = 1; i <= length; i++)
        paths[i].start = -1;
    for (int32_t start = 0; start < length; start++) {
        double score_here = paths[start].score;
        int32_t node = nodes != NULL ? LT_TRIE_ROOT : LT_TRIE_NONE;
        bool has_single = false;
        for (int32_t end = start; end < length && node >= 0;) {
            node = lt_trie_step_code_point(nodes, node, items[end].code_point);
            end++;
            if (node < 0 || nodes[node].value < 0)
                continue;
            double score = model->scores[nodes[node].value] + score_here;
            if (paths[end].start < 0 || score > paths[end].score)
                paths[end] = (lt_unigram_path){score, start, nodes[node].value};
            has_single |= end == start + 1;
        }
        if (has_single)
            continue;
        double score = model->unknown_score + score_here;
        if (paths[start + 1].start < 0 || score > paths[start + 1].score) {
            if (model->unknown_id < 0)
                return LT_NO_UNKNOWN;
            paths[start + 1] = (lt_unigram_path){score, start, model->unknown_id};
        }
    }
    return emit_path(model, items, paths, length, tokens);
}

/* Keeps the tokens from first on as those of a word, if they are few. */
static void keep_word(lt_cached_word *place, const lt_character *items, int32_t length, const lt_token *tokens,
                      size_t count) {
    place->length = 0;
    if (count > LT_CACHED_TOKENS)
        return;
    for (size_t i = 0; i < count; i++) {
        place->ids[i] = tokens[i].id;
        place->starts[i] = (uint8_t)tokens[i].start;
        place->ends[i] = (uint8_t)tokens[i].end;
    }
    for (int32_t i = 0; i < length; i++)
        place->characters[i] = items[i].code_point;
    place->count = (uint16_t)count;
    place->length = (uint16_t)length;
}

int lt_unigram_word(const lt_unigram *model, const lt_text *text, lt_span word, lt_scratch *scratch,
                    lt_tokens *tokens) {
    const lt_character *items = &text->items[word.start];
    int32_t length = word.end - word.start;
    bool is_hit;
    size_t first = tokens->size;
    lt_cached_word *place = lt_word_cache_place(scratch, items, length, &is_hit);
    if (is_hit) {
        for (int i = 0; i < place->count; i++)
            if (lt_tokens_push(tokens, place->ids[i], place->starts[i], place->ends[i]) != LT_OK)
                return LT_NO_MEMORY;
    } else {
        int status = tokenize_word(model, items, length, scratch, tokens);
        if (status != LT_OK)
            return status;
        if (place != NULL)
            keep_word(place, items, length, &tokens->items[first], tokens->size - first);
    }
    for (size_t i = first; i < tokens->size; i++) {
        lt_token *token = &tokens->items[i];
        token->start = items[token->start].source;
        token->end = items[token->end - 1].source + 1;
    }
    return LT_OK;
}
