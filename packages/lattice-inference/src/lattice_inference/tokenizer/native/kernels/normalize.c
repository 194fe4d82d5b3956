/* The normalizer steps. Each reads one buffer and writes another of at most LT_MAX_DECOMPOSITION times its size.
 *
 * Sources. Hugging Face's normalizers describe a new text as a list of (character, change): change 0 stands for the next
 * character of the old text, change 1 is added without using one up, change -n also uses up the n that follow. The
 * steps that reorder or join (the NF forms) keep the change with the character while it moves, and only then count
 * through the old text, so a reordered mark can end up with its neighbour's source. We do the same, for equal offsets. */
#include "normalize.h"

#include <string.h>

#include "charsmap.h"
#include "replace.h"
#include "unicode.h"

enum {
    INSERTION_SORT_LIMIT = 32, /* longer runs of marks are sorted by counting, so no run is quadratic */
    CLASSES = 256,
};

/* While the NF forms are made, .source holds the change. A change of at most 1 uses up 1 - change characters; decomposing
 * gives each character's parts 1 use together, and composing adds up the uses of what it joins. So all uses add up to the
 * size of the old text, and a character with a use finds one left: used < old->size there. */
void lt_resolve_sources(const lt_text *old, lt_text *new) {
    size_t used = 0;
    for (size_t i = 0; i < new->size; i++) {
        int32_t change = new->items[i].source;
        size_t index = change > 0 && used > 0 ? used - 1 : used;
        used += (size_t)(1 - change);
        new->items[i].source = old->items[index].source;
    }
}

static int counting_sort(lt_character *items, size_t count) {
    lt_character *sorted = malloc(count * sizeof(lt_character));
    if (sorted == NULL)
        return LT_NO_MEMORY;
    size_t position[CLASSES + 1] = {0};
    for (size_t i = 0; i < count; i++)
        position[lt_properties(items[i].code_point)->combining_class + 1]++;
    for (int class = 0; class < CLASSES; class++)
        position[class + 1] += position[class];
    for (size_t i = 0; i < count; i++)
        sorted[position[lt_properties(items[i].code_point)->combining_class]++] = items[i];
    memcpy(items, sorted, count * sizeof(lt_character));
    free(sorted);
    return LT_OK;
}

/* Puts a run of marks into the order of their combining classes, equal classes staying as they were. */
static int sort_marks(lt_character *items, size_t count) {
    if (count > INSERTION_SORT_LIMIT)
        return counting_sort(items, count);
    for (size_t i = 1; i < count; i++) {
        lt_character item = items[i];
        uint8_t class = lt_properties(item.code_point)->combining_class;
        size_t j = i;
        for (; j > 0 && lt_properties(items[j - 1].code_point)->combining_class > class; j--)
            items[j] = items[j - 1];
        items[j] = item;
    }
    return LT_OK;
}

/* Writes the decomposed and ordered text with changes for sources. */
static int decompose(const lt_text *in, lt_text *out, bool compatibility) {
    size_t marks = 0; /* how many characters at the end of out are marks still to be sorted */
    out->size = 0;
    for (size_t i = 0; i < in->size; i++) {
        uint32_t parts[LT_MAX_DECOMPOSITION];
        uint32_t code_point = in->items[i].code_point;
        int count = 1;
        if (code_point < 0x80)
            parts[0] = code_point;
        else
            count = lt_decompose(code_point, compatibility, parts);
        if (lt_text_reserve(out, out->size + LT_MAX_DECOMPOSITION) != LT_OK)
            return LT_NO_MEMORY;
        for (int part = 0; part < count; part++) {
            bool is_mark = parts[part] >= 0x80 && lt_properties(parts[part])->combining_class != 0;
            if (!is_mark && marks > 0) {
                if (marks > 1 && sort_marks(&out->items[out->size - marks], marks) != LT_OK)
                    return LT_NO_MEMORY;
                marks = 0;
            }
            marks += is_mark;
            out->items[out->size++] = (lt_character){parts[part], part > 0};
        }
    }
    return marks > 1 ? sort_marks(&out->items[out->size - marks], marks) : LT_OK;
}

/* Joins what composes in a decomposed text, in place; .source holds changes before and after. */
static void compose(lt_text *text) {
    lt_character *items = text->items;
    size_t size = 0, starter = 0;
    bool has_starter = false;
    int last_class = -1; /* of the last mark kept since the starter; -1: none */
    for (size_t i = 0; i < text->size; i++) {
        lt_character item = items[i];
        int class = item.code_point < 0x80 ? 0 : lt_properties(item.code_point)->combining_class;
        if (has_starter && item.code_point >= 0x80 && (last_class < 0 || last_class < class)) {
            uint32_t composite = lt_compose(items[starter].code_point, item.code_point);
            if (composite) {
                items[starter].code_point = composite;
                items[starter].source += item.source - 1;
                continue;
            }
        }
        if (class == 0) {
            starter = size;
            has_starter = true;
            last_class = -1;
        } else if (has_starter) {
            last_class = class;
        }
        items[size++] = item;
    }
    text->size = size;
}

static int normal_form(const lt_text *in, lt_text *out, bool compatibility, bool composed) {
    if (decompose(in, out, compatibility) != LT_OK)
        return LT_NO_MEMORY;
    if (composed)
        compose(out);
    lt_resolve_sources(in, out);
    return LT_OK;
}

static int clean(const lt_text *in, lt_text *out) {
    if (lt_text_reserve(out, in->size) != LT_OK)
        return LT_NO_MEMORY;
    size_t size = 0;
    for (size_t i = 0; i < in->size; i++) {
        lt_character item = in->items[i];
        uint16_t flags = lt_properties(item.code_point)->flags;
        if (flags & LT_UNICODE_CLEAN_REMOVED)
            continue;
        if (flags & LT_UNICODE_WHITESPACE)
            item.code_point = ' ';
        out->items[size++] = item;
    }
    out->size = size;
    return LT_OK;
}

static int space_cjk(const lt_text *in, lt_text *out) {
    size_t size = 0;
    for (size_t i = 0; i < in->size; i++) {
        lt_character item = in->items[i];
        if (lt_text_reserve(out, size + 3) != LT_OK)
            return LT_NO_MEMORY;
        if (item.code_point >= 0x80 && lt_has(item.code_point, LT_UNICODE_CJK)) {
            out->items[size++] = (lt_character){' ', item.source};
            out->items[size++] = item;
            out->items[size++] = (lt_character){' ', item.source};
        } else {
            out->items[size++] = item;
        }
    }
    out->size = size;
    return LT_OK;
}

static int drop(const lt_text *in, lt_text *out, uint32_t flags) {
    if (lt_text_reserve(out, in->size) != LT_OK)
        return LT_NO_MEMORY;
    size_t size = 0;
    for (size_t i = 0; i < in->size; i++) {
        lt_character item = in->items[i];
        if (item.code_point < 0x80 || !lt_has(item.code_point, flags))
            out->items[size++] = item;
    }
    out->size = size;
    return LT_OK;
}

static int lowercase(const lt_text *in, lt_text *out) {
    if (lt_text_reserve(out, 2 * in->size) != LT_OK)
        return LT_NO_MEMORY;
    size_t size = 0;
    for (size_t i = 0; i < in->size; i++) {
        lt_character item = in->items[i];
        const lt_unicode_properties *properties = lt_properties(item.code_point);
        item.code_point += (uint32_t)properties->lowercase_delta;
        out->items[size++] = item;
        if (properties->flags & LT_UNICODE_LOWERS_TO_TWO)
            out->items[size++] = (lt_character){0x307, item.source};
    }
    out->size = size;
    return LT_OK;
}

static int strip(const lt_text *in, lt_text *out, bool left) {
    size_t start = 0, end = in->size;
    if (left)
        while (start < end && lt_has(in->items[start].code_point, LT_UNICODE_WHITESPACE))
            start++;
    else
        while (start < end && lt_has(in->items[end - 1].code_point, LT_UNICODE_WHITESPACE))
            end--;
    if (lt_text_reserve(out, end - start) != LT_OK)
        return LT_NO_MEMORY;
    if (end > start)
        memcpy(out->items, &in->items[start], (end - start) * sizeof(lt_character));
    out->size = end - start;
    return LT_OK;
}

/* The first two rules of SentencePiece's nmt_nfkc: which characters go, and which become spaces. */
static int nmt(const lt_text *in, lt_text *out) {
    if (lt_text_reserve(out, in->size) != LT_OK)
        return LT_NO_MEMORY;
    size_t size = 0;
    for (size_t i = 0; i < in->size; i++) {
        lt_character item = in->items[i];
        uint32_t c = item.code_point;
        if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
            continue;
        if (c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
            c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
            item.code_point = ' ';
        out->items[size++] = item;
    }
    out->size = size;
    return LT_OK;
}

static int run_step(lt_step step, const lt_text *in, lt_text *out) {
    switch ((lt_normalize_step)step.kind) {
    case LT_NORMALIZE_CLEAN:
        return clean(in, out);
    case LT_NORMALIZE_SPACE_CJK:
        return space_cjk(in, out);
    case LT_NORMALIZE_NFD:
        return normal_form(in, out, false, false);
    case LT_NORMALIZE_NFC:
        return normal_form(in, out, false, true);
    case LT_NORMALIZE_NFKD:
        return normal_form(in, out, true, false);
    case LT_NORMALIZE_NFKC:
        return normal_form(in, out, true, true);
    case LT_NORMALIZE_DROP_NONSPACING:
        return drop(in, out, LT_UNICODE_MARK_NONSPACING);
    case LT_NORMALIZE_DROP_COMBINING:
        return drop(in, out, LT_UNICODE_MARK_COMBINING);
    case LT_NORMALIZE_LOWERCASE:
        return lowercase(in, out);
    case LT_NORMALIZE_STRIP_LEFT:
        return strip(in, out, true);
    case LT_NORMALIZE_STRIP_RIGHT:
        return strip(in, out, false);
    case LT_NORMALIZE_NMT:
        return nmt(in, out);
    case LT_NORMALIZE_PRECOMPILED:
        return lt_charsmap_normalize(step.argument, in, out);
    case LT_NORMALIZE_REPLACE:
        return lt_replace(step.argument, in, out);
    case LT_NORMALIZE_PREPEND:
        return lt_prepend(step.argument, in, out);
    case LT_NORMALIZE_STEPS:
        break;
    }
    return LT_OK; /* not reached: the door admits only steps of the enum */
}

int lt_normalize(const lt_step *steps, size_t count, lt_scratch *scratch) {
    for (size_t i = 0; i < count; i++) {
        if (scratch->text.size == 0)
            return LT_OK;
        if (run_step(steps[i], &scratch->text, &scratch->other_text) != LT_OK)
            return LT_NO_MEMORY;
        if (scratch->other_text.size > INT32_MAX)
            return LT_TEXT_TOO_LONG;
        lt_text swapped = scratch->text;
        scratch->text = scratch->other_text;
        scratch->other_text = swapped;
    }
    return LT_OK;
}

bool lt_is_nfc(const lt_input *input, int32_t start, int32_t end) {
    enum { FIRST_MARK = 0x300, JAMO = 0x1100, JAMO_END = 0x1200 }; /* nothing below the first mark composes or changes */
    if (input->kind == 1)
        return true;
    int last_class = 0;
    for (int32_t i = start; i < end; i++) {
        uint32_t code_point = lt_read(input->data, input->kind, i);
        if (code_point < FIRST_MARK) {
            last_class = 0;
            continue;
        }
        const lt_unicode_properties *properties = lt_properties(code_point);
        if ((properties->flags & (LT_UNICODE_COMPOSES_BACK | LT_UNICODE_NFC_CHANGES)) ||
            (code_point >= JAMO && code_point < JAMO_END))
            return false;
        if (properties->combining_class != 0 && properties->combining_class < last_class)
            return false;
        last_class = properties->combining_class;
    }
    return true;
}
