/* From a text to its tokens; see pipeline.h. */
#include "pipeline.h"

#include "unicode.h"
#include "word_scan.h"

int lt_load(const lt_input *input, int32_t start, int32_t end, lt_scratch *scratch) {
    size_t size = (size_t)(end - start);
    if (lt_text_reserve(&scratch->text, size) != LT_OK)
        return LT_NO_MEMORY;
    for (size_t i = 0; i < size; i++)
        scratch->text.items[i] =
            (lt_character){lt_read(input->data, input->kind, start + (int32_t)i), start + (int32_t)i};
    scratch->text.size = size;
    return LT_OK;
}

/* Gives a word of scratch->words to the model. */
static int tokenize_word(const lt_pipeline *pipeline, lt_span word, lt_scratch *scratch, lt_tokens *tokens) {
    switch (pipeline->kind) {
    case LT_MODEL_UNIGRAM:
        return lt_unigram_word(&pipeline->unigram, scratch->words, word, scratch, tokens);
    case LT_MODEL_WORDPIECE:
    case LT_MODEL_BPE: /* takes all words together */
        break;
    }
    return lt_wordpiece_word(&pipeline->model, scratch->words, word, tokens);
}

/* Splits a part of scratch->text into words and gives them to the model. */
static int tokenize_normalized(const lt_pipeline *pipeline, int32_t start, int32_t end, lt_scratch *scratch,
                               lt_tokens *tokens) {
    int status = lt_pre_tokenize(pipeline->split_steps, pipeline->split_count, &scratch->text, start, end, scratch);
    if (status == LT_OK && pipeline->kind == LT_MODEL_BPE)
        return lt_bpe_words(&pipeline->bpe, scratch->bpe, scratch->words, &scratch->spans, tokens);
    for (size_t i = 0; i < scratch->spans.size && status == LT_OK; i++)
        status = tokenize_word(pipeline, scratch->spans.items[i], scratch, tokens);
    return status;
}

/* The general path: any text, all steps. */
static int tokenize_general(const lt_pipeline *pipeline, const lt_input *input, int32_t start, int32_t end,
                            bool find_special, lt_scratch *scratch, lt_tokens *tokens) {
    int status = lt_load(input, start, end, scratch);
    if (status == LT_OK)
        status = lt_normalize(pipeline->normalize_steps, pipeline->normalize_count, scratch);
    if (status != LT_OK)
        return status;
    lt_haystack haystack = {.characters = scratch->text.items, .plain = input->plain};
    lt_added_search search = {.start = 0, .end = (int32_t)scratch->text.size};
    while (lt_added_next(&pipeline->normalized_added, haystack, find_special, &search)) {
        status = tokenize_normalized(pipeline, search.text_start, search.token_start, scratch, tokens);
        if (status != LT_OK)
            return status;
        const lt_character *items = scratch->text.items;
        if (lt_tokens_push(tokens, search.id, items[search.token_start].source,
                           items[search.token_end - 1].source + 1) != LT_OK)
            return LT_NO_MEMORY;
        search.text_start = search.token_end;
    }
    return tokenize_normalized(pipeline, search.text_start, search.end, scratch, tokens);
}

/* The direct path of BPE: input that is its own normal form, split and encoded where it lies. */
static int tokenize_direct(const lt_pipeline *pipeline, const lt_input *input, int32_t start, int32_t end,
                           bool find_special, lt_scratch *scratch, lt_tokens *tokens) {
    lt_haystack haystack = {.data = input->data, .kind = input->kind, .plain = input->plain};
    lt_added_search search = {.start = start, .end = end, .position = start, .text_start = start};
    int status;
    while (lt_added_next(&pipeline->normalized_added, haystack, find_special, &search)) {
        status = lt_bpe_input(&pipeline->bpe, pipeline->split_steps, pipeline->split_count, scratch->bpe, input,
                              search.text_start, search.token_start, tokens);
        if (status != LT_OK)
            return status;
        if (lt_tokens_push(tokens, search.id, search.token_start, search.token_end) != LT_OK)
            return LT_NO_MEMORY;
        search.text_start = search.token_end;
    }
    return lt_bpe_input(&pipeline->bpe, pipeline->split_steps, pipeline->split_count, scratch->bpe, input,
                        search.text_start, end, tokens);
}

/* Ordinary text between two added tokens: stretches of ASCII the fast way, stretches with anything else the other. */
static int tokenize_piece(const lt_pipeline *pipeline, const lt_input *input, int32_t start, int32_t end,
                          bool find_special, lt_scratch *scratch, lt_tokens *tokens) {
    if (pipeline->has_direct_path && (pipeline->normalize_count == 0 || lt_is_nfc(input, start, end)))
        return tokenize_direct(pipeline, input, start, end, find_special, scratch, tokens);
    if (!pipeline->has_ascii_path)
        return tokenize_general(pipeline, input, start, end, find_special, scratch, tokens);
    while (start < end) {
        int status;
        start = lt_wordpiece_ascii(&pipeline->model, pipeline->ascii, input, start, end, tokens, &status);
        if (status != LT_OK)
            return status;
        if (start == end)
            break;
        /* Up to the next space: no normal form reaches across one, and every splitting step ends a word there. */
        int32_t stop = start;
        while (stop < end) {
            uint32_t code_point = lt_read(input->data, input->kind, stop);
            if (code_point < 128 && pipeline->ascii[code_point].role == LT_ASCII_SPACE)
                break;
            stop++;
        }
        status = tokenize_general(pipeline, input, start, stop, find_special, scratch, tokens);
        if (status != LT_OK)
            return status;
        start = stop;
    }
    return LT_OK;
}

int lt_tokenize(const lt_pipeline *pipeline, const lt_input *input, bool find_special, lt_scratch *scratch,
                lt_tokens *tokens) {
    lt_haystack haystack = {.data = input->data, .kind = input->kind, .plain = input->plain};
    lt_added_search search = {.start = 0, .end = input->length};
    while (lt_added_next(&pipeline->raw_added, haystack, find_special, &search)) {
        int status = LT_OK;
        if (search.text_start < search.token_start)
            status =
                tokenize_piece(pipeline, input, search.text_start, search.token_start, find_special, scratch, tokens);
        if (status != LT_OK)
            return status;
        if (lt_tokens_push(tokens, search.id, search.token_start, search.token_end) != LT_OK)
            return LT_NO_MEMORY;
        search.text_start = search.token_end;
    }
    return tokenize_piece(pipeline, input, search.text_start, search.end, find_special, scratch, tokens);
}

/* Returns whether the splitting steps decide character by character, and what they make of code_point. */
static bool ascii_role(const lt_pipeline *pipeline, uint32_t code_point, lt_ascii_role *role) {
    uint16_t flags = lt_properties(code_point)->flags;
    *role = LT_ASCII_RUN;
    for (size_t i = 0; i < pipeline->split_count; i++) {
        switch (pipeline->split_steps[i].kind) {
        case LT_SPLIT_WHITESPACE:
        case LT_SPLIT_WORD_RUNS:
            if (flags & LT_UNICODE_WHITESPACE)
                *role = LT_ASCII_SPACE;
            else if (pipeline->split_steps[i].kind == LT_SPLIT_WORD_RUNS && !(flags & LT_UNICODE_WORD) &&
                     *role == LT_ASCII_RUN)
                *role = LT_ASCII_OTHER_RUN;
            break;
        case LT_SPLIT_PUNCTUATION_ISOLATED:
            if ((flags & LT_UNICODE_PUNCTUATION) && *role != LT_ASCII_SPACE)
                *role = LT_ASCII_ALONE;
            break;
        default:
            return false;
        }
    }
    return true;
}

static bool steps_are_local(const lt_pipeline *pipeline) {
    for (size_t i = 0; i < pipeline->normalize_count; i++) {
        lt_step step = pipeline->normalize_steps[i];
        if (step.kind == LT_NORMALIZE_STRIP_LEFT || step.kind == LT_NORMALIZE_STRIP_RIGHT || step.argument != NULL)
            return false;
    }
    return pipeline->normalized_added.trie.nodes == NULL;
}

static bool has_direct_path(const lt_pipeline *pipeline) {
    for (size_t i = 0; i < pipeline->normalize_count; i++)
        if (pipeline->normalize_steps[i].kind != LT_NORMALIZE_NFC)
            return false;
    for (size_t i = 0; i < pipeline->split_count; i++)
        if (!lt_is_scanner(pipeline->split_steps[i].kind) && pipeline->split_steps[i].kind != LT_SPLIT_BYTE_LEVEL)
            return false;
    return pipeline->kind == LT_MODEL_BPE && !pipeline->bpe.cuts_at_spaces;
}

int lt_pipeline_finish(lt_pipeline *pipeline, lt_scratch *scratch) {
    pipeline->has_direct_path = has_direct_path(pipeline);
    pipeline->has_ascii_path = pipeline->kind == LT_MODEL_WORDPIECE && steps_are_local(pipeline);
    for (uint32_t c = 0; c < 128; c++) {
        uint8_t character = (uint8_t)c;
        lt_input input = {&character, 1, 1, NULL};
        pipeline->ascii[c] = (lt_ascii_character){LT_ASCII_GENERAL, 0};
        int status = lt_load(&input, 0, 1, scratch);
        if (status == LT_OK)
            status = lt_normalize(pipeline->normalize_steps, pipeline->normalize_count, scratch);
        if (status != LT_OK)
            return status;
        if (scratch->text.size != 1 || scratch->text.items[0].code_point >= 128)
            continue;
        lt_ascii_role role;
        if (!ascii_role(pipeline, scratch->text.items[0].code_point, &role))
            pipeline->has_ascii_path = false;
        pipeline->ascii[c] = (lt_ascii_character){(uint8_t)role, (uint8_t)scratch->text.items[0].code_point};
    }
    return LT_OK;
}

void lt_pipeline_free(lt_pipeline *pipeline) {
    lt_trie_free(&pipeline->raw_added.trie);
    lt_trie_free(&pipeline->normalized_added.trie);
    lt_trie_free(&pipeline->model.vocabulary);
    lt_bpe_free(&pipeline->bpe);
    free(pipeline->trims);
}
