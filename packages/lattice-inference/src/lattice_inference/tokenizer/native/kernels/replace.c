/* See replace.h. What is put in place of a match gets the source of the match's last character, as in Hugging Face's
 * library. */
#include "replace.h"

#include "unicode.h"

static bool is_in_run(const lt_replacement *replacement, uint32_t code_point) {
    return replacement->is_whitespace ? lt_has(code_point, LT_UNICODE_WHITESPACE)
                                      : code_point == replacement->character;
}

static size_t literal_length(const lt_replacement *replacement, const lt_text *text, size_t start) {
    if (replacement->literal_size > text->size - start)
        return 0;
    for (size_t i = 0; i < replacement->literal_size; i++)
        if (text->items[start + i].code_point != replacement->literal[i])
            return 0;
    return replacement->literal_size;
}

/* Returns the length of the run that begins at start, at most the maximum (or all of it if it must reach the end). */
static size_t run_length(const lt_replacement *replacement, const lt_text *text, size_t start) {
    size_t end = start;
    while (end < text->size && end - start < replacement->maximum &&
           is_in_run(replacement, text->items[end].code_point))
        end++;
    return end - start;
}

static int append(lt_text *out, const uint32_t *content, size_t size, int32_t source) {
    if (lt_text_reserve(out, out->size + size) != LT_OK)
        return LT_NO_MEMORY;
    for (size_t i = 0; i < size; i++)
        out->items[out->size++] = (lt_character){content[i], source};
    return LT_OK;
}

int lt_replace(const lt_replacement *replacement, const lt_text *in, lt_text *out) {
    out->size = 0;
    if (lt_text_reserve(out, in->size) != LT_OK)
        return LT_NO_MEMORY;
    for (size_t start = 0; start < in->size;) {
        size_t length, skipped = 1;
        if (replacement->literal_size > 0) {
            length = literal_length(replacement, in, start);
        } else {
            length = run_length(replacement, in, start);
            if (length < replacement->minimum || (replacement->at_start && start > 0) ||
                (replacement->at_end && start + length < in->size)) {
                skipped = length > 1 && replacement->maximum == SIZE_MAX ? length : 1;
                length = 0;
            }
        }
        int status;
        if (length > 0) {
            status = append(out, replacement->content, replacement->content_size, in->items[start + length - 1].source);
            start += length;
        } else {
            status = lt_text_reserve(out, out->size + skipped);
            for (size_t i = 0; i < skipped && status == LT_OK; i++)
                out->items[out->size++] = in->items[start + i];
            start += skipped;
        }
        if (status != LT_OK)
            return LT_NO_MEMORY;
    }
    return LT_OK;
}

int lt_prepend(const lt_replacement *replacement, const lt_text *in, lt_text *out) {
    out->size = 0;
    if (append(out, replacement->content, replacement->content_size, in->items[0].source) != LT_OK ||
        lt_text_reserve(out, out->size + in->size) != LT_OK)
        return LT_NO_MEMORY;
    for (size_t i = 0; i < in->size; i++)
        out->items[out->size++] = in->items[i];
    return LT_OK;
}
