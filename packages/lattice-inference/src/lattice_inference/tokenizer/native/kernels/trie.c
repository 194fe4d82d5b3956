/* Builds double-array tries; see trie.h for the layout. */
#include "trie.h"

#include <stdbool.h>

#include "text.h"

enum {
    BLOCK = 256,
    MAX_TRIES = 512, /* free nodes looked at before a node's children go to a new block: keeps building linear */
};

/* A node whose children are still to be placed: the keys low..high-1 share its depth leading bytes. */
typedef struct {
    int32_t node, low, high, depth;
} pending;

typedef struct {
    lt_trie_node *nodes;
    int32_t *next, *previous; /* the free nodes as a doubly linked list */
    size_t capacity, next_capacity, previous_capacity;
    int32_t size;
    int32_t first_free, last_free;
} builder;

static int add_block(builder *b) {
    size_t needed = (size_t)b->size + BLOCK;
    if (needed > INT32_MAX || lt_reserve((void **)&b->nodes, &b->capacity, needed, sizeof(lt_trie_node)) != LT_OK ||
        lt_reserve((void **)&b->next, &b->next_capacity, needed, sizeof(int32_t)) != LT_OK ||
        lt_reserve((void **)&b->previous, &b->previous_capacity, needed, sizeof(int32_t)) != LT_OK)
        return LT_NO_MEMORY;
    for (int32_t i = b->size; i < (int32_t)needed; i++) {
        b->nodes[i] = (lt_trie_node){0, LT_TRIE_NONE, -1};
        b->previous[i] = b->last_free;
        b->next[i] = -1;
        if (b->last_free >= 0)
            b->next[b->last_free] = i;
        else
            b->first_free = i;
        b->last_free = i;
    }
    b->size = (int32_t)needed;
    return LT_OK;
}

static void take(builder *b, int32_t node, int32_t parent) {
    int32_t before = b->previous[node], after = b->next[node];
    if (before >= 0)
        b->next[before] = after;
    else
        b->first_free = after;
    if (after >= 0)
        b->previous[after] = before;
    else
        b->last_free = before;
    b->nodes[node].parent = parent;
}

static bool is_free(const builder *b, int32_t node) {
    return b->nodes[node].parent == LT_TRIE_NONE && node != LT_TRIE_ROOT;
}

/* Finds a base at which all the labels' nodes are free. */
static int find_base(builder *b, const uint8_t *labels, int count, int32_t *base) {
    int tries = 0;
    /* backwards: the newest blocks have the most room */
    for (int32_t node = b->last_free; node >= 0 && tries < MAX_TRIES; node = b->previous[node], tries++) {
        int32_t candidate = node ^ labels[0];
        int i = 1;
        while (i < count && is_free(b, candidate ^ labels[i]))
            i++;
        if (i == count) {
            *base = candidate;
            return LT_OK;
        }
    }
    *base = b->size;
    return add_block(b);
}

static int push_pending(pending **stack, size_t *size, size_t *capacity, pending item) {
    if (lt_reserve((void **)stack, capacity, *size + 1, sizeof(pending)) != LT_OK)
        return LT_NO_MEMORY;
    (*stack)[(*size)++] = item;
    return LT_OK;
}

static int build(builder *b, const uint8_t *bytes, const int32_t *offsets, const int32_t *values, int32_t count,
                 pending **stack, size_t *stack_capacity) {
    size_t stack_size = 0;
    if (add_block(b) != LT_OK)
        return LT_NO_MEMORY;
    take(b, LT_TRIE_ROOT, LT_TRIE_NONE);
    if (push_pending(stack, &stack_size, stack_capacity, (pending){LT_TRIE_ROOT, 0, count, 0}) != LT_OK)
        return LT_NO_MEMORY;
    while (stack_size > 0) {
        pending item = (*stack)[--stack_size];
        int32_t low = item.low;
        if (low < item.high && offsets[low + 1] - offsets[low] == item.depth)
            b->nodes[item.node].value = values[low++]; /* sorted: the key that ends here comes first */
        uint8_t labels[BLOCK];
        int32_t starts[BLOCK + 1];
        int label_count = 0;
        for (int32_t key = low; key < item.high; key++) {
            uint8_t label = bytes[offsets[key] + item.depth];
            if (label_count == 0 || labels[label_count - 1] != label) {
                labels[label_count] = label;
                starts[label_count++] = key;
            }
        }
        if (label_count == 0)
            continue;
        starts[label_count] = item.high;
        int32_t base;
        if (find_base(b, labels, label_count, &base) != LT_OK)
            return LT_NO_MEMORY;
        b->nodes[item.node].base = base;
        for (int i = 0; i < label_count; i++)
            take(b, base ^ labels[i], item.node);
        for (int i = label_count - 1; i >= 0; i--) {
            pending child = {base ^ labels[i], starts[i], starts[i + 1], item.depth + 1};
            if (push_pending(stack, &stack_size, stack_capacity, child) != LT_OK)
                return LT_NO_MEMORY;
        }
    }
    return LT_OK;
}

int lt_trie_build(lt_trie *trie, const uint8_t *bytes, const int32_t *offsets, const int32_t *values, int32_t count) {
    *trie = (lt_trie){NULL, 0};
    if (count == 0)
        return LT_OK;
    builder b = {.first_free = -1, .last_free = -1};
    pending *stack = NULL;
    size_t stack_capacity = 0;
    int status = build(&b, bytes, offsets, values, count, &stack, &stack_capacity);
    free(stack);
    free(b.next);
    free(b.previous);
    if (status != LT_OK) {
        free(b.nodes);
        return status;
    }
    trie->nodes = b.nodes;
    trie->size = (size_t)b.size;
    return LT_OK;
}

void lt_trie_free(lt_trie *trie) {
    free(trie->nodes);
    *trie = (lt_trie){NULL, 0};
}
