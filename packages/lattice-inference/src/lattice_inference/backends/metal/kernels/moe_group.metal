// The pairs of each expert, in order of rows, from the routes `a`. One threadgroup; a thread has the experts i, i + 64, ...
//
//   y: experts + 1 sums of pairs before an expert, as many of tiles of 32 pairs, then the pairs (row * each + place); all as floats,
//   which are exact for such numbers

kernel void moe_group(STEP_BUFFERS, THREAD) {
    constant Record *r = record;
    device float *pairs_before = arena + r->y;
    device float *tiles_before = pairs_before + r->experts + 1u;
    device float *pairs = tiles_before + r->experts + 1u;
    device const float *routes = arena + r->a;
    for (uint e = lane; e < r->experts; e += THREADS) {
        uint count = 0u;
        for (uint row = 0u; row < r->rows; row++) {
            for (uint i = 0u; i < r->each; i++) {
                count += routes[row * r->a_stride + i] == float(e) ? 1u : 0u;
            }
        }
        pairs_before[e + 1u] = float(count);
        tiles_before[e + 1u] = float((count + TILE - 1u) / TILE);
    }
    threadgroup_barrier(mem_flags::mem_device);
    if (lane == 0u) {
        pairs_before[0] = 0.0f;
        tiles_before[0] = 0.0f;
        for (uint e = 0u; e < r->experts; e++) {
            pairs_before[e + 1u] += pairs_before[e];
            tiles_before[e + 1u] += tiles_before[e];
        }
    }
    threadgroup_barrier(mem_flags::mem_device);
    for (uint e = lane; e < r->experts; e += THREADS) {
        uint at = uint(pairs_before[e]);
        for (uint row = 0u; row < r->rows; row++) {
            for (uint i = 0u; i < r->each; i++) {
                if (routes[row * r->a_stride + i] == float(e)) {
                    pairs[at] = float(row * r->each + i);
                    at++;
                }
            }
        }
    }
}
