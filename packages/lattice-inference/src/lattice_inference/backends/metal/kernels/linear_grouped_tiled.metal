// The products of pairs and their experts, many rows: a threadgroup has a tile of 32 pairs of one expert by 32 columns; tiles.metal has
// the plan. The table `b` of moe_group says which expert a tile has and which pairs.
//
// A result depends on its pair and column only, whatever pairs stand beside it.

// The expert of a tile: the last one with no more tiles before it; `experts` for a tile too many.
inline uint expert_of(device const float *tiles_before, uint experts, float tile) {
    if (tile >= tiles_before[experts]) {
        return experts;
    }
    uint low = 0u;
    uint high = experts;
    while (low + 1u < high) {
        const uint middle = (low + high) / 2u;
        if (tiles_before[middle] <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

template <typename Format>
inline void linear_grouped_tiled(
    Step s, Weight w, threadgroup float *tiles, uint group, uint lane, uint simdgroup) {
    constant Record *r = s.record;
    const uint tiles_of_columns = (r->n + TILE - 1u) / TILE;
    const uint tile = group / tiles_of_columns;
    const uint first_column = group % tiles_of_columns * TILE;
    device const float *pairs_before = s.arena + r->b;
    device const float *tiles_before = pairs_before + r->experts + 1u;
    device const float *pairs = tiles_before + r->experts + 1u;
    const uint expert = expert_of(tiles_before, r->experts, float(tile));
    if (expert == r->experts) { // of the whole threadgroup
        return;
    }
    const uint first_pair = uint(pairs_before[expert]) + (tile - uint(tiles_before[expert])) * TILE;
    const uint last_pair = uint(pairs_before[expert + 1u]) - 1u;
    threadgroup float *x_tile = tiles;
    threadgroup float *w_tile = tiles + TILE_FLOATS;
    TileSums sums = no_sums();
    for (uint k = 0u; k < r->k; k += TILE) {
        threadgroup_barrier(mem_flags::mem_threadgroup); // the products of the tiles before are done
        for (uint part = lane; part < 4u * TILE; part += THREADS) {
            const uint line = part / 4u;
            const uint eighth = part % 4u * 8u;
            float v[8];
            row8(input_of(s, uint(pairs[min(first_pair + line, last_pair)])), k + eighth, r->k, v);
            put_x8(x_tile, line, eighth, v);
            if (k + eighth < r->k) {
                const uint row = weight_row(r, expert, first_column + line);
                Format::read8(w, row == ~0u ? 0u : row, k + eighth, v); // a result of row 0 instead is not put
            }
            put_w8(w_tile, line, eighth, v); // beyond the last k, v is the zeros of x
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products(sums, x_tile, w_tile, simdgroup);
    }
    put_sums(sums, tiles, simdgroup);
    for (uint i = lane; i < TILE * TILE; i += THREADS) {
        const uint line = i / TILE;
        const uint column = i % TILE;
        if (first_pair + line <= last_pair) {
            put_pair(s, uint(pairs[first_pair + line]), expert, first_column + column, tiles[line * TILE_STRIDE + column]);
        }
    }
}

#define LINEAR_GROUPED_TILED(NAME, FORMAT)                                          \
    kernel void NAME(STEP_BUFFERS, WEIGHT_BUFFERS, THREAD) {                        \
        threadgroup float tiles[2u * TILE_FLOATS];                                  \
        const Step s = {arena, words, record};                                      \
        const Weight w = {weight, scales, record->first, record->k};                \
        linear_grouped_tiled<FORMAT>(s, w, tiles, group, lane, simdgroup);          \
    }
