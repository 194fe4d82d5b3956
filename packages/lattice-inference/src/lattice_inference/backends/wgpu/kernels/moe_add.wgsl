// What the experts of a row give, one result an invocation. SHARED 0: y is one chain over the row's experts, y = fma(share, x, y) from 0;
// `x` has r.n columns an expert, `a` the routes. SHARED 1: y = fma(1 / (1 + exp(-a)), x, b), with one `a` a row.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups) * 64u + lane;
    let row = index / r.n;
    let column = index % r.n;
    if row >= r.rows {
        return;
    }
    let x = r.x + row * r.x_stride + column;
    let a = r.a + row * r.a_stride;
    var y = 0.0;
    if SHARED == 1u {
        y = fma(activated(6u, arena[a]), arena[x], arena[r.b + row * r.b_stride + column]);
    } else {
        for (var i = 0u; i < r.each; i++) {
            y = fma(arena[a + r.each + i], arena[x + i * r.n], y);
        }
    }
    arena[r.y + row * r.y_stride + column] = y;
}
