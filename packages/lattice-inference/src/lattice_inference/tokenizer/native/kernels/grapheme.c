/* The rules of annex 29, read forward from the beginning of a cluster; see grapheme.h. */
#include "grapheme.h"

#include "grapheme_tables.h"

enum { HANGUL_SYLLABLES = 0xAC00, HANGUL_SYLLABLE_COUNT = 11172, JOINER = 0x200D, FIRST_INDICATOR = 0x1F1E6 };

static inline uint32_t flags_of(uint32_t code_point) {
    uint32_t block = lt_grapheme_stage1[code_point >> LT_GRAPHEME_SHIFT];
    uint32_t low = code_point & ((1u << LT_GRAPHEME_SHIFT) - 1);
    return lt_grapheme_kinds[lt_grapheme_stage2[(block << LT_GRAPHEME_SHIFT) | low]];
}

static bool is_indicator(uint32_t code_point) {
    return code_point - FIRST_INDICATOR < 26;
}

/* Whether a Hangul jamo or syllable belongs to the one before it. A leading jamo is what joins with leading and vowel, a
 * vowel what joins with vowel and trailing, a trailing jamo what joins with trailing; syllables have a vowel's flags or a
 * trailing jamo's, but join only behind a leading one. */
static bool hangul_joins(uint32_t before, uint32_t flags, uint32_t code_point) {
    bool is_syllable = code_point - HANGUL_SYLLABLES < HANGUL_SYLLABLE_COUNT;
    bool is_leading = (flags & LT_GRAPHEME_JOINS_LEADING) != 0;
    bool is_vowel = !is_leading && !is_syllable && (flags & LT_GRAPHEME_JOINS_VOWEL);
    bool is_trailing =
        !is_syllable && !(flags & LT_GRAPHEME_JOINS_VOWEL) && (flags & LT_GRAPHEME_JOINS_TRAILING);
    return ((before & LT_GRAPHEME_JOINS_LEADING) && (is_leading || is_syllable)) ||
           ((before & LT_GRAPHEME_JOINS_VOWEL) && is_vowel) || ((before & LT_GRAPHEME_JOINS_TRAILING) && is_trailing);
}

size_t lt_grapheme_end(const lt_text *text, size_t start) {
    const lt_character *items = text->items;
    size_t end = start + 1;
    if (end == text->size)
        return end;
    uint32_t code_point = items[start].code_point, next = items[end].code_point;
    if (next < 0x80 && code_point < 0x80)
        return code_point == '\r' && next == '\n' ? end + 1 : end;
    uint32_t flags = flags_of(code_point);
    if (flags & LT_GRAPHEME_CONTROL)
        return end;
    bool after_pictograph = (flags & LT_GRAPHEME_PICTOGRAPH) != 0; /* a pictograph and what it may have behind it */
    bool joined_pictograph = false;                                /* the same, and a joiner */
    bool after_consonant = (flags & LT_GRAPHEME_CONSONANT) != 0;   /* a consonant, linkers and what they skip */
    bool linked_consonant = false;                                 /* the same, with a linker */
    bool odd_indicator = is_indicator(code_point);
    for (; end < text->size; end++) {
        uint32_t before = flags;
        code_point = items[end].code_point;
        flags = flags_of(code_point);
        if (flags & LT_GRAPHEME_CONTROL)
            break;
        bool joins = (flags & LT_GRAPHEME_EXTENDS) || (before & LT_GRAPHEME_PREPENDS) ||
                     (joined_pictograph && (flags & LT_GRAPHEME_PICTOGRAPH)) ||
                     (linked_consonant && (flags & LT_GRAPHEME_CONSONANT)) ||
                     (odd_indicator && is_indicator(code_point)) || hangul_joins(before, flags, code_point);
        if (!joins)
            break;
        joined_pictograph = after_pictograph && code_point == JOINER;
        after_pictograph = (flags & LT_GRAPHEME_PICTOGRAPH) || (after_pictograph && (flags & LT_GRAPHEME_PICTOGRAPH_SKIPS));
        after_consonant = (flags & LT_GRAPHEME_CONSONANT) || (after_consonant && (flags & LT_GRAPHEME_CONSONANT_SKIPS));
        linked_consonant = after_consonant && !(flags & LT_GRAPHEME_CONSONANT) &&
                           (linked_consonant || (flags & LT_GRAPHEME_LINKER));
        odd_indicator = is_indicator(code_point) && !odd_indicator;
    }
    return end;
}
