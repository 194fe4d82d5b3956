// Rotates pairs of each head's dimensions; see the op in graph/ops.py. An invocation has one result, so y must not be x.
// `a` holds the angles.

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
    let y = rotated(r.x + row * r.x_stride + column, d, r.a + row * r.a_stride);
    arena[r.y + row * r.y_stride + column] = y;
}
