// scratch[t, j] = scale * sum over k of A[j, k] x[t, k], for the rows that have this adapter. A workgroup has one j of one row; its 64
// sums are folded in halves, so a row has the same bits in any company.

var<workgroup> sums: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let rank = u32(weight_scales[1]);
    let index = group_index(group, groups);
    let row = index / rank;
    if row >= r.rows || !has_adapter(min(row, r.rows - 1u)) {
        return;
    }
    let x = r.x + row * r.x_stride;
    let a = index % rank * r.k;
    var sum = 0.0;
    for (var k = lane; k < r.k; k += 64u) {
        sum = fma(arena[x + k], element(a + k), sum);
    }
    sums[lane] = sum;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            sums[lane] += sums[lane + half];
        }
    }
    if lane == 0u {
        arena[r.scratch + index] = weight_scales[2] * sums[0];
    }
}
