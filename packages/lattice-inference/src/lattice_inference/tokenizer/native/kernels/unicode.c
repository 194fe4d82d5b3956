/* Decomposition and composition over the generated tables; see unicode.h. */
#include "unicode.h"

#include "unicode_tables.h"

enum {
    HANGUL_S = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    HANGUL_L_COUNT = 19,
    HANGUL_V_COUNT = 21,
    HANGUL_T_COUNT = 28,
    HANGUL_N_COUNT = HANGUL_V_COUNT * HANGUL_T_COUNT,
    HANGUL_S_COUNT = HANGUL_L_COUNT * HANGUL_N_COUNT,
};

static int decompose_hangul(uint32_t index, uint32_t *out) {
    out[0] = HANGUL_L + index / HANGUL_N_COUNT;
    out[1] = HANGUL_V + index % HANGUL_N_COUNT / HANGUL_T_COUNT;
    if (index % HANGUL_T_COUNT == 0)
        return 2;
    out[2] = HANGUL_T + index % HANGUL_T_COUNT;
    return 3;
}

int lt_decompose(uint32_t code_point, bool compatibility, uint32_t *out) {
    if (code_point - HANGUL_S < HANGUL_S_COUNT)
        return decompose_hangul(code_point - HANGUL_S, out);
    uint32_t block = lt_decomposition_stage1[code_point >> LT_DECOMPOSITION_SHIFT];
    uint32_t low = code_point & ((1u << LT_DECOMPOSITION_SHIFT) - 1);
    uint32_t offset = lt_decomposition_stage2[(block << LT_DECOMPOSITION_SHIFT) | low];
    const uint16_t *unit = &lt_decomposition_pool[offset];
    uint32_t canonical_units = unit[0] & 255, compatibility_units = unit[0] >> 8;
    uint32_t units = canonical_units;
    unit++;
    if (compatibility && compatibility_units) {
        unit += canonical_units;
        units = compatibility_units;
    }
    if (offset == 0 || units == 0) {
        out[0] = code_point;
        return 1;
    }
    int size = 0;
    for (uint32_t i = 0; i < units; i++) {
        uint32_t value = unit[i];
        if (value - 0xD800 < 0x400) { /* a surrogate pair; the generator writes whole pairs only */
            value = 0x10000 + ((value - 0xD800) << 10) + (unit[i + 1] - 0xDC00u);
            i++;
        }
        out[size++] = value;
    }
    return size;
}

static uint32_t compose_hangul(uint32_t first, uint32_t second) {
    if (first - HANGUL_L < HANGUL_L_COUNT && second - HANGUL_V < HANGUL_V_COUNT)
        return HANGUL_S + ((first - HANGUL_L) * HANGUL_V_COUNT + (second - HANGUL_V)) * HANGUL_T_COUNT;
    uint32_t syllable = first - HANGUL_S;
    if (syllable < HANGUL_S_COUNT && syllable % HANGUL_T_COUNT == 0 && second - (HANGUL_T + 1) < HANGUL_T_COUNT - 1)
        return first + (second - HANGUL_T);
    return 0;
}

uint32_t lt_compose(uint32_t first, uint32_t second) {
    if (!lt_has(second, LT_UNICODE_COMPOSES_BACK))
        return compose_hangul(first, second);
    int low = 0, high = LT_COMPOSITION_COUNT;
    while (low < high) {
        int middle = (low + high) / 2;
        const uint32_t *pair = lt_compositions[middle];
        if (pair[0] < first || (pair[0] == first && pair[1] < second))
            low = middle + 1;
        else
            high = middle;
    }
    if (low < LT_COMPOSITION_COUNT && lt_compositions[low][0] == first && lt_compositions[low][1] == second)
        return lt_compositions[low][2];
    return 0;
}
