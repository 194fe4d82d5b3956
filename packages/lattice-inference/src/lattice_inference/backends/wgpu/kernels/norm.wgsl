// KIND 0: layer_norm, 1: rms_norm (r.heads parts a row, each for itself), 2: l2_normalize. A workgroup has one part of r.n columns.
//
// Invocation i adds up the columns i, i + 64, ...; the 64 sums are folded in halves. The order depends on nothing else, so a row has
// the same bits in any company. A workgroup reads a column before it writes it, so y may be x.

@group(1) @binding(0) var<storage, read> weight: array<f32>;
@group(1) @binding(1) var<storage, read> unused: array<f32>;
@group(1) @binding(2) var<storage, read> shift: array<f32>;

var<workgroup> sums: array<f32, 64>;

fn total(lane: u32, own: f32) -> f32 {
    workgroupBarrier();
    sums[lane] = own;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            sums[lane] += sums[lane + half];
        }
    }
    workgroupBarrier();
    return sums[0];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    // every invocation of a group has the same part, so those without one run along on the last part and write nothing
    let index = group_index(group, groups);
    let part = min(index, r.rows * r.heads - 1u);
    let x = r.x + part / r.heads * r.x_stride + part % r.heads * r.n;
    let y = r.y + part / r.heads * r.y_stride + part % r.heads * r.n;
    var mean = 0.0;
    if KIND == 0u {
        var sum = 0.0;
        for (var i = lane; i < r.n; i += 64u) {
            sum += arena[x + i];
        }
        mean = total(lane, sum) / f32(r.n);
    }
    var square = 0.0;
    for (var i = lane; i < r.n; i += 64u) {
        let d = arena[x + i] - mean;
        square = fma(d, d, square);
    }
    square = total(lane, square);
    var factor: f32;
    if KIND == 2u {
        factor = max(sqrt(square), 1e-12);
        factor = select(factor, square, is_nan(square));
    } else {
        factor = 1.0 / sqrt(square / f32(r.n) + r.epsilon);
    }
    if index != part {
        return;
    }
    for (var i = lane; i < r.n; i += 64u) {
        let v = arena[x + i];
        if KIND == 0u {
            arena[y + i] = fma((v - mean) * factor, weight[i], shift[i]);
        } else if KIND == 1u {
            arena[y + i] = (v * factor) * (weight[i] + r.offset);
        } else {
            arena[y + i] = v / factor;
        }
    }
}
