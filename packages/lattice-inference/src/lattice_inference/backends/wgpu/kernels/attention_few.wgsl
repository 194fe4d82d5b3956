// Attention of few rows over pages. A workgroup has one row, one head and one segment of 512 keys, and leaves the segment's maximum,
// sum and weighted values in the scratch of the arena; attention_merge joins the segments from left to right. Where ALONE is 1
// there is one segment, and the result is written at once.
//
// An invocation takes the scores of keys lane, lane + 64, ..., then the dimensions lane, lane + 64, ... of all keys.

const SEGMENT = 512u;

var<workgroup> p: array<f32, SEGMENT>;
var<workgroup> folded: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups);
    let segments = step[STEP_SEGMENTS];
    let segment = index % segments;
    let head = index / segments % r.heads;
    let row = index / segments / r.heads;
    if row >= r.rows {
        return;
    }
    let kv_head = head / (r.heads / r.kv_heads);
    let sequence = step[step[STEP_SEQUENCE_OF_ROW] + row];
    let position = step[step[STEP_CONTEXT] + sequence] + row - step[step[STEP_BOUNDS] + sequence];
    let first = segment * SEGMENT;
    let count = min(SEGMENT, max(position + 1u, first) - first); // keys of the segment up to the row's own
    let q = r.x + row * r.x_stride + head * HEAD_DIM;
    var most = LOWEST;
    for (var j = lane; j < count; j += 64u) {
        if sees(position, first + j) {
            let place = place_of(sequence, kv_head, first + j);
            var chains = vec4<f32>(0.0);
            for (var d = 0u; d < HEAD_DIM; d += 4u) {
                var q4 = vec4<f32>(arena[q + d], 0.0, 0.0, 0.0);
                if d + 1u < HEAD_DIM { q4.y = arena[q + d + 1u]; }
                if d + 2u < HEAD_DIM { q4.z = arena[q + d + 2u]; }
                if d + 3u < HEAD_DIM { q4.w = arena[q + d + 3u]; }
                chains = fma(q4, key4(place, d), chains);
            }
            let score = r.scale * (folded4(chains) * key_scale(place));
            p[j] = score;
            most = max(most, score);
        }
    }
    folded[lane] = most;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            folded[lane] = max(folded[lane], folded[lane + half]);
        }
    }
    workgroupBarrier();
    most = folded[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var j = lane; j < count; j += 64u) {
        var weight = 0.0;
        if sees(position, first + j) {
            weight = exp_of(p[j] - most);
        }
        p[j] = weight;
        sum += weight;
    }
    folded[lane] = sum;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            folded[lane] += folded[lane + half];
        }
    }
    workgroupBarrier();
    let out = r.scratch + index * (HEAD_DIM + 2u);
    if lane == 0u && ALONE == 0u {
        arena[out] = most;
        arena[out + 1u] = folded[0];
    }
    for (var d = lane; d < HEAD_DIM; d += 64u) {
        var o = 0.0;
        for (var j = 0u; j < count; j++) {
            if p[j] != 0.0 {
                let place = place_of(sequence, kv_head, first + j);
                o = fma(p[j] * value_scale(place), value_element(place, d), o);
            }
        }
        if ALONE == 1u {
            arena[r.y + row * r.y_stride + head * HEAD_DIM + d] = o / folded[0];
        } else {
            arena[out + 2u + d] = o;
        }
    }
}
