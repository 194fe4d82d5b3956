/* What a code point is: class flags, combining class, lowercase, decompositions and compositions.
 *
 * The tables behind these functions are generated (unicode_tables.h) by asking Hugging Face tokenizers about every code
 * point, so that our ids follow its Unicode version and not the compiler's or Python's. Every look-up is two loads. */
#ifndef LT_UNICODE_H
#define LT_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    LT_UNICODE_WHITESPACE = 1,      /* split on by the pre-tokenizers, stripped by Strip and by added tokens */
    LT_UNICODE_CLEAN_REMOVED = 2,   /* dropped by clean_text: NUL, U+FFFD, controls, format, private, unassigned */
    LT_UNICODE_PUNCTUATION = 4,     /* isolated by BertPreTokenizer and Punctuation */
    LT_UNICODE_CJK = 8,             /* gets spaces around it under handle_chinese_chars */
    LT_UNICODE_MARK_NONSPACING = 16, /* dropped by BertNormalizer's strip_accents (category Mn) */
    LT_UNICODE_MARK_COMBINING = 32, /* dropped by StripAccents (categories Mn, Mc, Me) */
    LT_UNICODE_WORD = 64,           /* \w of the Whitespace pre-tokenizer and of single_word added tokens */
    LT_UNICODE_LETTER = 128,        /* \p{L} of a Split pre-tokenizer's regex; L, N, M and \s have nothing in common */
    LT_UNICODE_NUMBER = 256,        /* \p{N} there */
    LT_UNICODE_MARK = 512,          /* \p{M} there */
    LT_UNICODE_NUMERIC = 1024,      /* split off by the Digits pre-tokenizer */
    LT_UNICODE_COMPOSES_BACK = 2048, /* is the second of some composing pair */
    LT_UNICODE_LOWERS_TO_TWO = 4096, /* U+0130, whose lowercase is i and U+0307 */
    LT_UNICODE_NFC_CHANGES = 8192,  /* is not itself in NFC, even alone */
};

enum {
    LT_PROPERTY_SHIFT = 7,
    LT_DECOMPOSITION_SHIFT = 7,
    LT_COMPOSITION_COUNT = 940,
    LT_PROPERTY_RECORDS = 183,
    LT_MAX_DECOMPOSITION = 18, /* code points in the longest compatibility decomposition (U+FDFA) */
};

typedef struct {
    uint16_t flags;
    uint8_t combining_class;
    int32_t lowercase_delta;
} lt_unicode_properties;

extern const char lt_unicode_tables_source[];
extern const lt_unicode_properties lt_property_records[];
extern const uint8_t lt_property_stage1[];
extern const uint8_t lt_property_stage2[];
extern const uint16_t lt_ascii_flags[]; /* the flags of the first 128, for loops over mostly ASCII */
extern const uint8_t lt_decomposition_stage1[];
extern const uint16_t lt_decomposition_stage2[];
extern const uint16_t lt_decomposition_pool[];
extern const uint32_t lt_compositions[][3];

/* code_point must be below 0x110000, as every character of a Python str is. */
static inline const lt_unicode_properties *lt_properties(uint32_t code_point) {
    uint32_t block = lt_property_stage1[code_point >> LT_PROPERTY_SHIFT];
    uint32_t low = code_point & ((1u << LT_PROPERTY_SHIFT) - 1);
    return &lt_property_records[lt_property_stage2[(block << LT_PROPERTY_SHIFT) | low]];
}

static inline bool lt_has(uint32_t code_point, uint32_t flags) {
    return (lt_properties(code_point)->flags & flags) != 0;
}

/* Writes the full canonical (or compatibility) decomposition of code_point and returns its length, at most
 * LT_MAX_DECOMPOSITION; a code point without one gives itself. */
int lt_decompose(uint32_t code_point, bool compatibility, uint32_t *out);

/* Returns the primary composite of two code points, or 0 if they do not compose. */
uint32_t lt_compose(uint32_t first, uint32_t second);

#endif
