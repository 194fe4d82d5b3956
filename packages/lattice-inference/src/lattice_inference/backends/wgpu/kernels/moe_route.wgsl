// Which EACH experts a row goes through. x: r.experts logits a row, whose place gets the probabilities. y: EACH numbers of experts in
// ascending order, as floats, then their shares. A workgroup has a row, an invocation the experts i, i + 64, ...
//
// An expert is chosen if fewer than EACH have a larger probability, or an equal one and a lower number. Where all are NaN the numbers
// are some that exist, and the shares are NaN.

var<workgroup> sums: array<f32, 64>;
var<workgroup> chosen: array<u32, EACH>;

fn folded(lane: u32, own: f32, takes_most: bool) -> f32 {
    workgroupBarrier();
    sums[lane] = own;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            let other = sums[lane + half];
            sums[lane] = select(sums[lane] + other, max(sums[lane], other), takes_most);
        }
    }
    workgroupBarrier();
    return sums[0];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups);
    let row = min(index, r.rows - 1u);
    let x = r.x + row * r.x_stride;
    var most = -3.4e38;
    for (var e = lane; e < r.experts; e += 64u) {
        most = max(most, arena[x + e]);
    }
    most = folded(lane, most, true);
    var sum = 0.0;
    for (var e = lane; e < r.experts; e += 64u) {
        sum += exp_of(arena[x + e] - most);
    }
    sum = folded(lane, sum, false);
    if index == row {
        for (var e = lane; e < r.experts; e += 64u) {
            arena[x + e] = exp_of(arena[x + e] - most) / sum;
        }
    }
    storageBarrier();
    workgroupBarrier();
    for (var e = lane; e < r.experts; e += 64u) {
        let own = arena[x + e];
        var before = 0u;
        for (var other = 0u; other < r.experts; other++) {
            let p = arena[x + other];
            before += select(0u, 1u, p > own || (p == own && other < e));
        }
        if before < EACH {
            chosen[before] = e;
        }
    }
    workgroupBarrier();
    var share = 1.0;
    if NORMALIZED == 1u {
        share = 0.0;
        for (var e = 0u; e < r.experts; e++) { // in ascending order of their numbers
            for (var i = 0u; i < EACH; i++) {
                share += select(0.0, arena[x + e], chosen[i] == e);
            }
        }
    }
    if index != row {
        return;
    }
    for (var i = lane; i < EACH; i += 64u) {
        var place = 0u;
        for (var other = 0u; other < EACH; other++) {
            place += select(0u, 1u, chosen[other] < chosen[i] || (chosen[other] == chosen[i] && other < i));
        }
        let y = r.y + row * r.y_stride + place;
        arena[y] = f32(chosen[i]);
        arena[y + EACH] = arena[x + chosen[i]] / share;
    }
}
