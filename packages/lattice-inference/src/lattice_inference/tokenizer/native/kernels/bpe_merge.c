/* The merging of a word, and the scratches that calls lend and return.
 *
 * Short words: the lowest rank is looked for in an array, which for a few dozen units is faster than any structure.
 *
 * Longer words: a list of tokens, and entries (rank, position) for its pairs, the least of which is the next merge if its
 * token still has that rank. With n units at most 3 n entries are ever made. They are kept in a heap, which makes n log n.
 * In a huge word the heap would leave the caches, and what makes words huge is repetition: few ranks, each at many places
 * from left to right. So there every rank has a queue, to which an entry goes if it lies to the right of the last one, and
 * a small heap holds the ranks whose queues are not empty; only entries that come out of order go to the large heap. */
#include <stdatomic.h>
#include <string.h>

#include "bpe.h"

enum {
    SHORT_WORD = 48,
    QUEUED_WORD = 1 << 13,
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

static inline uint64_t entry(int32_t rank, int32_t position) {
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

static int push_heap(lt_bpe_heap *heap, uint64_t value) {
    if (lt_reserve((void **)&heap->items, &heap->capacity, heap->size + 1, sizeof(uint64_t)) != LT_OK)
        return LT_NO_MEMORY;
    uint64_t *items = heap->items;
    size_t i = heap->size++;
    while (i > 0 && items[(i - 1) / 2] > value) {
        items[i] = items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    items[i] = value;
    return LT_OK;
}

static uint64_t pop_heap(lt_bpe_heap *heap) {
    uint64_t top = heap->items[0];
    heap->items[0] = heap->items[--heap->size];
    if (heap->size > 0)
        sift_down(heap->items, heap->size, 0);
    return top;
}

/* Gives the scratch an empty queue for every rank. Merging empties them again, so this happens once. */
static int make_queues(const lt_bpe *model, lt_bpe_scratch *scratch) {
    if (scratch->queues != NULL)
        return LT_OK;
    scratch->queues = malloc((model->merge_count + 1) * sizeof(lt_bpe_queue));
    if (scratch->queues == NULL)
        return LT_NO_MEMORY;
    memset(scratch->queues, -1, (model->merge_count + 1) * sizeof(lt_bpe_queue));
    return LT_OK;
}

/* Adds an entry, to its rank's queue if there are queues and it comes in order, else to the heap. */
static int add_entry(lt_bpe_scratch *scratch, bool has_queues, int32_t rank, int32_t position) {
    if (!has_queues)
        return push_heap(&scratch->heap, entry(rank, position));
    lt_bpe_queue *queue = &scratch->queues[rank];
    bool is_empty = queue->first < 0;
    if (!is_empty && scratch->queued[queue->last].position > position)
        return push_heap(&scratch->heap, entry(rank, position));
    if (lt_reserve((void **)&scratch->queued, &scratch->queued_capacity, scratch->queued_size + 1,
                   sizeof(lt_bpe_queued)) != LT_OK)
        return LT_NO_MEMORY;
    int32_t index = (int32_t)scratch->queued_size++;
    scratch->queued[index] = (lt_bpe_queued){position, -1};
    if (is_empty)
        queue->first = index;
    else
        scratch->queued[queue->last].next = index;
    queue->last = index;
    return is_empty ? push_heap(&scratch->ranks, (uint64_t)(uint32_t)rank) : LT_OK;
}

/* Takes the least entry; returns false if there is none. */
static bool take_entry(lt_bpe_scratch *scratch, int32_t *rank, int32_t *position) {
    uint64_t queued = UINT64_MAX;
    if (scratch->ranks.size > 0) {
        lt_bpe_queue *queue = &scratch->queues[scratch->ranks.items[0]];
        queued = entry((int32_t)scratch->ranks.items[0], scratch->queued[queue->first].position);
    }
    uint64_t least;
    if (scratch->heap.size > 0 && scratch->heap.items[0] < queued) {
        least = pop_heap(&scratch->heap);
    } else if (queued != UINT64_MAX) {
        least = queued;
        lt_bpe_queue *queue = &scratch->queues[scratch->ranks.items[0]];
        queue->first = scratch->queued[queue->first].next;
        if (queue->first < 0)
            pop_heap(&scratch->ranks);
    } else {
        return false;
    }
    *rank = (int32_t)(least >> 32);
    *position = (int32_t)(uint32_t)least;
    return true;
}

/* Looks up the rank of the pair that begins at a position, and makes an entry of it. */
static int rank_again(const lt_bpe *model, lt_bpe_scratch *scratch, bool has_queues, int32_t position) {
    lt_bpe_node *node = &scratch->nodes[position];
    node->rank = node->next < 0 ? LT_BPE_NO_RANK : lt_bpe_rank(model, node->id, scratch->nodes[node->next].id);
    return node->rank == LT_BPE_NO_RANK ? LT_OK : add_entry(scratch, has_queues, node->rank, position);
}

static int merge_long(const lt_bpe *model, lt_bpe_scratch *scratch) {
    size_t size = scratch->size;
    bool has_queues = size > QUEUED_WORD;
    if (lt_reserve((void **)&scratch->nodes, &scratch->nodes_capacity, size, sizeof(lt_bpe_node)) != LT_OK ||
        (has_queues && make_queues(model, scratch) != LT_OK))
        return LT_NO_MEMORY;
    lt_bpe_node *nodes = scratch->nodes;
    scratch->heap.size = scratch->ranks.size = scratch->queued_size = 0;
    for (size_t i = 0; i < size; i++)
        nodes[i] = (lt_bpe_node){scratch->ids[i], scratch->ends[i], (int32_t)i - 1,
                                 i + 1 < size ? (int32_t)i + 1 : -1, LT_BPE_NO_RANK};
    int status = LT_OK;
    for (size_t i = 0; i < size && status == LT_OK; i++)
        status = rank_again(model, scratch, has_queues, (int32_t)i);
    int32_t position, rank;
    while (status == LT_OK && take_entry(scratch, &rank, &position)) {
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
        if (node->previous >= 0)
            status = rank_again(model, scratch, has_queues, node->previous);
        if (status == LT_OK)
            status = rank_again(model, scratch, has_queues, position);
    }
    if (status != LT_OK) {
        free(scratch->queues); /* they are not empty */
        scratch->queues = NULL;
        return status;
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
    free(scratch->heap.items);
    free(scratch->ranks.items);
    free(scratch->queued);
    *scratch = (lt_bpe_scratch){.cache = scratch->cache, .queues = scratch->queues};
}

static void free_scratch(lt_bpe_scratch *scratch) {
    if (scratch == NULL)
        return;
    free_buffers(scratch);
    free(scratch->queues);
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
