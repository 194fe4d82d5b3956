/* The splitting steps. Each goes through a span once and decides, between two neighbours, whether a word ends there. */
#include "pre_tokenize.h"

#include <string.h>

#include "metaspace.h"
#include "unicode.h"
#include "word_scan.h"

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
    default:
        break;
    }
    return RUN; /* not reached: other steps do not decide character by character */
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

static int scan_span(uint8_t step, const lt_text *text, lt_span span, lt_spans *out) {
    while (span.start < span.end) {
        int32_t stop = lt_scan_word(step, text->items, LT_KIND_CHARACTERS, span.start, span.end);
        if (lt_spans_push(out, span.start, stop) != LT_OK)
            return LT_NO_MEMORY;
        span.start = stop;
    }
    return LT_OK;
}

/* Copies the spans of text end to end to out, with a space before each that has none. The space stands for the character
 * that it precedes. */
static int prefix_spaces(const lt_text *text, const lt_spans *spans, lt_text *out, lt_spans *out_spans) {
    out->size = 0;
    for (size_t i = 0; i < spans->size; i++) {
        lt_span span = spans->items[i];
        size_t size = (size_t)(span.end - span.start), start = out->size;
        if (lt_text_reserve(out, start + size + 1) != LT_OK)
            return LT_NO_MEMORY;
        lt_character first = text->items[span.start];
        if (first.code_point != ' ')
            out->items[out->size++] = (lt_character){' ', first.source};
        memcpy(&out->items[out->size], &text->items[span.start], size * sizeof(lt_character));
        out->size += size;
        if (lt_spans_push(out_spans, (int32_t)start, (int32_t)out->size) != LT_OK)
            return LT_NO_MEMORY;
    }
    return LT_OK;
}

static int split_outside(const lt_external_splitter *splitter, const lt_text *text, lt_span span, lt_spans *out) {
    return splitter->function(splitter->context, &text->items[span.start], span.end - span.start, span.start, out);
}

/* Runs one step over all spans: from spans to other_spans, and from words to other_split_text if it changes words. */
static int run_step(lt_step step, lt_scratch *scratch) {
    const lt_text *words = scratch->words;
    if (step.kind == LT_SPLIT_METASPACE || step.kind == LT_SPLIT_PREFIX_SPACE) {
        lt_text *out = &scratch->other_split_text;
        int status = step.kind == LT_SPLIT_METASPACE
                         ? lt_metaspace_split(step.argument, words, &scratch->spans, out, &scratch->other_spans)
                         : prefix_spaces(words, &scratch->spans, out, &scratch->other_spans);
        lt_text swapped = scratch->split_text;
        scratch->split_text = scratch->other_split_text;
        scratch->other_split_text = swapped;
        scratch->words = &scratch->split_text;
        return status;
    }
    for (size_t i = 0; i < scratch->spans.size; i++) {
        lt_span span = scratch->spans.items[i];
        int status = step.kind == LT_SPLIT_EXTERNAL
                         ? split_outside(step.argument, words, span, &scratch->other_spans)
                     : lt_is_scanner(step.kind)
                         ? scan_span(step.kind, words, span, &scratch->other_spans)
                         : split_span((lt_split_step)step.kind, words, span, &scratch->other_spans);
        if (status != LT_OK)
            return status;
    }
    return LT_OK;
}

int lt_pre_tokenize(const lt_step *steps, size_t count, const lt_text *text, int32_t start, int32_t end,
                    lt_scratch *scratch) {
    scratch->words = text;
    scratch->spans.size = 0;
    if (start < end && lt_spans_push(&scratch->spans, start, end) != LT_OK)
        return LT_NO_MEMORY;
    for (size_t i = 0; i < count && steps[i].kind != LT_SPLIT_BYTE_LEVEL; i++) {
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
