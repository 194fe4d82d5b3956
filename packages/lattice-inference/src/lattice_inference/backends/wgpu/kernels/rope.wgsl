// Rotates pairs of each head's dimensions; see the op in graph/ops.py. An invocation has one result, so y must not be x.
// `a` holds the angles: r.pairs cosines, then as many sines. INTERLEAVED: pairs are neighbours, else r.pairs apart.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let width = r.heads * r.head_dim;
    let index = group_index(group, groups) * 64u + lane;
    let row = index / width;
    let column = index % width;
    if row >= r.rows {
        return;
    }
    let d = column % r.head_dim;
    let x = r.x + row * r.x_stride + column;
    var y = arena[x];
    if d < 2u * r.pairs {
        var pair = d;
        var is_second = d >= r.pairs;
        var distance = r.pairs;
        if INTERLEAVED == 1u {
            pair = d / 2u;
            is_second = d % 2u == 1u;
            distance = 1u;
        } else if is_second {
            pair = d - r.pairs;
        }
        let angles = r.a + row * r.a_stride + pair;
        let c = arena[angles];
        let s = arena[angles + r.pairs];
        if is_second {
            y = fma(y, c, arena[x - distance] * s);
        } else {
            y = fma(y, c, -(arena[x + distance] * s));
        }
    }
    arena[r.y + row * r.y_stride + column] = y;
}
