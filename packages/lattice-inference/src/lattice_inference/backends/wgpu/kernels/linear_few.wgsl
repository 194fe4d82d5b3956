// y[t, n] = sum over k of x[t, k] weight[n, k]: up to ROWS rows. A workgroup has four columns n, and reads their weights once for all
// rows.
//
//   invocation i:  k = 4 i, 4 i + 1, ... 4 i + 3, then 256 further on, ...   ->  ROWS x 4 sums
//   the 64 invocations' sums are added by the subgroups where SUBGROUPS is 1, and what is left in workgroup memory in order
//
// Where GATED is 1 the four are two columns of gates and the same two of the other half.
//
// The order of additions depends on the device's subgroups, and on nothing of the step. Bound by reads of weights.

var<workgroup> sums: array<vec4<f32>, PARTS * ROWS>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32 SUBGROUP_BUILTINS) {
    let width = select(4u, 2u, GATED == 1u);
    let first = group_index(group, groups) * width;
    let last = r.n - 1u;
    var n = min(vec4<u32>(first, first + 1u, first + 2u, first + 3u), vec4<u32>(last));
    if GATED == 1u {
        n = vec4<u32>(n.xy, n.xy + r.n);
    }
    var own: array<vec4<f32>, ROWS>;
    for (var t = 0u; t < ROWS; t++) {
        own[t] = vec4<f32>(0.0);
    }
    for (var k = lane * 4u; k < r.k; k += 256u) {
        let w0 = weight4(n.x, k);
        let w1 = weight4(n.y, k);
        let w2 = weight4(n.z, k);
        let w3 = weight4(n.w, k);
        for (var t = 0u; t < ROWS; t++) {
            let at = r.x + min(t, r.rows - 1u) * r.x_stride + k;
            var x = vec4<f32>(arena[at], 0.0, 0.0, 0.0);
            if k + 3u < r.k {
                x = vec4<f32>(x.x, arena[at + 1u], arena[at + 2u], arena[at + 3u]);
            } else {
                if k + 1u < r.k { x.y = arena[at + 1u]; }
                if k + 2u < r.k { x.z = arena[at + 2u]; }
            }
            own[t] += vec4<f32>(dot(x, w0), dot(x, w1), dot(x, w2), dot(x, w3));
        }
    }
    SUM_SUBGROUPS
    workgroupBarrier();
    let t = lane / width;
    let own_column = lane % width;
    let column = first + own_column;
    if t < ROWS && t < r.rows && column < r.n {
        var chain = 0.0;
        var up = 0.0;
        for (var part = 0u; part < parts; part++) {
            chain += sums[part * ROWS + t][own_column];
            if GATED == 1u {
                up += sums[part * ROWS + t][own_column + 2u];
            }
        }
        if GATED == 1u {
            finish_gated(t, column, chain, up);
        } else {
            finish(t, column, chain);
        }
    }
}
