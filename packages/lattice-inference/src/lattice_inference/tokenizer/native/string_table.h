/* A hash table from byte strings, which it does not own, to numbers. Its seed differs from process to process, so that no
 * file can be made whose strings all collide. */
#ifndef LT_STRING_TABLE_H
#define LT_STRING_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *data; /* NULL: empty */
    uint32_t length;
    int32_t value;
} lt_string_slot;

typedef struct {
    lt_string_slot *slots; /* NULL: holds nothing */
    size_t mask, size;
    uint64_t seed;
} lt_string_table;

/* A number that differs from process to process. */
uint64_t lt_hash_seed(void);

/* Makes room for count strings, which are all that may be inserted. */
int lt_string_table_create(lt_string_table *table, size_t count);

void lt_string_table_free(lt_string_table *table);

/* Inserts a string; one that is there already gets the new value. */
void lt_string_table_insert(lt_string_table *table, const uint8_t *data, size_t length, int32_t value);

/* Returns the string's value, or -1. */
int32_t lt_string_table_find(const lt_string_table *table, const uint8_t *data, size_t length);

#endif
