// y[t, n] = sum over k of x[t, k] weight[n, k]: many rows. A threadgroup has a tile of 32 rows by 32 columns; tiles.metal has the plan.
//
// Where GATED is 1 a tile's columns are 16 of gates and the same 16 of the other half.
//
// A result depends on its row and column only, whatever rows stand beside it. Bound by the multipliers of matrices.

template <typename Format>
inline void linear_tiled(
    Step s, Weight w, device const float *bias, threadgroup float *tiles, uint group, uint lane, uint simdgroup) {
    constant Record *r = s.record;
    const uint width = GATED == 1u ? TILE / 2u : TILE;
    const uint tiles_of_columns = (r->n + width - 1u) / width;
    const uint first_row = group / tiles_of_columns * TILE;
    const uint first_column = group % tiles_of_columns * width;
    if (first_row >= r->rows) { // of the whole threadgroup
        return;
    }
    threadgroup float *x_tile = tiles;
    threadgroup float *w_tile = tiles + TILE_FLOATS;
    TileSums sums = no_sums();
    for (uint k = 0u; k < r->k; k += TILE) {
        threadgroup_barrier(mem_flags::mem_threadgroup); // the products of the tiles before are done
        for (uint part = lane; part < 4u * TILE; part += THREADS) {
            const uint line = part / 4u;
            const uint eighth = part % 4u * 8u;
            float v[8];
            row8(s.arena + r->x + min(first_row + line, r->rows - 1u) * r->x_stride, k + eighth, r->k, v);
            put_x8(x_tile, line, eighth, v);
            if (k + eighth < r->k) {
                Format::read8(w, min(first_column + line % width, r->n - 1u) + line / width * r->n, k + eighth, v);
            }
            put_w8(w_tile, line, eighth, v); // beyond the last k, v is the zeros of x
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products(sums, x_tile, w_tile, simdgroup);
    }
    put_sums(sums, tiles, simdgroup);
    for (uint i = lane; i < TILE * width; i += THREADS) {
        const uint row = i / width;
        const uint column = i % width;
        if (first_row + row < r->rows && first_column + column < r->n) {
            threadgroup const float *sum = tiles + row * TILE_STRIDE + column;
            if (GATED == 1u) {
                finish_gated(s, bias, first_row + row, first_column + column, sum[0], sum[width]);
            } else {
                finish(s, bias, first_row + row, first_column + column, sum[0]);
            }
        }
    }
}

#define LINEAR_TILED(NAME, FORMAT)                                            \
    kernel void NAME(STEP_BUFFERS, WEIGHT_BUFFERS, THREAD) {                  \
        threadgroup float tiles[2u * TILE_FLOATS];                            \
        const Step s = {arena, words, record};                                \
        const Weight w = {weight, scales, record->first, record->k};          \
        linear_tiled<FORMAT>(s, w, bias, tiles, group, lane, simdgroup);      \
    }
