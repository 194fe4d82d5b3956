// Joins what attention_few left of a row's segments, from left to right. Segments without a key that the row sees have no part. An
// invocation has one dimension.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let width = r.heads * HEAD_DIM;
    let index = group_index(group, groups) * 64u + lane;
    let row = index / width;
    if row >= r.rows {
        return;
    }
    let column = index % width;
    let segments = step[STEP_SEGMENTS];
    let first = r.scratch + (row * r.heads + column / HEAD_DIM) * segments * (HEAD_DIM + 2u);
    var most = 0.0;
    var sum = 0.0;
    var o = 0.0;
    var is_first = true;
    for (var segment = 0u; segment < segments; segment++) {
        let part = first + segment * (HEAD_DIM + 2u);
        let part_sum = arena[part + 1u];
        if part_sum == 0.0 {
            continue;
        }
        let part_most = arena[part];
        let part_o = arena[part + 2u + column % HEAD_DIM];
        if is_first {
            most = part_most;
            sum = part_sum;
            o = part_o;
            is_first = false;
            continue;
        }
        let both = max(most, part_most);
        let f1 = exp_of(most - both);
        let f2 = exp_of(part_most - both);
        sum = fma(part_sum, f2, sum * f1);
        o = fma(part_o, f2, o * f1);
        most = both;
    }
    arena[r.y + row * r.y_stride + column] = o / sum;
}
