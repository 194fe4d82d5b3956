// y[t] = table[ids[t]], or a[t] + table[ids[t]] where ADD is 1. An invocation has four columns of a row.
//
// A table may be cut into parts of some rows each: a dispatch writes the rows whose ids lie in its part, from r.first on.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let fours = (r.k + 3u) / 4u;
    let index = group_index(group, groups) * 64u + lane;
    let row = index / fours;
    if row >= r.rows {
        return;
    }
    let id = step[step[r.section] + row];
    if id < r.first || id >= r.first + r.n {
        return;
    }
    let column = index % fours * 4u;
    let values = weight4(id - r.first, column);
    for (var i = 0u; i < 4u && column + i < r.k; i++) {
        let at = r.y + row * r.y_stride + column + i;
        if ADD == 1u {
            arena[at] = arena[r.a + row * r.a_stride + column + i] + values[i];
        } else {
            arena[at] = values[i];
        }
    }
}
