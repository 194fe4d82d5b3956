// y[t] = table[ids[t]], or a[t] + table[ids[t]] where ADD is 1. A thread has four columns of a row.
//
// A table may be cut into parts of some rows each: a dispatch writes the rows whose ids lie in its part, from first on.

template <typename Format>
inline void embed_rows(Step s, Weight w, uint group, uint lane) {
    constant Record *r = s.record;
    const uint fours = (r->k + 3u) / 4u;
    const uint index = group * THREADS + lane;
    const uint row = index / fours;
    if (row >= r->rows) {
        return;
    }
    const uint id = word_of(s, r->section, row);
    if (id < r->first || id >= r->first + r->n) {
        return;
    }
    const uint column = index % fours * 4u;
    const uint beside = column % 8u;
    float v[8];
    Format::read8(w, id - r->first, column - beside, v);
    for (uint i = 0u; i < 4u && column + i < r->k; i++) {
        const float value = beside == 0u ? v[i] : v[i + 4u];
        const float before = ADD == 1u ? s.arena[r->a + row * r->a_stride + column + i] : 0.0f;
        s.arena[r->y + row * r->y_stride + column + i] = ADD == 1u ? before + value : value;
    }
}

#define EMBED_ROWS(NAME, FORMAT)                                       \
    kernel void NAME(STEP_BUFFERS, WEIGHT_BUFFERS, THREAD) {           \
        const Step s = {arena, words, record};                         \
        const Weight w = {weight, scales, record->first, record->k};   \
        embed_rows<FORMAT>(s, w, group, lane);                         \
    }
