/* Normalizers: what a text is turned into before it is split into words. */
#ifndef LT_NORMALIZE_H
#define LT_NORMALIZE_H

#include "step.h"
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
    LT_NORMALIZE_NMT,         /* drop controls and turn odd white space into spaces, as SentencePiece's rules do */
    LT_NORMALIZE_PRECOMPILED, /* argument: lt_charsmap */
    LT_NORMALIZE_REPLACE,     /* argument: lt_replacement */
    LT_NORMALIZE_PREPEND,     /* argument: lt_replacement, of which only the content counts */
    LT_NORMALIZE_STEPS,
} lt_normalize_step;

/* Runs the steps over scratch->text, in place as the caller sees it; scratch->other_text is overwritten. Every character
 * keeps the source index that Hugging Face's normalizers give it. Returns LT_TEXT_TOO_LONG if the text grows beyond what an
 * int32 counts. */
int lt_normalize(const lt_step *steps, size_t count, lt_scratch *scratch);

/* Turns the changes in new, of the kind that kernels/normalize.c describes, into sources. */
void lt_resolve_sources(const lt_text *old, lt_text *new);

/* Returns whether characters start..end-1 are surely in normal form C: then NFC changes nothing. */
bool lt_is_nfc(const lt_input *input, int32_t start, int32_t end);

#endif
