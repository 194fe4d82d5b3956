/* From a vocabulary and merges to the tables of bpe.h. */
#include <stdatomic.h>
#include <string.h>

#include "bpe.h"

enum { SPACE_MARK = 0x2581 }; /* how SentencePiece writes a space */

uint32_t lt_byte_character(uint8_t byte) {
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174)
        return byte;
    if (byte <= 32)
        return 256u + byte;
    if (byte <= 160)
        return 256u + 33 + (byte - 127u);
    return 256u + 33 + 34; /* 173 */
}

/* The byte that a code point stands for, or -1. */
static int byte_of(uint32_t code_point) {
    if ((code_point >= 33 && code_point <= 126) || (code_point >= 161 && code_point <= 255 && code_point != 173))
        return (int)code_point;
    if (code_point < 256 || code_point > 256 + 67)
        return -1;
    uint32_t index = code_point - 256;
    return (int)(index <= 32 ? index : index <= 66 ? index - 33 + 127 : 173);
}

/* Reads one code point of valid UTF-8 and moves position behind it. */
static uint32_t read_utf8(const uint8_t *data, int32_t *position) {
    const uint8_t *at = data + *position;
    if (at[0] < 0x80) {
        *position += 1;
        return at[0];
    }
    if (at[0] < 0xE0) {
        *position += 2;
        return (at[0] & 0x1Fu) << 6 | (at[1] & 0x3Fu);
    }
    if (at[0] < 0xF0) {
        *position += 3;
        return (at[0] & 0x0Fu) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
    }
    *position += 4;
    return (at[0] & 0x07u) << 18 | (at[1] & 0x3Fu) << 12 | (at[2] & 0x3Fu) << 6 | (at[3] & 0x3Fu);
}

static void insert_character(lt_bpe *model, uint32_t code_point, int variant, int32_t id) {
    uint32_t key = code_point | (uint32_t)variant << 21;
    size_t i = lt_bpe_character_hash(key) & model->character_mask;
    while (model->characters[i].key != UINT32_MAX)
        i = (i + 1) & model->character_mask;
    model->characters[i] = (lt_bpe_character){key, id};
}

/* Whether a token is one character between the affixes of a variant, and which. */
static bool is_unit(const lt_bpe_source *source, lt_bpe_token token, int variant, uint32_t *code_point) {
    int32_t start = variant & LT_BPE_CONTINUES ? source->prefix_length : 0;
    int32_t tail = variant & LT_BPE_ENDS ? source->suffix_length : 0;
    if (token.length <= start + tail || token.length > start + tail + 4)
        return false;
    if (start && memcmp(token.data, source->prefix, (size_t)start) != 0)
        return false;
    int32_t position = start;
    *code_point = read_utf8(token.data, &position);
    return position == token.length - tail &&
           (tail == 0 || memcmp(token.data + position, source->suffix, (size_t)tail) == 0);
}

static int build_units(lt_bpe *model, const lt_bpe_source *source) {
    size_t units = 0;
    uint32_t code_point;
    memset(model->byte_ids, -1, sizeof model->byte_ids);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < source->token_count; i++) {
            for (int variant = 0; variant < LT_BPE_VARIANTS; variant++) {
                if (!is_unit(source, source->tokens[i], variant, &code_point))
                    continue;
                if (pass == 0) {
                    units++;
                } else if (!model->byte_level) {
                    insert_character(model, code_point, variant, source->tokens[i].id);
                } else {
                    int byte = byte_of(code_point);
                    if (byte >= 0)
                        model->byte_ids[variant][byte] = source->tokens[i].id;
                }
            }
        }
        if (pass > 0 || model->byte_level)
            continue;
        size_t capacity = 16;
        while (capacity < 2 * units)
            capacity *= 2;
        model->characters = malloc(capacity * sizeof(lt_bpe_character));
        if (model->characters == NULL)
            return LT_NO_MEMORY;
        memset(model->characters, -1, capacity * sizeof(lt_bpe_character));
        model->character_mask = capacity - 1;
    }
    return LT_OK;
}

static void insert_merge(lt_bpe *model, int32_t left, int32_t right, int32_t rank, int32_t id) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = lt_bpe_pair_hash(pair, model->seed) & model->merge_mask;
    while (model->merges[i].pair != UINT64_MAX && model->merges[i].pair != pair)
        i = (i + 1) & model->merge_mask;
    model->merges[i] = (lt_bpe_merge){pair, rank, id}; /* of two equal merges the later one counts */
}

/* The lowest and the highest id of the tokens that units become without being them: the unknown token and bytes. */
static void substitute_range(const lt_bpe *model, int32_t *low, int32_t *high) {
    *low = INT32_MAX;
    *high = -1;
    for (int byte = -1; byte < 256; byte++) {
        int32_t id = byte < 0 ? model->unknown_id : model->fallback_ids[byte];
        if (id >= 0 && id < *low)
            *low = id;
        if (id > *high)
            *high = id;
    }
}

static int build_merges(lt_bpe *model, const lt_bpe_source *source, const lt_string_table *ids, size_t *failed) {
    size_t capacity = 16, joined_capacity = 0;
    while (capacity < 2 * source->merge_count)
        capacity *= 2;
    model->merges = malloc(capacity * sizeof(lt_bpe_merge));
    model->rank_ids = malloc((source->merge_count + 1) * sizeof(int32_t));
    if (model->merges == NULL || model->rank_ids == NULL)
        return LT_NO_MEMORY;
    memset(model->merges, -1, capacity * sizeof(lt_bpe_merge));
    model->merge_mask = capacity - 1;
    model->merge_count = source->merge_count;
    model->seed = lt_hash_seed();
    uint8_t *joined = NULL;
    int32_t low, high;
    substitute_range(model, &low, &high);
    int status = LT_OK;
    for (size_t i = 0; i < source->merge_count && status == LT_OK; i++) {
        lt_bpe_pair pair = source->merges[i];
        *failed = i;
        int32_t left = lt_string_table_find(ids, pair.left, (size_t)pair.left_length);
        int32_t right = lt_string_table_find(ids, pair.right, (size_t)pair.right_length);
        if (left < 0 || right < 0) {
            status = left < 0 ? LT_BPE_LEFT_MISSING : LT_BPE_RIGHT_MISSING;
            break;
        }
        if (pair.right_length < source->prefix_length) {
            status = LT_BPE_SHORT_RIGHT;
            break;
        }
        size_t left_length = (size_t)pair.left_length;
        size_t right_length = (size_t)(pair.right_length - source->prefix_length);
        status = lt_reserve((void **)&joined, &joined_capacity, left_length + right_length, 1);
        if (status != LT_OK)
            break;
        memcpy(joined, pair.left, left_length);
        memcpy(joined + left_length, pair.right + source->prefix_length, right_length);
        int32_t id = lt_string_table_find(ids, joined, left_length + right_length);
        if (id < 0) {
            status = LT_BPE_MERGED_MISSING;
            break;
        }
        insert_merge(model, left, right, (int32_t)i, id);
        model->rank_ids[i] = id;
        if ((left >= low && left <= high) || (right >= low && right <= high))
            model->cuts_at_spaces = false;
    }
    free(joined);
    return status;
}

/* Finds out between which characters and U+2581 a token can lie. */
static void find_joins(lt_bpe *model, const lt_bpe_source *source) {
    if (lt_bpe_character_id(model, SPACE_MARK, 0) < 0) {
        model->cuts_at_spaces = false;
        return;
    }
    for (size_t i = 0; i < source->token_count; i++) {
        uint32_t before = UINT32_MAX;
        for (int32_t position = 0; position < source->tokens[i].length;) {
            uint32_t code_point = read_utf8(source->tokens[i].data, &position);
            size_t known = 0;
            while (known < model->join_count && model->joins[known] != before)
                known++;
            if (code_point == SPACE_MARK && before != UINT32_MAX && known == model->join_count) {
                if (known == LT_BPE_MAX_JOINS) {
                    model->cuts_at_spaces = false;
                    return;
                }
                model->joins[model->join_count++] = before;
            }
            before = code_point;
        }
    }
}

/* Lays out the bytes that each token stands for; a byte-level token with another character stands for nothing. */
static int build_words(lt_bpe *model, const lt_bpe_source *source) {
    size_t total = 1;
    for (size_t i = 0; i < source->token_count; i++)
        total += (size_t)source->tokens[i].length;
    model->word_bytes = malloc(total);
    if (model->word_bytes == NULL || lt_string_table_create(&model->words, source->token_count) != LT_OK)
        return LT_NO_MEMORY;
    uint8_t *out = model->word_bytes;
    for (size_t i = 0; i < source->token_count; i++) {
        lt_bpe_token token = source->tokens[i];
        uint8_t *start = out;
        bool is_word = token.length > 0;
        if (!model->byte_level) {
            memcpy(out, token.data, (size_t)token.length);
            out += token.length;
        } else {
            for (int32_t position = 0; position < token.length && is_word;) {
                int byte = byte_of(read_utf8(token.data, &position));
                is_word = byte >= 0;
                *out++ = (uint8_t)byte;
            }
        }
        if (is_word)
            lt_string_table_insert(&model->words, start, (size_t)(out - start), token.id);
        else
            out = start;
    }
    return LT_OK;
}

int lt_bpe_build(lt_bpe *model, const lt_bpe_source *source, size_t *failed) {
    static const char digits[] = "0123456789ABCDEF";
    lt_string_table ids;
    *failed = 0;
    if (lt_string_table_create(&ids, source->token_count) != LT_OK)
        return LT_NO_MEMORY;
    for (size_t i = 0; i < source->token_count; i++)
        lt_string_table_insert(&ids, source->tokens[i].data, (size_t)source->tokens[i].length, source->tokens[i].id);
    for (int byte = 0; byte < 256; byte++) {
        char name[7] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>', 0};
        model->fallback_ids[byte] =
            model->byte_fallback ? lt_string_table_find(&ids, (const uint8_t *)name, 6) : -1;
    }
    model->has_affixes = source->prefix_length > 0 || source->suffix_length > 0;
    bool knows_all = model->unknown_id >= 0;
    if (!knows_all && model->byte_fallback) {
        knows_all = true;
        for (int byte = 0; byte < 256; byte++)
            knows_all &= model->fallback_ids[byte] >= 0;
    }
    /* where characters become nothing, those around them are neighbours */
    model->cuts_at_spaces = knows_all && !model->byte_level && !model->has_affixes && !model->ignore_merges;
    int status = build_units(model, source);
    if (status == LT_OK)
        status = build_merges(model, source, &ids, failed);
    lt_string_table_free(&ids);
    if (status == LT_OK && model->cuts_at_spaces)
        find_joins(model, source);
    if (status == LT_OK && model->ignore_merges)
        status = build_words(model, source);
    if (status == LT_OK) {
        model->spares = calloc(LT_BPE_SPARES, sizeof *model->spares);
        status = model->spares == NULL ? LT_NO_MEMORY : LT_OK;
    }
    return status;
}
