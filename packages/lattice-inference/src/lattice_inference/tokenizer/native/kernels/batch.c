/* Batches: see batch.h. */
#include "batch.h"

#include "unicode.h"

/* A kept part of one text's tokens. */
typedef struct {
    int64_t start, end;
} range;

static int64_t length(range r) {
    return r.end - r.start;
}

static range cut(range r, int64_t keep, bool cut_left) {
    if (length(r) <= keep)
        return r;
    return cut_left ? (range){r.end - keep, r.end} : (range){r.start, r.start + keep};
}

/* How a limit is shared by two texts when the longer one is cut first: the shorter stays whole while it fits, and when
 * both must be cut, each gets half (the longer one the odd token). The same numbers as Hugging Face's. */
static void share(int64_t limit, int64_t *first, int64_t *second) {
    bool swapped = *first > *second;
    int64_t shorter = swapped ? *second : *first, longer;
    if (shorter > limit)
        longer = shorter;
    else
        longer = shorter > limit - shorter ? shorter : limit - shorter;
    if (shorter + longer > limit) {
        shorter = limit / 2;
        longer = shorter + limit % 2;
    }
    *first = swapped ? longer : shorter;
    *second = swapped ? shorter : longer;
}

/* Cuts the two texts' tokens (the second empty for a single text) to limit tokens together. */
static int truncate(range *first, range *second, bool is_pair, int64_t limit, lt_truncation truncation) {
    int64_t excess = length(*first) + length(*second) - limit;
    if (excess <= 0)
        return LT_OK;
    if (limit == 0) {
        first->end = first->start;
        second->end = second->start;
        return LT_OK;
    }
    if (truncation.strategy == LT_LONGEST_FIRST) {
        int64_t keep_first = length(*first), keep_second = length(*second);
        if (is_pair)
            share(limit, &keep_first, &keep_second);
        else
            keep_first = limit;
        *first = cut(*first, keep_first, truncation.cut_left);
        *second = cut(*second, keep_second, truncation.cut_left);
        return LT_OK;
    }
    range *target = truncation.strategy == LT_ONLY_FIRST ? first : second;
    if (length(*target) <= excess)
        return LT_TRUNCATION_TOO_SHORT;
    *target = cut(*target, length(*target) - excess, truncation.cut_left);
    return LT_OK;
}

/* Returns the index of the first lone surrogate (in a Python str every surrogate is one), or -1. */
static int32_t find_surrogate(const lt_input *input) {
    if (input->kind == 1)
        return -1;
    for (int32_t i = 0; i < input->length; i++)
        if (lt_read(input->data, input->kind, i) - 0xD800 < 0x800)
            return i;
    return -1;
}

static int tokenize_checked(const lt_pipeline *pipeline, const lt_input *input, bool find_special, lt_scratch *scratch,
                            lt_tokens *tokens, lt_batch *batch) {
    int32_t surrogate = find_surrogate(input);
    if (surrogate >= 0) {
        batch->failed_character = surrogate;
        return LT_LONE_SURROGATE;
    }
    return lt_tokenize(pipeline, input, find_special, scratch, tokens);
}

static int append(lt_batch *batch, const lt_token *tokens, int64_t count, int32_t type_id) {
    size_t needed = batch->size + (size_t)count;
    if (lt_reserve((void **)&batch->tokens, &batch->token_capacity, needed, sizeof(lt_token)) != LT_OK ||
        lt_reserve((void **)&batch->type_ids, &batch->type_capacity, needed, sizeof(int32_t)) != LT_OK)
        return LT_NO_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        batch->tokens[batch->size + (size_t)i] = tokens[i];
        batch->type_ids[batch->size + (size_t)i] = type_id;
    }
    batch->size = needed;
    return LT_OK;
}

static bool is_trimmed(const lt_input *input, int32_t index) {
    uint32_t code_point = lt_read(input->data, input->kind, index);
    return code_point == 0x120 || lt_has(code_point, LT_UNICODE_WHITESPACE); /* U+0120 is a byte-level token's space */
}

/* Takes the white space at both ends of the tokens' texts out of their ranges: the same numbers as Hugging Face's. */
static void trim_offsets(const lt_pipeline *pipeline, const lt_input *input, lt_token *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        lt_token *token = &tokens[i];
        int32_t leading = pipeline->trims[token->id].leading, trailing = pipeline->trims[token->id].trailing;
        if (leading == LT_TRIM_BY_TEXT) {
            leading = trailing = 0;
            while (token->start + leading < token->end && is_trimmed(input, token->start + leading))
                leading++;
            while (token->end - trailing > token->start && is_trimmed(input, token->end - trailing - 1))
                trailing++;
        }
        if (leading > 0) {
            if (pipeline->trim_keeps_prefix && leading == 1 && (i == 0 || token->start == 0))
                leading = 0; /* more than one cannot come from the pre-tokenizer, which adds none before a space */
            token->start = token->start + leading < token->end ? token->start + leading : token->end;
        }
        if (trailing > 0 && token->end >= trailing)
            token->end = token->end - trailing > token->start ? token->end - trailing : token->start;
    }
}

static int encode_one(const lt_pipeline *pipeline, const lt_input *text, const lt_input *second, lt_template template,
                      lt_truncation truncation, bool find_special, lt_scratch *scratch, lt_tokens *tokens,
                      lt_batch *batch, int32_t *token_count, uint8_t *truncated) {
    tokens->size = 0;
    int status = tokenize_checked(pipeline, text, find_special, scratch, tokens, batch);
    if (status != LT_OK)
        return status;
    range ranges[2] = {{0, (int64_t)tokens->size}, {(int64_t)tokens->size, (int64_t)tokens->size}};
    if (second != NULL) {
        status = tokenize_checked(pipeline, second, find_special, scratch, tokens, batch);
        if (status != LT_OK)
            return status;
        ranges[1].end = (int64_t)tokens->size;
    }
    int64_t special = 0, total = 0;
    for (size_t i = 0; i < template.count; i++) {
        bool is_special = template.parts[i].sequence < 0;
        special += is_special;
        total += is_special ? 1 : length(ranges[template.parts[i].sequence]);
    }
    if (total > INT32_MAX)
        return LT_TOO_MANY_TOKENS;
    *token_count = (int32_t)total;
    int64_t before = length(ranges[0]) + length(ranges[1]);
    if (truncation.max_tokens >= 0) {
        int64_t limit = truncation.max_tokens - special;
        if (limit < 0)
            return LT_NO_ROOM;
        status = truncate(&ranges[0], &ranges[1], second != NULL, limit, truncation);
        if (status != LT_OK)
            return status;
    }
    *truncated = length(ranges[0]) + length(ranges[1]) < before;
    for (size_t i = 0; i < template.count; i++) {
        lt_template_part part = template.parts[i];
        if (part.sequence < 0) {
            lt_token token = {part.id, 0, 0};
            status = append(batch, &token, 1, part.type_id);
        } else {
            range kept = ranges[part.sequence];
            if (pipeline->trims != NULL && length(kept))
                trim_offsets(pipeline, part.sequence ? second : text, tokens->items + kept.start, length(kept));
            status = length(kept) ? append(batch, tokens->items + kept.start, length(kept), part.type_id) : LT_OK;
        }
        if (status != LT_OK)
            return status;
    }
    return LT_OK;
}

int lt_encode_batch(const lt_pipeline *pipeline, const lt_input *texts, const lt_input *seconds, size_t count,
                    lt_template single, lt_template pair, lt_truncation truncation, bool find_special, lt_batch *batch,
                    int32_t *boundaries, int32_t *token_counts, uint8_t *truncated) {
    lt_scratch scratch = {0};
    lt_tokens tokens = {0};
    int status = LT_OK;
    if (pipeline->kind == LT_MODEL_BPE) {
        scratch.bpe = lt_bpe_lend(&pipeline->bpe);
        if (scratch.bpe == NULL)
            return LT_NO_MEMORY;
    }
    for (size_t i = 0; i < count && status == LT_OK; i++) {
        const lt_input *second = seconds != NULL && seconds[i].data != NULL ? &seconds[i] : NULL;
        status = encode_one(pipeline, &texts[i], second, second ? pair : single, truncation, find_special, &scratch,
                            &tokens, batch, &token_counts[i], &truncated[i]);
        if (status == LT_OK && batch->size > INT32_MAX)
            status = LT_TOO_MANY_TOKENS;
        boundaries[i + 1] = (int32_t)batch->size;
        batch->failed_text = i;
    }
    free(tokens.items);
    if (scratch.bpe != NULL)
        lt_bpe_return(&pipeline->bpe, scratch.bpe);
    lt_scratch_free(&scratch);
    return status;
}

void lt_batch_free(lt_batch *batch) {
    free(batch->tokens);
    free(batch->type_ids);
}
