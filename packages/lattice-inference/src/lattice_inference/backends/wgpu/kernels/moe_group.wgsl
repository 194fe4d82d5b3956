// The pairs of each expert, in order of rows, from the routes `a`. One workgroup; an invocation has the experts i, i + 64, ...
//
//   y: r.experts + 1 sums of pairs before an expert, as many of tiles of 32 pairs, then the pairs (row * each + place); all as floats,
//   which are exact for such numbers

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    let tiles = r.y + r.experts + 1u;
    let pairs = tiles + r.experts + 1u;
    for (var e = lane; e < r.experts; e += 64u) {
        var count = 0.0;
        for (var row = 0u; row < r.rows; row++) {
            for (var i = 0u; i < r.each; i++) {
                count += select(0.0, 1.0, arena[r.a + row * r.a_stride + i] == f32(e));
            }
        }
        arena[r.y + e + 1u] = count;
        arena[tiles + e + 1u] = ceil(count / 32.0);
    }
    storageBarrier();
    workgroupBarrier();
    if lane == 0u {
        arena[r.y] = 0.0;
        arena[tiles] = 0.0;
        for (var e = 0u; e < r.experts; e++) {
            arena[r.y + e + 1u] += arena[r.y + e];
            arena[tiles + e + 1u] += arena[tiles + e];
        }
    }
    storageBarrier();
    workgroupBarrier();
    for (var e = lane; e < r.experts; e += 64u) {
        var at = pairs + u32(arena[r.y + e]);
        for (var row = 0u; row < r.rows; row++) {
            for (var i = 0u; i < r.each; i++) {
                if arena[r.a + row * r.a_stride + i] == f32(e) {
                    arena[at] = f32(row * r.each + i);
                    at++;
                }
            }
        }
    }
}
