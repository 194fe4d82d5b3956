// One row for each sequence: MODE 0: its first, 1: its last, 2: the mean, added up in order. An invocation has one column.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups) * 64u + lane;
    let sequence = index / r.n;
    let column = index % r.n;
    if sequence >= r.rows {
        return;
    }
    let bounds = step[STEP_BOUNDS] + sequence;
    let first = step[bounds];
    let end = step[bounds + 1u];
    let x = r.x + column;
    var y: f32;
    if MODE == 0u {
        y = arena[x + first * r.x_stride];
    } else if MODE == 1u {
        y = arena[x + (end - 1u) * r.x_stride];
    } else {
        y = 0.0;
        for (var row = first; row < end; row++) {
            y += arena[x + row * r.x_stride];
        }
        y /= f32(end - first);
    }
    arena[r.y + sequence * r.y_stride + column] = y;
}
