/* The precompiled normalizer; see charsmap.h.
 *
 * A unit holds, from its low bits: the label of the edge to it (8), whether a key ends behind it (1), a flag that the
 * offset counts in blocks of 256 (1), the offset (22). A unit with its highest bit set is a value. */
#include "charsmap.h"

#include "grapheme.h"
#include "normalize.h"

enum { NO_RULE = -1, SHORT_CLUSTER_BYTES = 6 };

static inline size_t offset_of(uint32_t unit) {
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

static int utf8_size(uint32_t code_point) {
    return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

static int encode_utf8(uint32_t code_point, uint8_t *out) {
    int size = utf8_size(code_point);
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = size - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (code_point & 0x3F));
        code_point >>= 6;
    }
    out[0] = (uint8_t)(lead[size] | code_point);
    return size;
}

/* Returns where the replacement of the shortest rule that begins items[0:count] lies, or NO_RULE. */
static int64_t shortest_rule(const lt_charsmap *map, const lt_character *items, size_t count) {
    const uint32_t *units = map->units;
    if (map->unit_count == 0)
        return NO_RULE;
    size_t position = offset_of(units[0]);
    for (size_t i = 0; i < count; i++) {
        uint8_t bytes[4];
        int size = encode_utf8(items[i].code_point, bytes);
        for (int b = 0; b < size; b++) {
            if (bytes[b] == 0)
                return NO_RULE;
            position ^= bytes[b];
            if (position >= map->unit_count)
                return NO_RULE;
            uint32_t unit = units[position];
            if ((unit & (1u << 31 | 0xFF)) != bytes[b])
                return NO_RULE;
            position ^= offset_of(unit);
            if (unit & (1u << 8)) {
                if (position >= map->unit_count)
                    return NO_RULE;
                size_t value = units[position] & 0x7FFFFFFF;
                bool is_character = value < map->replacement_bytes && (map->replacements[value] & 0xC0) != 0x80;
                return is_character ? (int64_t)value : NO_RULE;
            }
        }
    }
    return NO_RULE;
}

/* Appends the replacement of removed characters. Until lt_resolve_sources runs, .source holds the change: a character
 * takes the place of a removed one (0) or is one more (1), and the last one takes the rest of the removed ones with it
 * (-n); an empty replacement leaves them to the character before, or to nothing. */
static int replace(const lt_charsmap *map, int64_t rule, size_t removed, lt_text *out) {
    const uint8_t *byte = map->replacements + rule, *end = map->replacements + map->replacement_bytes;
    size_t added = 0;
    while (byte < end && *byte != 0) {
        uint32_t code_point = *byte++;
        int continuation = code_point < 0x80 ? 0 : code_point < 0xE0 ? 1 : code_point < 0xF0 ? 2 : 3;
        if (continuation > 0)
            code_point &= 0x3Fu >> continuation;
        for (; continuation > 0 && byte < end; continuation--)
            code_point = code_point << 6 | (*byte++ & 0x3F);
        if (lt_text_reserve(out, out->size + 1) != LT_OK)
            return LT_NO_MEMORY;
        out->items[out->size++] = (lt_character){code_point, added >= removed};
        added++;
    }
    if (added < removed && out->size > 0)
        out->items[out->size - 1].source -= (int32_t)(removed - added);
    return LT_OK;
}

int lt_charsmap_normalize(const lt_charsmap *map, const lt_text *in, lt_text *out) {
    out->size = 0;
    if (lt_text_reserve(out, in->size) != LT_OK) /* most rules keep the size */
        return LT_NO_MEMORY;
    for (size_t start = 0; start < in->size;) {
        size_t end = lt_grapheme_end(in, start);
        if (end - start > 1) {
            size_t bytes = 0;
            for (size_t i = start; i < end && bytes < SHORT_CLUSTER_BYTES; i++)
                bytes += (size_t)utf8_size(in->items[i].code_point);
            int64_t rule = bytes < SHORT_CLUSTER_BYTES ? shortest_rule(map, &in->items[start], end - start) : NO_RULE;
            if (rule >= 0) {
                if (replace(map, rule, end - start, out) != LT_OK)
                    return LT_NO_MEMORY;
                start = end;
                continue;
            }
        }
        for (; start < end; start++) {
            int64_t rule = shortest_rule(map, &in->items[start], 1);
            if (rule >= 0) {
                if (replace(map, rule, 1, out) != LT_OK)
                    return LT_NO_MEMORY;
                continue;
            }
            if (lt_text_reserve(out, out->size + 1) != LT_OK)
                return LT_NO_MEMORY;
            out->items[out->size++] = (lt_character){in->items[start].code_point, 0};
        }
    }
    lt_resolve_sources(in, out);
    return LT_OK;
}
