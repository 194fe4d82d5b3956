/* Words to tokens: spell the word in UTF-8, look it up in the cache, else cut it into units and merge them. */
#include <string.h>

#include "bpe.h"
#include "word_scan.h"

/* The word at hand: characters start..end-1 of data. */
typedef struct {
    const void *data;
    int32_t start, end;
} word;

LT_INLINE int write_utf8(uint8_t *out, uint32_t code_point) {
    if (code_point < 0x80) {
        out[0] = (uint8_t)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (uint8_t)(0xC0 | code_point >> 6);
        out[1] = (uint8_t)(0x80 | (code_point & 0x3F));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (uint8_t)(0xE0 | code_point >> 12);
        out[1] = (uint8_t)(0x80 | (code_point >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (code_point & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | code_point >> 18);
    out[1] = (uint8_t)(0x80 | (code_point >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (code_point >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (code_point & 0x3F));
    return 4;
}

LT_INLINE void push_token(lt_tokens *tokens, const void *data, int kind, int32_t id, int32_t first, int32_t last) {
    if (kind == LT_KIND_CHARACTERS) {
        const lt_character *items = data;
        first = items[first].source;
        last = items[last].source;
    }
    tokens->items[tokens->size++] = (lt_token){id, first, last + 1};
}

/* Appends count tokens that end at the positions ends in the size bytes of the word. A token whose bytes begin or end
 * inside a character covers all of the character. */
#define PUSH_TOKENS(tokens, w, kind, bytes, size, ids, ends, count)                                                    \
    do {                                                                                                               \
        if ((int32_t)(size) == (w).end - (w).start) {                                                                  \
            int32_t from = 0;                                                                                          \
            for (size_t i_ = 0; i_ < (size_t)(count); i_++) {                                                          \
                push_token(tokens, (w).data, kind, (ids)[i_], (w).start + from, (w).start + (int32_t)(ends)[i_] - 1);  \
                from = (int32_t)(ends)[i_];                                                                            \
            }                                                                                                          \
        } else {                                                                                                       \
            int32_t at = 0, character = (w).start - 1;                                                                 \
            for (size_t i_ = 0; i_ < (size_t)(count); i_++) {                                                          \
                character += ((bytes)[at] & 0xC0) != 0x80;                                                             \
                int32_t first = character;                                                                             \
                for (at++; at < (int32_t)(ends)[i_]; at++)                                                             \
                    character += ((bytes)[at] & 0xC0) != 0x80;                                                         \
                push_token(tokens, (w).data, kind, (ids)[i_], first, character);                                       \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

static inline int variant_of(bool is_first, bool is_last) {
    return (is_first ? 0 : LT_BPE_CONTINUES) | (is_last ? LT_BPE_ENDS : 0);
}

static int reserve_units(lt_bpe_scratch *scratch, size_t count) {
    return lt_reserve((void **)&scratch->ids, &scratch->ids_capacity, count, sizeof(int32_t)) != LT_OK ||
                   lt_reserve((void **)&scratch->ends, &scratch->ends_capacity, count, sizeof(int32_t)) != LT_OK
               ? LT_NO_MEMORY
               : LT_OK;
}

/* Cuts a word into units; returns false if one of them is no token. */
LT_INLINE bool cut_units(const lt_bpe *model, lt_bpe_scratch *scratch, word w, int kind, const uint8_t *bytes,
                         size_t size) {
    int32_t *ids = scratch->ids, *ends = scratch->ends;
    if (model->byte_level) {
        for (size_t i = 0; i < size; i++) {
            int variant = model->has_affixes ? variant_of(i == 0, i + 1 == size) : 0;
            ids[i] = model->byte_ids[variant][bytes[i]];
            if (ids[i] < 0)
                return false;
            ends[i] = (int32_t)i + 1;
        }
        scratch->size = size;
        return true;
    }
    uint8_t spelled[4];
    int32_t at = 0;
    scratch->size = 0;
    for (int32_t i = w.start; i < w.end; i++) {
        uint32_t code_point = lt_at(w.data, kind, i);
        int variant = model->has_affixes ? variant_of(i == w.start, i + 1 == w.end) : 0;
        int32_t id = lt_bpe_character_id(model, code_point, variant);
        if (id < 0)
            return false;
        at += write_utf8(spelled, code_point);
        ids[scratch->size] = id;
        ends[scratch->size++] = at;
    }
    return true;
}

/* Adds one unit to an irregular word; unknown ones wait in *waiting (their length), as the next may fuse with them. */
static void add_unit(const lt_bpe *model, lt_bpe_scratch *scratch, int32_t id, const uint8_t *spelled, int32_t length,
                     int32_t *at, int32_t *waiting) {
    if (id >= 0) {
        if (*waiting > 0) {
            scratch->ids[scratch->size] = model->unknown_id;
            scratch->ends[scratch->size++] = *at += *waiting;
            *waiting = 0;
        }
        scratch->ids[scratch->size] = id;
        scratch->ends[scratch->size++] = *at += length;
        return;
    }
    bool falls_back = model->byte_fallback;
    for (int32_t i = 0; i < length && falls_back; i++)
        falls_back = model->fallback_ids[spelled[i]] >= 0;
    if (falls_back) {
        for (int32_t i = 0; i < length; i++) {
            scratch->ids[scratch->size] = model->fallback_ids[spelled[i]];
            scratch->ends[scratch->size++] = *at += 1;
        }
    } else if (model->unknown_id >= 0) {
        if (*waiting > 0 && !model->fuse_unknown) {
            scratch->ids[scratch->size] = model->unknown_id;
            scratch->ends[scratch->size++] = *at += *waiting;
            *waiting = 0;
        }
        *waiting += length;
    }
}

/* A word with a unit that is no token. Its tokens' places are those that Hugging Face's library gives: lengths of tokens
 * are added up from the beginning of the word, so behind a unit that became nothing all are too far to the left. Lengths
 * are those of the text that the model sees, which for bytes are the characters of GPT-2's table. */
LT_INLINE int irregular_word(const lt_bpe *model, lt_bpe_scratch *scratch, word w, int kind, lt_tokens *tokens) {
    size_t most = 8 * (size_t)(w.end - w.start);
    if (reserve_units(scratch, most + 1) != LT_OK ||
        lt_reserve((void **)&scratch->owners, &scratch->owners_capacity, most, sizeof(int32_t)) != LT_OK)
        return LT_NO_MEMORY;
    int32_t at = 0, waiting = 0, total = 0;
    scratch->size = 0;
    for (int32_t i = w.start; i < w.end; i++) {
        uint8_t spelled[4], mapped[4];
        int32_t count = write_utf8(spelled, lt_at(w.data, kind, i));
        bool is_first = i == w.start, is_last = i + 1 == w.end;
        if (!model->byte_level) {
            int32_t id = lt_bpe_character_id(model, lt_at(w.data, kind, i), variant_of(is_first, is_last));
            add_unit(model, scratch, id, spelled, count, &at, &waiting);
            for (int32_t byte = 0; byte < count; byte++)
                scratch->owners[total++] = i;
            continue;
        }
        for (int32_t byte = 0; byte < count; byte++) {
            int variant = variant_of(is_first && byte == 0, is_last && byte + 1 == count);
            int32_t length = write_utf8(mapped, lt_byte_character(spelled[byte]));
            add_unit(model, scratch, model->byte_ids[variant][spelled[byte]], mapped, length, &at, &waiting);
            for (int32_t j = 0; j < length; j++)
                scratch->owners[total++] = i;
        }
    }
    if (waiting > 0) {
        scratch->ids[scratch->size] = model->unknown_id;
        scratch->ends[scratch->size++] = at + waiting;
    }
    if (lt_bpe_merge_word(model, scratch) != LT_OK ||
        lt_reserve((void **)&tokens->items, &tokens->capacity, tokens->size + scratch->size, sizeof(lt_token)) != LT_OK)
        return LT_NO_MEMORY;
    int32_t from = 0;
    for (size_t i = 0; i < scratch->size; i++) {
        int32_t end = scratch->ends[i];
        push_token(tokens, w.data, kind, scratch->ids[i], scratch->owners[from], scratch->owners[end - 1]);
        from = end;
    }
    return LT_OK;
}

static inline uint64_t key_hash(const uint64_t key[3]) {
    uint64_t hash = (key[0] ^ key[0] >> 29) * 0x9E3779B97F4A7C15u;
    hash ^= (key[1] + key[2] * 0xD6E8FEB86659FD93u) * 0xC2B2AE3D27D4EB4Fu;
    hash ^= hash >> 32;
    return hash * 0x9E3779B97F4A7C15u;
}

/* A word that is not in the cache; bytes are its spelling. Fills slot unless it is NULL. */
LT_INLINE int new_word(const lt_bpe *model, lt_bpe_scratch *scratch, word w, int kind, const uint8_t *bytes,
                       size_t size, lt_bpe_cached *slot, const uint64_t *key, lt_tokens *tokens) {
    if (reserve_units(scratch, size) != LT_OK)
        return LT_NO_MEMORY;
    int32_t known = model->ignore_merges ? lt_string_table_find(&model->words, bytes, size) : -1;
    if (known >= 0) {
        scratch->ids[0] = known;
        scratch->ends[0] = (int32_t)size;
        scratch->size = 1;
    } else {
        if (!cut_units(model, scratch, w, kind, bytes, size))
            return irregular_word(model, scratch, w, kind, tokens);
        if (lt_bpe_merge_word(model, scratch) != LT_OK)
            return LT_NO_MEMORY;
    }
    size_t count = scratch->size;
    if (lt_reserve((void **)&tokens->items, &tokens->capacity, tokens->size + count, sizeof(lt_token)) != LT_OK)
        return LT_NO_MEMORY;
    PUSH_TOKENS(tokens, w, kind, bytes, size, scratch->ids, scratch->ends, count);
    if (slot != NULL && count <= LT_BPE_CACHED_TOKENS) {
        memcpy(slot->key, key, sizeof slot->key);
        memcpy(slot->ids, scratch->ids, count * sizeof(int32_t));
        for (size_t i = 0; i < count; i++)
            slot->ends[i] = (uint8_t)scratch->ends[i];
        slot->count = (uint8_t)count;
    }
    return LT_OK;
}

/* Appends the tokens of one word. */
LT_INLINE int encode_word(const lt_bpe *model, lt_bpe_scratch *scratch, word w, int kind, lt_tokens *tokens) {
    size_t length = (size_t)(w.end - w.start);
    if (length > LT_BPE_KEY_BYTES) {
        if (lt_reserve((void **)&scratch->bytes, &scratch->bytes_capacity, 4 * length, 1) != LT_OK)
            return LT_NO_MEMORY;
        size_t size = 0;
        for (int32_t i = w.start; i < w.end; i++)
            size += (size_t)write_utf8(scratch->bytes + size, lt_at(w.data, kind, i));
        return new_word(model, scratch, w, kind, scratch->bytes, size, NULL, NULL, tokens);
    }
    union {
        uint8_t bytes[4 * LT_BPE_KEY_BYTES + 4];
        uint64_t words[12];
    } spelled;
    size_t size = 0;
    spelled.words[0] = spelled.words[1] = spelled.words[2] = 0;
    for (int32_t i = w.start; i < w.end; i++) {
        uint32_t code_point = lt_at(w.data, kind, i);
        if (code_point < 0x80)
            spelled.bytes[size++] = (uint8_t)code_point;
        else
            size += (size_t)write_utf8(spelled.bytes + size, code_point);
    }
    if (size > LT_BPE_KEY_BYTES)
        return new_word(model, scratch, w, kind, spelled.bytes, size, NULL, NULL, tokens);
    uint64_t key[3] = {spelled.words[0], spelled.words[1], 0};
    memcpy(&key[2], spelled.bytes + 16, 7);
    key[2] |= (uint64_t)size << 56;
    lt_bpe_cached *slot = &scratch->cache[key_hash(key) >> (64 - LT_BPE_CACHE_BITS)];
    if (slot->key[0] != key[0] || slot->key[1] != key[1] || slot->key[2] != key[2])
        return new_word(model, scratch, w, kind, spelled.bytes, size, slot, key, tokens);
    if (lt_reserve((void **)&tokens->items, &tokens->capacity, tokens->size + LT_BPE_CACHED_TOKENS, sizeof(lt_token)) !=
        LT_OK)
        return LT_NO_MEMORY;
    if (slot->count == 1) {
        push_token(tokens, w.data, kind, slot->ids[0], w.start, w.end - 1);
        return LT_OK;
    }
    PUSH_TOKENS(tokens, w, kind, spelled.bytes, size, slot->ids, slot->ends, slot->count);
    return LT_OK;
}

/* The end of the part of a word that may be encoded by itself: see cuts_at_spaces. */
static int32_t next_cut(const lt_bpe *model, const lt_character *items, int32_t position, int32_t end) {
    for (position++; position < end; position++) {
        if (items[position].code_point != 0x2581)
            continue;
        size_t join = 0;
        while (join < model->join_count && model->joins[join] != items[position - 1].code_point)
            join++;
        if (join == model->join_count)
            break;
    }
    return position;
}

int lt_bpe_words(const lt_bpe *model, lt_bpe_scratch *scratch, const lt_text *text, const lt_spans *words,
                 lt_tokens *tokens) {
    for (size_t i = 0; i < words->size; i++) {
        lt_span span = words->items[i];
        while (span.start < span.end) {
            int32_t stop = model->cuts_at_spaces ? next_cut(model, text->items, span.start, span.end) : span.end;
            word w = {text->items, span.start, stop};
            int status = encode_word(model, scratch, w, LT_KIND_CHARACTERS, tokens);
            if (status != LT_OK)
                return status;
            span.start = stop;
        }
    }
    return LT_OK;
}

static int encode_kind(const lt_bpe *model, const lt_step *steps, size_t step_count, lt_bpe_scratch *scratch, const void *data,
                       int kind, size_t step, int32_t start, int32_t end, lt_tokens *tokens);

/* Cuts a span by one step and gives each part to the next step, or, behind the last, to the model. */
LT_INLINE int encode_span(const lt_bpe *model, const lt_step *steps, size_t step_count, lt_bpe_scratch *scratch, const void *data,
                          int kind, size_t step, int32_t start, int32_t end, lt_tokens *tokens) {
    bool is_last = step + 1 >= step_count || steps[step + 1].kind == LT_SPLIT_BYTE_LEVEL;
    if (step >= step_count || steps[step].kind == LT_SPLIT_BYTE_LEVEL)
        return start < end ? encode_word(model, scratch, (word){data, start, end}, kind, tokens) : LT_OK;
    while (start < end) {
        int32_t stop = lt_scan_word(steps[step].kind, data, kind, start, end);
        int status = is_last ? encode_word(model, scratch, (word){data, start, stop}, kind, tokens)
                             : encode_kind(model, steps, step_count, scratch, data, kind, step + 1, start, stop, tokens);
        if (status != LT_OK)
            return status;
        start = stop;
    }
    return LT_OK;
}

static int encode_kind(const lt_bpe *model, const lt_step *steps, size_t step_count, lt_bpe_scratch *scratch, const void *data,
                       int kind, size_t step, int32_t start, int32_t end, lt_tokens *tokens) {
    switch (kind) {
    case 1:
        return encode_span(model, steps, step_count, scratch, data, 1, step, start, end, tokens);
    case 2:
        return encode_span(model, steps, step_count, scratch, data, 2, step, start, end, tokens);
    default:
        return encode_span(model, steps, step_count, scratch, data, 4, step, start, end, tokens);
    }
}

int lt_bpe_input(const lt_bpe *model, const lt_step *steps, size_t step_count, lt_bpe_scratch *scratch, const lt_input *input,
                 int32_t start, int32_t end, lt_tokens *tokens) {
    return encode_kind(model, steps, step_count, scratch, input->data, input->kind, 0, start, end, tokens);
}
