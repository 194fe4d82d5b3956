// y[t, n] += sum over j of B[n, j] scratch[t, j], for the rows that have this adapter: one chain over j that goes on from y, one result an invocation.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let rank = u32(weight_scales[1]);
    let index = group_index(group, groups) * 64u + lane;
    let row = index / r.n;
    let column = index % r.n;
    if row >= r.rows || !has_adapter(min(row, r.rows - 1u)) {
        return;
    }
    let y = r.y + row * r.y_stride + column;
    var sum = arena[y];
    for (var j = 0u; j < rank; j++) {
        sum = fma(element(column * rank + j), arena[r.scratch + row * rank + j], sum);
    }
    arena[y] = sum;
}
