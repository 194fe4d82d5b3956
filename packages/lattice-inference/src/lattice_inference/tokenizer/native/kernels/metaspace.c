/* See metaspace.h. */
#include "metaspace.h"

int lt_metaspace_split(const lt_metaspace *metaspace, const lt_text *text, const lt_spans *spans, lt_text *out,
                       lt_spans *out_spans) {
    uint32_t replacement = metaspace->replacement;
    out->size = 0;
    if (lt_text_reserve(out, text->size + spans->size) != LT_OK)
        return LT_NO_MEMORY;
    for (size_t i = 0; i < spans->size; i++) {
        lt_span span = spans->items[i];
        const lt_character *items = &text->items[span.start];
        int32_t length = span.end - span.start;
        if (out->size + (size_t)length >= INT32_MAX)
            return LT_TEXT_TOO_LONG;
        if (lt_text_reserve(out, out->size + (size_t)length + 1) != LT_OK)
            return LT_NO_MEMORY;
        lt_character *written = &out->items[out->size];
        int32_t size = 0, start = (int32_t)out->size, word = 0;
        bool has_prefix = items[0].code_point == ' ' || items[0].code_point == replacement;
        if (!has_prefix && (metaspace->scheme == LT_PREPEND_ALWAYS ||
                            (metaspace->scheme == LT_PREPEND_FIRST && items[0].source == 0)))
            written[size++] = (lt_character){replacement, items[0].source};
        for (int32_t k = 0; k < length; k++) {
            lt_character item = items[k];
            if (item.code_point == ' ')
                item.code_point = replacement;
            if (metaspace->split && item.code_point == replacement && size > word) {
                if (lt_spans_push(out_spans, start + word, start + size) != LT_OK)
                    return LT_NO_MEMORY;
                word = size;
            }
            written[size++] = item;
        }
        if (lt_spans_push(out_spans, start + word, start + size) != LT_OK)
            return LT_NO_MEMORY;
        out->size += (size_t)size;
    }
    return LT_OK;
}
