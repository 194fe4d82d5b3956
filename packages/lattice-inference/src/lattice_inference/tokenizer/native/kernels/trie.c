/* Builds double-array tries; see trie.h for the layout. */
#include "trie.h"

#include <stdbool.h>
#include <string.h>

#include "text.h"

enum {
    BLOCK = 256,
    MAX_TRIES = 512, /* free nodes looked at before a node's children go to a new block: keeps building linear */
};

/* A node whose children are still to be placed: the keys low..high-1 share its depth leading bytes. */
typedef struct {
    int32_t node, low, high, depth;
} pending;

/* Which nodes of a block are free, and its neighbours in the list of blocks that have some. */
typedef struct {
    uint64_t free[BLOCK / 64];
    int32_t newer, older; /* -1: none */
} block;

typedef struct {
    lt_trie_node *nodes;
    block *blocks;
    size_t capacity, block_capacity;
    int32_t newest; /* of the blocks with free nodes; -1: none */
    int32_t size;
} builder;

static int add_block(builder *b) {
    size_t needed = (size_t)b->size + BLOCK;
    int32_t number = b->size / BLOCK;
    if (needed > INT32_MAX || lt_reserve((void **)&b->nodes, &b->capacity, needed, sizeof(lt_trie_node)) != LT_OK ||
        lt_reserve((void **)&b->blocks, &b->block_capacity, (size_t)number + 1, sizeof(block)) != LT_OK)
        return LT_NO_MEMORY;
    for (int32_t i = b->size; i < (int32_t)needed; i++)
        b->nodes[i] = (lt_trie_node){0, LT_TRIE_NONE, -1};
    b->blocks[number] = (block){.newer = -1, .older = b->newest};
    memset(b->blocks[number].free, 0xFF, sizeof b->blocks[number].free);
    if (b->newest >= 0)
        b->blocks[b->newest].newer = number;
    b->newest = number;
    b->size = (int32_t)needed;
    return LT_OK;
}

static void take(builder *b, int32_t node, int32_t parent) {
    block *home = &b->blocks[node / BLOCK];
    b->nodes[node].parent = parent;
    home->free[node % BLOCK / 64] &= ~(1ull << node % 64);
    for (int i = 0; i < BLOCK / 64; i++)
        if (home->free[i] != 0)
            return;
    if (home->newer >= 0)
        b->blocks[home->newer].older = home->older;
    else
        b->newest = home->older;
    if (home->older >= 0)
        b->blocks[home->older].newer = home->newer;
}

static inline bool is_free(const block *home, int place) {
    return home->free[place / 64] >> place % 64 & 1;
}

/* Finds a base at which all the labels' nodes are free. */
static int find_base(builder *b, const uint8_t *labels, int count, int32_t *base) {
    int tries = 0;
    for (int32_t number = b->newest; number >= 0 && tries < MAX_TRIES; number = b->blocks[number].older) {
        const block *home = &b->blocks[number];
        for (int word = 0; word < BLOCK / 64; word++) {
            for (uint64_t left = home->free[word]; left != 0; left &= left - 1, tries++) {
                int candidate = (64 * word + __builtin_ctzll(left)) ^ labels[0], i = 1;
                while (i < count && is_free(home, candidate ^ labels[i]))
                    i++;
                if (i == count) {
                    *base = BLOCK * number + candidate;
                    return LT_OK;
                }
            }
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
    builder b = {.newest = -1};
    pending *stack = NULL;
    size_t stack_capacity = 0;
    int status = build(&b, bytes, offsets, values, count, &stack, &stack_capacity);
    free(stack);
    free(b.blocks);
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
