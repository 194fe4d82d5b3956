/* See word_cache.h. */
#include "word_cache.h"

lt_cached_word *lt_word_cache_place(lt_scratch *scratch, const lt_character *items, int32_t length, bool *is_hit) {
    *is_hit = false;
    if (length > LT_CACHED_CHARACTERS || length == 0)
        return NULL;
    if (scratch->word_cache == NULL) {
        if (++scratch->words_seen < LT_CACHE_FROM)
            return NULL;
        scratch->words_seen = 0; /* if there is no memory for it, another try can wait as long */
        scratch->word_cache = calloc(LT_CACHE_WORDS, sizeof(lt_cached_word));
        if (scratch->word_cache == NULL)
            return NULL;
    }
    uint64_t hash = (uint64_t)length;
    for (int32_t i = 0; i < length; i++)
        hash = (hash ^ items[i].code_point) * 0x9E3779B97F4A7C15u;
    lt_cached_word *place = (lt_cached_word *)scratch->word_cache + (hash >> 32 & (LT_CACHE_WORDS - 1));
    if (place->length == length) {
        int32_t i = 0;
        while (i < length && place->characters[i] == items[i].code_point)
            i++;
        *is_hit = i == length;
    }
    return place;
}
