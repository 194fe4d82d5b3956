/* Linear probing at a load of at most one half. */
#include "string_table.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text.h"

static uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    value *= 0xD6E8FEB86659FD93u;
    return value ^ value >> 32;
}

uint64_t lt_hash_seed(void) {
    static const char anchor; /* its address is random where the system lays out memory so */
    struct timespec now = {0, 0};
    timespec_get(&now, TIME_UTC);
    return mix((uint64_t)(uintptr_t)&anchor) ^ mix((uint64_t)now.tv_nsec << 20 ^ (uint64_t)now.tv_sec);
}

static uint64_t hash(const lt_string_table *table, const uint8_t *data, size_t length) {
    uint64_t state = table->seed ^ length, word;
    for (; length >= 8; data += 8, length -= 8) {
        memcpy(&word, data, 8);
        state = mix((state ^ word) * 0x9E3779B97F4A7C15u);
    }
    word = 0;
    memcpy(&word, data, length);
    return mix((state ^ word) * 0x9E3779B97F4A7C15u);
}

static lt_string_slot *slot_of(const lt_string_table *table, const uint8_t *data, size_t length) {
    size_t i = hash(table, data, length) & table->mask;
    while (table->slots[i].data != NULL &&
           (table->slots[i].length != length || memcmp(table->slots[i].data, data, length) != 0))
        i = (i + 1) & table->mask;
    return &table->slots[i];
}

int lt_string_table_create(lt_string_table *table, size_t count) {
    size_t capacity = 16;
    while (capacity < 2 * count)
        capacity *= 2;
    table->slots = calloc(capacity, sizeof(lt_string_slot));
    if (table->slots == NULL)
        return LT_NO_MEMORY;
    table->mask = capacity - 1;
    table->size = 0;
    table->seed = lt_hash_seed();
    return LT_OK;
}

void lt_string_table_free(lt_string_table *table) {
    free(table->slots);
    *table = (lt_string_table){NULL, 0, 0, 0};
}

void lt_string_table_insert(lt_string_table *table, const uint8_t *data, size_t length, int32_t value) {
    lt_string_slot *slot = slot_of(table, data, length);
    table->size += slot->data == NULL;
    *slot = (lt_string_slot){data, (uint32_t)length, value};
}

int32_t lt_string_table_find(const lt_string_table *table, const uint8_t *data, size_t length) {
    if (table->slots == NULL)
        return -1;
    const lt_string_slot *slot = slot_of(table, data, length);
    return slot->data != NULL ? slot->value : -1;
}
