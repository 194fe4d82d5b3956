/* Normalizers: what a text is turned into before it is split into words. */
#ifndef LT_NORMALIZE_H
#define LT_NORMALIZE_H

#include "text.h"

/* One primitive change of a text; normalizers.py turns a tokenizer.json's normalizer into a list of these. */
typedef enum {
    LT_NORMALIZE_CLEAN,              /* drop controls and the like, turn white space into spaces */
    LT_NORMALIZE_SPACE_CJK,          /* put spaces around CJK ideographs */
    LT_NORMALIZE_NFD,
    LT_NORMALIZE_NFC,
    LT_NORMALIZE_NFKD,
    LT_NORMALIZE_NFKC,
    LT_NORMALIZE_DROP_NONSPACING,    /* BertNormalizer's strip_accents, after NFD */
    LT_NORMALIZE_DROP_COMBINING,     /* StripAccents */
    LT_NORMALIZE_LOWERCASE,
    LT_NORMALIZE_STRIP_LEFT,
    LT_NORMALIZE_STRIP_RIGHT,
    LT_NORMALIZE_STEPS,
} lt_normalize_step;

/* Runs the steps over scratch->text, in place as the caller sees it; scratch->other_text is overwritten. Every character
 * keeps the source index that Hugging Face's normalizers give it. */
int lt_normalize(const uint8_t *steps, size_t count, lt_scratch *scratch);

/* Returns whether characters start..end-1 are surely in normal form C: then NFC changes nothing. */
bool lt_is_nfc(const lt_input *input, int32_t start, int32_t end);

#endif
