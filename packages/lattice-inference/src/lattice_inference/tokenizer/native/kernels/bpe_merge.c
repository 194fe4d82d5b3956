/* The merging of a word, and the scratches that calls lend and return.
 *
 * Short words: the lowest rank is looked for in an array, which for a few dozen units is faster than any structure. Long
 * words: a list of tokens and a heap of (rank, position); an entry is good if its token still has that rank. With n units,
 * at most 3 n entries are ever made, so the time is n log n whatever the word. */
#include <stdatomic.h>
#include <string.h>

#include "bpe.h"

enum {
    SHORT_WORD = 48,
    KEPT_UNITS = 1 << 16, /* buffers for longer words are not kept beyond the call */
};

static inline int32_t first_rank(const lt_bpe *model, const lt_bpe_scratch *scratch, size_t i) {
    return lt_bpe_rank(model, scratch->ids[i], scratch->ids[i + 1]);
}

static void merge_short(const lt_bpe *model, lt_bpe_scratch *scratch) {
    int32_t ranks[SHORT_WORD];
    int32_t *ids = scratch->ids, *ends = scratch->ends;
    size_t size = scratch->size;
    for (size_t i = 0; i + 1 < size; i++)
        ranks[i] = first_rank(model, scratch, i);
    while (size > 1) {
        size_t best = 0;
        int32_t rank = ranks[0];
        for (size_t i = 1; i + 1 < size; i++)
            if (ranks[i] < rank) {
                rank = ranks[i];
                best = i;
            }
        if (rank == LT_BPE_NO_RANK)
            break;
        ids[best] = model->rank_ids[rank];
        ends[best] = ends[best + 1];
        size--;
        for (size_t i = best + 1; i < size; i++) {
            ids[i] = ids[i + 1];
            ends[i] = ends[i + 1];
            ranks[i - 1] = ranks[i];
        }
        /* ranks[best] is now that of the pair behind; both pairs with the new token are looked up again */
        if (best + 1 < size)
            ranks[best] = lt_bpe_rank(model, ids[best], ids[best + 1]);
        if (best > 0)
            ranks[best - 1] = lt_bpe_rank(model, ids[best - 1], ids[best]);
    }
    scratch->size = size;
}

static inline uint64_t entry(int32_t rank, size_t position) {
    return (uint64_t)(uint32_t)rank << 32 | (uint32_t)position;
}

static void sift_down(uint64_t *heap, size_t size, size_t i) {
    uint64_t moved = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= size)
            break;
        child += child + 1 < size && heap[child + 1] < heap[child];
        if (heap[child] >= moved)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

static int push(lt_bpe_scratch *scratch, uint64_t value) {
    if (lt_reserve((void **)&scratch->heap, &scratch->heap_capacity, scratch->heap_size + 1, sizeof(uint64_t)) != LT_OK)
        return LT_NO_MEMORY;
    uint64_t *heap = scratch->heap;
    size_t i = scratch->heap_size++;
    while (i > 0 && heap[(i - 1) / 2] > value) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = value;
    return LT_OK;
}

static int rank_again(const lt_bpe *model, lt_bpe_scratch *scratch, int32_t position) {
    lt_bpe_node *node = &scratch->nodes[position];
    node->rank = node->next < 0 ? LT_BPE_NO_RANK : lt_bpe_rank(model, node->id, scratch->nodes[node->next].id);
    return node->rank == LT_BPE_NO_RANK ? LT_OK : push(scratch, entry(node->rank, (size_t)position));
}

static int merge_long(const lt_bpe *model, lt_bpe_scratch *scratch) {
    size_t size = scratch->size;
    if (lt_reserve((void **)&scratch->nodes, &scratch->nodes_capacity, size, sizeof(lt_bpe_node)) != LT_OK ||
        lt_reserve((void **)&scratch->heap, &scratch->heap_capacity, size, sizeof(uint64_t)) != LT_OK)
        return LT_NO_MEMORY;
    lt_bpe_node *nodes = scratch->nodes;
    scratch->heap_size = 0;
    for (size_t i = 0; i < size; i++) {
        int32_t next = i + 1 < size ? (int32_t)i + 1 : -1;
        int32_t rank = next < 0 ? LT_BPE_NO_RANK : first_rank(model, scratch, i);
        nodes[i] = (lt_bpe_node){scratch->ids[i], scratch->ends[i], (int32_t)i - 1, next, rank};
        if (rank != LT_BPE_NO_RANK)
            scratch->heap[scratch->heap_size++] = entry(rank, i);
    }
    for (size_t i = scratch->heap_size / 2; i-- > 0;)
        sift_down(scratch->heap, scratch->heap_size, i);
    while (scratch->heap_size > 0) {
        uint64_t top = scratch->heap[0];
        scratch->heap[0] = scratch->heap[--scratch->heap_size];
        if (scratch->heap_size > 0)
            sift_down(scratch->heap, scratch->heap_size, 0);
        int32_t position = (int32_t)(uint32_t)top, rank = (int32_t)(top >> 32);
        lt_bpe_node *node = &nodes[position];
        if (node->rank != rank)
            continue; /* the token has been merged, or its neighbour has, since */
        lt_bpe_node *right = &nodes[node->next];
        node->id = model->rank_ids[rank];
        node->end = right->end;
        node->next = right->next;
        right->rank = LT_BPE_NO_RANK;
        if (node->next >= 0)
            nodes[node->next].previous = position;
        if (rank_again(model, scratch, position) != LT_OK ||
            (node->previous >= 0 && rank_again(model, scratch, node->previous) != LT_OK))
            return LT_NO_MEMORY;
    }
    scratch->size = 0;
    for (int32_t i = 0; i >= 0; i = nodes[i].next) {
        scratch->ids[scratch->size] = nodes[i].id;
        scratch->ends[scratch->size++] = nodes[i].end;
    }
    return LT_OK;
}

int lt_bpe_merge_word(const lt_bpe *model, lt_bpe_scratch *scratch) {
    if (scratch->size > SHORT_WORD)
        return merge_long(model, scratch);
    if (scratch->size > 1)
        merge_short(model, scratch);
    return LT_OK;
}

static void free_buffers(lt_bpe_scratch *scratch) {
    free(scratch->ids);
    free(scratch->ends);
    free(scratch->bytes);
    free(scratch->owners);
    free(scratch->nodes);
    free(scratch->heap);
    *scratch = (lt_bpe_scratch){.cache = scratch->cache};
}

static void free_scratch(lt_bpe_scratch *scratch) {
    if (scratch == NULL)
        return;
    free_buffers(scratch);
    free(scratch->cache);
    free(scratch);
}

lt_bpe_scratch *lt_bpe_lend(const lt_bpe *model) {
    for (int i = 0; i < LT_BPE_SPARES; i++) {
        lt_bpe_scratch *spare = atomic_exchange(&model->spares[i], NULL);
        if (spare != NULL)
            return spare;
    }
    lt_bpe_scratch *scratch = calloc(1, sizeof(lt_bpe_scratch));
    if (scratch == NULL)
        return NULL;
    scratch->cache = calloc((size_t)1 << LT_BPE_CACHE_BITS, sizeof(lt_bpe_cached));
    if (scratch->cache == NULL) {
        free(scratch);
        return NULL;
    }
    return scratch;
}

void lt_bpe_return(const lt_bpe *model, lt_bpe_scratch *scratch) {
    if (scratch == NULL)
        return;
    if (scratch->ids_capacity > KEPT_UNITS || scratch->bytes_capacity > 4 * KEPT_UNITS ||
        scratch->owners_capacity > KEPT_UNITS)
        free_buffers(scratch);
    for (int i = 0; i < LT_BPE_SPARES; i++) {
        lt_bpe_scratch *none = NULL;
        if (atomic_compare_exchange_strong(&model->spares[i], &none, scratch))
            return;
    }
    free_scratch(scratch);
}

void lt_bpe_free(lt_bpe *model) {
    free(model->merges);
    free(model->rank_ids);
    free(model->characters);
    free(model->word_bytes);
    lt_string_table_free(&model->words);
    if (model->spares != NULL)
        for (int i = 0; i < LT_BPE_SPARES; i++)
            free_scratch(model->spares[i]);
    free((void *)model->spares);
}
