/* A set of byte strings with an id each, as a double-array trie over UTF-8 bytes.
 *
 * The child of node n for byte b lies at t = nodes[n].base ^ b and is really its child if nodes[t].parent == n, so a
 * step is one load and one comparison. base and its children lie in one block of 256 nodes, so t is always in range.
 * Walking a text costs at most the length of the longest key, whatever the text. */
#ifndef LT_TRIE_H
#define LT_TRIE_H

#include <stddef.h>
#include <stdint.h>

enum { LT_TRIE_ROOT = 0, LT_TRIE_NONE = -1 };

typedef struct {
    int32_t base;
    int32_t parent; /* LT_TRIE_NONE: not in use */
    int32_t value;  /* the id of the key that ends here, or -1 */
} lt_trie_node;

typedef struct {
    lt_trie_node *nodes; /* NULL: no keys */
    size_t size;
} lt_trie;

/* Builds the trie of count keys, which must be sorted bytewise, distinct and not empty: key i is
 * bytes[offsets[i]:offsets[i+1]] and has the id values[i] >= 0. */
int lt_trie_build(lt_trie *trie, const uint8_t *bytes, const int32_t *offsets, const int32_t *values, int32_t count);

void lt_trie_free(lt_trie *trie);

static inline int32_t lt_trie_step(const lt_trie_node *nodes, int32_t node, uint8_t byte) {
    int32_t child = nodes[node].base ^ byte;
    return nodes[child].parent == node ? child : LT_TRIE_NONE;
}

/* Steps over the UTF-8 form of one code point. */
static inline int32_t lt_trie_step_code_point(const lt_trie_node *nodes, int32_t node, uint32_t code_point) {
    if (code_point < 0x80)
        return lt_trie_step(nodes, node, (uint8_t)code_point);
    int continuation;
    if (code_point < 0x800) {
        node = lt_trie_step(nodes, node, (uint8_t)(0xC0 | code_point >> 6));
        continuation = 1;
    } else if (code_point < 0x10000) {
        node = lt_trie_step(nodes, node, (uint8_t)(0xE0 | code_point >> 12));
        continuation = 2;
    } else {
        node = lt_trie_step(nodes, node, (uint8_t)(0xF0 | code_point >> 18));
        continuation = 3;
    }
    while (node >= 0 && continuation-- > 0)
        node = lt_trie_step(nodes, node, (uint8_t)(0x80 | (code_point >> 6 * continuation & 0x3F)));
    return node;
}

#endif
