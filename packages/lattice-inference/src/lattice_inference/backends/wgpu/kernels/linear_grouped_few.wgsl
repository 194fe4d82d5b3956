// The product of a pair's row and its expert, few rows: a workgroup has four columns of one pair, as linear_few has of one row. The
// routes `a` say which expert it is. The order of additions depends on the device's subgroups only. Bound by reads of weights.

var<workgroup> sums: array<vec4<f32>, PARTS * ROWS>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32 SUBGROUP_BUILTINS) {
    let fours = (r.n + 3u) / 4u;
    let index = group_index(group, groups);
    let pair = min(index / fours, r.rows * r.each - 1u);
    let first = index % fours * 4u;
    let expert = min(u32(arena[r.a + pair / r.each * r.a_stride + pair % r.each]), r.experts - 1u);
    let x = input_of(pair);
    let n = vec4<u32>(weight_row(expert, first), weight_row(expert, first + 1u), weight_row(expert, first + 2u), weight_row(expert, first + 3u));
    var own: array<vec4<f32>, ROWS>;
    own[0] = vec4<f32>(0.0);
    for (var k = lane * 4u; k < r.k; k += 256u) {
        var v = vec4<f32>(arena[x + k], 0.0, 0.0, 0.0);
        if k + 1u < r.k { v.y = arena[x + k + 1u]; }
        if k + 2u < r.k { v.z = arena[x + k + 2u]; }
        if k + 3u < r.k { v.w = arena[x + k + 3u]; }
        own[0] += vec4<f32>(dot(v, weight4(n.x, k)), dot(v, weight4(n.y, k)), dot(v, weight4(n.z, k)), dot(v, weight4(n.w, k)));
    }
    SUM_SUBGROUPS
    workgroupBarrier();
    if lane < 4u && index / fours == pair {
        var chain = 0.0;
        for (var part = 0u; part < parts; part++) {
            chain += sums[part * ROWS][lane];
        }
        put(pair, expert, first + lane, chain);
    }
}
