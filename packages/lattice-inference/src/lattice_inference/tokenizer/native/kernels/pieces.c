/* Building and searching a table of pieces; see pieces.h. */
#include "pieces.h"

#include <math.h>
#include <string.h>

enum {
    DIGIT_BITS = 11, /* six passes over 64 bits */
    DIGITS = 1 << DIGIT_BITS,
    INSERTION_SORT_LIMIT = 24,
};

int lt_pieces_push(lt_pieces *pieces, const uint8_t *text, size_t size, double score) {
    size_t count = (size_t)pieces->count, start = count > 0 ? (size_t)pieces->ends[count - 1] : 0;
    if (start + size > INT32_MAX || count == INT32_MAX)
        return LT_PIECES_TOO_MANY;
    if (lt_reserve((void **)&pieces->text, &pieces->text_capacity, start + size, 1) != LT_OK ||
        lt_reserve((void **)&pieces->ends, &pieces->end_capacity, count + 1, sizeof(int32_t)) != LT_OK ||
        lt_reserve((void **)&pieces->scores, &pieces->score_capacity, count + 1, sizeof(double)) != LT_OK)
        return LT_NO_MEMORY;
    if (size > 0)
        memcpy(pieces->text + start, text, size);
    pieces->ends[count] = (int32_t)(start + size);
    pieces->scores[count] = score;
    pieces->count++;
    return LT_OK;
}

/* A piece in the order of its text. prefix holds its first eight bytes, the first in the highest place, filled up with
 * NULs, so that most comparisons look at it only. */
typedef struct {
    uint64_t prefix;
    int32_t id;
} entry;

static uint64_t prefix_of(const uint8_t *text, int32_t size) {
    uint64_t prefix = 0;
    for (int32_t i = 0; i < 8; i++)
        prefix = prefix << 8 | (i < size ? text[i] : 0);
    return prefix;
}

/* Sorts by prefix: by some bits after the others from the lowest, each pass keeping the order of the one before. */
static void sort_by_prefix(entry *entries, entry *other, size_t count) {
    for (int shift = 0; shift < 64; shift += DIGIT_BITS) {
        uint32_t places[DIGITS + 1] = {0};
        for (size_t i = 0; i < count; i++)
            places[(entries[i].prefix >> shift & (DIGITS - 1)) + 1]++;
        for (int i = 0; i < DIGITS; i++)
            places[i + 1] += places[i];
        for (size_t i = 0; i < count; i++)
            other[places[entries[i].prefix >> shift & (DIGITS - 1)]++] = entries[i];
        entry *swapped = entries;
        entries = other;
        other = swapped;
    }
}

static int compare_texts(const lt_pieces *pieces, int32_t a, int32_t b) {
    int32_t a_start = lt_piece_start(pieces, a), b_start = lt_piece_start(pieces, b);
    int32_t a_size = pieces->ends[a] - a_start, b_size = pieces->ends[b] - b_start;
    int order = memcmp(pieces->text + a_start, pieces->text + b_start, (size_t)(a_size < b_size ? a_size : b_size));
    return order != 0 ? order : (a_size > b_size) - (a_size < b_size);
}

/* Sorts a few entries of equal prefix, by the eight bytes behind it and then by the whole text; the prefix is lost. */
static void sort_few(const lt_pieces *pieces, entry *entries, size_t count) {
    for (size_t i = 0; i < count; i++) {
        entry item = entries[i];
        int32_t start = lt_piece_start(pieces, item.id), size = pieces->ends[item.id] - start;
        item.prefix = size > 8 ? prefix_of(pieces->text + start + 8, size - 8) : 0;
        size_t k = i;
        while (k > 0 && (entries[k - 1].prefix > item.prefix ||
                         (entries[k - 1].prefix == item.prefix &&
                          compare_texts(pieces, entries[k - 1].id, item.id) > 0))) {
            entries[k] = entries[k - 1];
            k--;
        }
        entries[k] = item;
    }
}

/* Sorts entries of equal prefix by the whole text and then by id: many by merging, as a file may hold any order. */
static void sort_by_text(const lt_pieces *pieces, entry *entries, entry *other, size_t count) {
    if (count <= INSERTION_SORT_LIMIT) {
        sort_few(pieces, entries, count);
        return;
    }
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count;
            size_t end = middle + width < count ? middle + width : count;
            size_t left = start, right = middle;
            for (size_t i = start; i < end; i++) {
                bool take_left = right == end || (left < middle && compare_texts(pieces, entries[left].id,
                                                                                entries[right].id) <= 0);
                other[i] = entries[take_left ? left++ : right++];
            }
        }
        memcpy(entries, other, count * sizeof(entry));
    }
}

/* Writes the ids of the pieces in the order of their texts, without empty and repeated ones, and returns how many. */
static size_t sorted_ids(const lt_pieces *pieces, entry *entries, entry *other, int32_t *ids) {
    size_t count = 0;
    for (int32_t id = 0; id < pieces->count; id++) {
        int32_t start = lt_piece_start(pieces, id), size = pieces->ends[id] - start;
        if (size > 0)
            entries[count++] = (entry){prefix_of(pieces->text + start, size), id};
    }
    sort_by_prefix(entries, other, count); /* an even number of passes: the result is in entries */
    size_t distinct = 0;
    for (size_t start = 0; start < count;) {
        size_t end = start + 1;
        while (end < count && entries[end].prefix == entries[start].prefix)
            end++; /* before they are sorted, which changes the prefixes */
        if (end - start > 1)
            sort_by_text(pieces, entries + start, other, end - start);
        for (size_t i = start; i < end; i++) {
            if (i > start && compare_texts(pieces, ids[distinct - 1], entries[i].id) == 0)
                distinct--;
            ids[distinct++] = entries[i].id;
        }
        start = end;
    }
    return distinct;
}

int lt_pieces_index(lt_pieces *pieces) {
    size_t count = (size_t)pieces->count, total = count > 0 ? (size_t)pieces->ends[count - 1] : 0;
    pieces->lowest_score = INFINITY;
    for (size_t i = 0; i < count; i++)
        if (pieces->scores[i] < pieces->lowest_score)
            pieces->lowest_score = pieces->scores[i];
    entry *entries = malloc((count + 1) * sizeof(entry)), *other = malloc((count + 1) * sizeof(entry));
    int32_t *ids = malloc((count + 1) * sizeof(int32_t)), *offsets = malloc((count + 1) * sizeof(int32_t));
    uint8_t *text = malloc(total + 1);
    int status = LT_NO_MEMORY;
    if (entries != NULL && other != NULL && ids != NULL && offsets != NULL && text != NULL) {
        size_t distinct = sorted_ids(pieces, entries, other, ids);
        int32_t size = 0;
        for (size_t i = 0; i < distinct; i++) {
            int32_t start = lt_piece_start(pieces, ids[i]), length = pieces->ends[ids[i]] - start;
            offsets[i] = size;
            memcpy(text + size, pieces->text + start, (size_t)length);
            size += length;
        }
        offsets[distinct] = size;
        status = lt_trie_build(&pieces->trie, text, offsets, ids, (int32_t)distinct);
    }
    free(entries);
    free(other);
    free(ids);
    free(offsets);
    free(text);
    return status;
}

int32_t lt_pieces_find(const lt_pieces *pieces, const uint8_t *text, size_t size) {
    if (pieces->trie.nodes == NULL || size == 0)
        return -1;
    int32_t node = LT_TRIE_ROOT;
    for (size_t i = 0; i < size && node >= 0; i++)
        node = lt_trie_step(pieces->trie.nodes, node, text[i]);
    return node < 0 ? -1 : pieces->trie.nodes[node].value;
}

void lt_pieces_free(lt_pieces *pieces) {
    free(pieces->text);
    free(pieces->ends);
    free(pieces->scores);
    lt_trie_free(&pieces->trie);
}
