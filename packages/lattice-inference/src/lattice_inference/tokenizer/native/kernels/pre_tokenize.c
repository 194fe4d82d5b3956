/* The splitting steps. Each goes through a span once and decides, between two neighbours, whether a word ends there. */
#include "pre_tokenize.h"

#include "metaspace.h"
#include "unicode.h"

/* What a step does with a character. */
typedef enum { REMOVED, ALONE, RUN, OTHER_RUN, ENDS_WORD, BEGINS_WORD } role;

static role role_of(lt_split_step step, uint32_t code_point) {
    uint16_t flags = lt_properties(code_point)->flags;
    bool is_punctuation = (flags & LT_UNICODE_PUNCTUATION) != 0;
    switch (step) {
    case LT_SPLIT_WHITESPACE:
        return flags & LT_UNICODE_WHITESPACE ? REMOVED : RUN;
    case LT_SPLIT_WORD_RUNS:
        return flags & LT_UNICODE_WHITESPACE ? REMOVED : flags & LT_UNICODE_WORD ? RUN : OTHER_RUN;
    case LT_SPLIT_PUNCTUATION_ISOLATED:
        return is_punctuation ? ALONE : RUN;
    case LT_SPLIT_PUNCTUATION_REMOVED:
        return is_punctuation ? REMOVED : RUN;
    case LT_SPLIT_PUNCTUATION_CONTIGUOUS:
        return is_punctuation ? OTHER_RUN : RUN;
    case LT_SPLIT_PUNCTUATION_TO_PREVIOUS:
        return is_punctuation ? ENDS_WORD : RUN;
    case LT_SPLIT_PUNCTUATION_TO_NEXT:
        return is_punctuation ? BEGINS_WORD : RUN;
    case LT_SPLIT_METASPACE:
    case LT_SPLIT_STEPS:
        break;
    }
    return RUN; /* not reached: the door admits only steps of the enum, and the others are not by character */
}

/* Says whether two neighbouring characters, neither of them removed, belong to different words. After punctuation that
 * joined the word before it, and before punctuation that joins the word after it, a word ends; a second punctuation
 * character in a row does not join across the first. */
static bool is_boundary(role before, role after) {
    if (before == ALONE || after == ALONE || before == ENDS_WORD || after == BEGINS_WORD)
        return true;
    if (after == ENDS_WORD || before == BEGINS_WORD)
        return false;
    return before != after;
}

static int split_span(lt_split_step step, const lt_text *text, lt_span span, lt_spans *out) {
    int32_t start = span.start;
    role before = REMOVED;
    for (int32_t i = span.start; i < span.end; i++) {
        role here = role_of(step, text->items[i].code_point);
        if (here == REMOVED || (before != REMOVED && is_boundary(before, here))) {
            if (start < i && lt_spans_push(out, start, i) != LT_OK)
                return LT_NO_MEMORY;
            start = here == REMOVED ? i + 1 : i;
        }
        before = here;
    }
    return start < span.end ? lt_spans_push(out, start, span.end) : LT_OK;
}

/* Runs one step over all spans: from spans to other_spans, and from words to other_split_text if it changes words. */
static int run_step(lt_step step, lt_scratch *scratch) {
    const lt_text *words = scratch->words;
    if (step.kind == LT_SPLIT_METASPACE) {
        int status = lt_metaspace_split(step.argument, words, &scratch->spans, &scratch->other_split_text,
                                        &scratch->other_spans);
        lt_text swapped = scratch->split_text;
        scratch->split_text = scratch->other_split_text;
        scratch->other_split_text = swapped;
        scratch->words = &scratch->split_text;
        return status;
    }
    for (size_t span = 0; span < scratch->spans.size; span++)
        if (split_span((lt_split_step)step.kind, words, scratch->spans.items[span], &scratch->other_spans) != LT_OK)
            return LT_NO_MEMORY;
    return LT_OK;
}

int lt_pre_tokenize(const lt_step *steps, size_t count, const lt_text *text, int32_t start, int32_t end,
                    lt_scratch *scratch) {
    scratch->words = text;
    scratch->spans.size = 0;
    if (start < end && lt_spans_push(&scratch->spans, start, end) != LT_OK)
        return LT_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        scratch->other_spans.size = 0;
        int status = run_step(steps[i], scratch);
        if (status != LT_OK)
            return status;
        lt_spans swapped = scratch->spans;
        scratch->spans = scratch->other_spans;
        scratch->other_spans = swapped;
    }
    return LT_OK;
}
