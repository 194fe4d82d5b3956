/* Scanners: where the word that begins at a position ends, for the splitting patterns that published BPE tokenizers use.
 *
 * Each is a regex of alternatives written out by hand. The alternatives of a pattern match every character, so a text is
 * the words that follow each other, and nothing of it is left over. Two things need care: a regex tries its alternatives
 * in order, and \s+(?!\S) gives back the last space of a run before a word, which then begins that word if the word takes
 * a space. \s is LT_UNICODE_WHITESPACE; it, \p{L}, \p{N} and \p{M} exclude each other.
 *
 * The functions are templates over how a character is read: kind is a constant in every caller. */
#ifndef LT_WORD_SCAN_H
#define LT_WORD_SCAN_H

#include "pre_tokenize.h"
#include "text.h"
#include "unicode.h"

#define LT_INLINE static inline __attribute__((always_inline))

enum { LT_KIND_CHARACTERS = 8 }; /* data is an array of lt_character; 1, 2 and 4 are a Python str's */

LT_INLINE uint32_t lt_at(const void *data, int kind, int32_t index) {
    return kind == LT_KIND_CHARACTERS ? ((const lt_character *)data)[index].code_point : lt_read(data, kind, index);
}

/* The class flags of a character. */
LT_INLINE uint32_t lt_flags_at(const void *data, int kind, int32_t index) {
    uint32_t code_point = lt_at(data, kind, index);
    return code_point < 128 ? lt_ascii_flags[code_point] : lt_properties(code_point)->flags;
}

/* The end of the run of characters whose flags have one of the wanted and none of the unwanted. */
LT_INLINE int32_t lt_run_of(const void *data, int kind, int32_t position, int32_t end,
                            uint32_t wanted) {
    while (position < end && (lt_flags_at(data, kind, position) & wanted))
        position++;
    return position;
}

LT_INLINE int32_t lt_run_without(const void *data, int kind, int32_t position, int32_t end,
                                 uint32_t unwanted) {
    while (position < end && !(lt_flags_at(data, kind, position) & unwanted))
        position++;
    return position;
}

/* The end of 's, 't, 're, 've, 'm, 'll or 'd behind the apostrophe at position, or position if there is none. Ignoring
 * case, the long s (U+017F) is an s. */
LT_INLINE int32_t lt_contraction(const void *data, int kind, int32_t position, int32_t end, bool ignore_case) {
    if (end - position < 2)
        return position;
    uint32_t first = lt_at(data, kind, position + 1);
    uint32_t second = end - position > 2 ? lt_at(data, kind, position + 2) : 0;
    if (ignore_case) {
        first = first == 0x17F ? 's' : first - 'A' < 26 ? first + 32 : first;
        second = second - 'A' < 26 ? second + 32 : second;
    }
    switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
        return position + 2;
    case 'r':
    case 'v':
        return second == 'e' ? position + 3 : position;
    case 'l':
        return second == 'l' ? position + 3 : position;
    default:
        return position;
    }
}

/* \s+(?!\S)|\s+ at a white space character whose run ends at run_end. */
LT_INLINE int32_t lt_space_run(int32_t position, int32_t run_end, int32_t end) {
    return run_end < end && run_end - position > 1 ? run_end - 1 : run_end;
}

/* GPT-2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
LT_INLINE int32_t lt_scan_gpt2(const void *data, int kind, int32_t position, int32_t end) {
    uint32_t code_point = lt_at(data, kind, position);
    uint32_t flags = lt_flags_at(data, kind, position);
    int32_t first = position;
    if (code_point == ' ' && position + 1 < end) {
        uint32_t next = lt_flags_at(data, kind, position + 1);
        if (!(next & LT_UNICODE_WHITESPACE)) {
            flags = next;
            first++;
        }
    } else if (code_point == '\'') {
        int32_t stop = lt_contraction(data, kind, position, end, false);
        if (stop > position)
            return stop;
    }
    if (flags & LT_UNICODE_LETTER)
        return lt_run_of(data, kind, first + 1, end, LT_UNICODE_LETTER);
    if (flags & LT_UNICODE_NUMBER)
        return lt_run_of(data, kind, first + 1, end, LT_UNICODE_NUMBER);
    if (!(flags & LT_UNICODE_WHITESPACE))
        return lt_run_without(data, kind, first + 1, end,
                              LT_UNICODE_WHITESPACE | LT_UNICODE_LETTER | LT_UNICODE_NUMBER);
    return lt_space_run(position, lt_run_of(data, kind, position + 1, end, LT_UNICODE_WHITESPACE), end);
}

/* GPT-4 and its kin, L being \p{L} (letters, for Qwen3.5 also \p{M}) and n the longest run of digits:
 * (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?L+|\p{N}{1,n}| ?[^\sL\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
LT_INLINE int32_t lt_scan_gpt4(const void *data, int kind, int32_t position, int32_t end,
                               uint32_t letters, int32_t longest_number) {
    uint32_t code_point = lt_at(data, kind, position);
    uint32_t flags = lt_flags_at(data, kind, position);
    if (flags & letters)
        return lt_run_of(data, kind, position + 1, end, letters);
    if (flags & LT_UNICODE_NUMBER) {
        int32_t limit = end - position > longest_number ? position + longest_number : end;
        return lt_run_of(data, kind, position + 1, limit, LT_UNICODE_NUMBER);
    }
    if (code_point == '\'') {
        int32_t stop = lt_contraction(data, kind, position, end, true);
        if (stop > position)
            return stop;
    }
    uint32_t next = position + 1 < end ? lt_flags_at(data, kind, position + 1) : LT_UNICODE_WHITESPACE;
    if ((next & letters) && code_point != '\r' && code_point != '\n')
        return lt_run_of(data, kind, position + 2, end, letters);
    uint32_t no_symbol = LT_UNICODE_WHITESPACE | LT_UNICODE_NUMBER | letters;
    if (!(flags & LT_UNICODE_WHITESPACE) || (code_point == ' ' && !(next & no_symbol))) {
        int32_t stop = lt_run_without(data, kind, position + 1, end, no_symbol);
        while (stop < end && (lt_at(data, kind, stop) == '\r' || lt_at(data, kind, stop) == '\n'))
            stop++;
        return stop;
    }
    int32_t run_end = position, newline_end = position;
    for (; run_end < end && (lt_flags_at(data, kind, run_end) & LT_UNICODE_WHITESPACE); run_end++)
        if (lt_at(data, kind, run_end) == '\r' || lt_at(data, kind, run_end) == '\n')
            newline_end = run_end + 1;
    return newline_end > position ? newline_end : lt_space_run(position, run_end, end);
}

/* Returns whether a step cuts a text into words that follow each other, as the scanners do. */
static inline bool lt_is_scanner(uint8_t step) {
    return step >= LT_SPLIT_GPT2 && step <= LT_SPLIT_DIGIT_RUNS;
}

/* Returns the end of the word that begins at position, by a step that is a scanner. */
LT_INLINE int32_t lt_scan_word(uint8_t step, const void *data, int kind, int32_t position,
                               int32_t end) {
    switch (step) {
    case LT_SPLIT_GPT2:
        return lt_scan_gpt2(data, kind, position, end);
    case LT_SPLIT_QWEN2:
        return lt_scan_gpt4(data, kind, position, end, LT_UNICODE_LETTER, 1);
    case LT_SPLIT_QWEN35:
        return lt_scan_gpt4(data, kind, position, end, LT_UNICODE_LETTER | LT_UNICODE_MARK, 1);
    case LT_SPLIT_LLAMA3:
        return lt_scan_gpt4(data, kind, position, end, LT_UNICODE_LETTER, 3);
    default: { /* LT_SPLIT_DIGITS, LT_SPLIT_DIGIT_RUNS */
        if (!(lt_flags_at(data, kind, position) & LT_UNICODE_NUMERIC))
            return lt_run_without(data, kind, position + 1, end, LT_UNICODE_NUMERIC);
        return step == LT_SPLIT_DIGITS
                   ? position + 1
                   : lt_run_of(data, kind, position + 1, end, LT_UNICODE_NUMERIC);
    }
    }
}

#endif
