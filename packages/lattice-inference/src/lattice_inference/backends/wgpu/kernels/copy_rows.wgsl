// Rows that the batch names: where FROM_STEP is 0, y[i] = x[ids[i]]; else y[i] is row i of a table that the host has put into the
// step's inputs (rope_angles, which needs float64).

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups) * 64u + lane;
    let row = index / r.n;
    let column = index % r.n;
    if row >= r.rows {
        return;
    }
    let begin = step[r.section];
    if FROM_STEP == 1u {
        arena[r.y + row * r.y_stride + column] = bitcast<f32>(step[begin + index]);
    } else {
        arena[r.y + row * r.y_stride + column] = arena[r.x + step[begin + row] * r.x_stride + column];
    }
}
