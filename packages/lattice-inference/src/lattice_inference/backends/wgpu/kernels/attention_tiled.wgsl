// Attention of many rows. A workgroup has one head and a tile of QUERIES rows of one sequence, and goes over the keys 16 at a time:
//
//   scores[row][key] = scale * (q . k)      an invocation has one key and QUERIES / 4 rows
//   m, factor        the running maximum of a row, and what earlier sums shrink by
//   p[row][key]      exp(score - m); 0 for a key that the row does not see
//   o[row][d]        an invocation has the dimensions lane, lane + 64, ... of all rows
//
// Keys that a row does not see change nothing of it, so its bits depend on its own keys only. Bound by reads of keys and values.

const KEYS = 16u;

var<workgroup> q_tile: array<vec4<f32>, QUERIES * FOURS>;
var<workgroup> p_tile: array<f32, QUERIES * KEYS>;
var<workgroup> maxima: array<f32, QUERIES>;
var<workgroup> factors: array<f32, QUERIES>;
var<workgroup> sums: array<f32, QUERIES>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups);
    let tile = index / r.heads;
    let head = index % r.heads;
    if tile >= step[STEP_TILE_COUNT] {
        return;
    }
    let kv_head = head / (r.heads / r.kv_heads);
    let sequence = step[step[STEP_TILES] + 2u * tile];
    let first = step[step[STEP_TILES] + 2u * tile + 1u];
    let begin_row = step[step[STEP_BOUNDS] + sequence];
    let length = step[step[STEP_BOUNDS] + sequence + 1u] - begin_row;
    var context = 0u;
    if PAGED == 1u {
        context = step[step[STEP_CONTEXT] + sequence];
    }
    for (var i = lane; i < QUERIES * FOURS; i += 64u) {
        let row = min(first + i / FOURS, length - 1u);
        let d = i % FOURS * 4u;
        let q = r.x + (begin_row + row) * r.x_stride + head * HEAD_DIM + d;
        var own = vec4<f32>(arena[q], 0.0, 0.0, 0.0);
        if d + 1u < HEAD_DIM { own.y = arena[q + 1u]; }
        if d + 2u < HEAD_DIM { own.z = arena[q + 2u]; }
        if d + 3u < HEAD_DIM { own.w = arena[q + 3u]; }
        q_tile[i] = own;
    }
    if lane < QUERIES {
        maxima[lane] = LOWEST;
        sums[lane] = 0.0;
    }
    var end = length;
    var key = 0u;
    if CAUSAL == 1u {
        end = context + min(first + QUERIES, length);
        if r.window != 0u && context + first + 1u > r.window {
            key = (context + first + 1u - r.window) / KEYS * KEYS;
        }
    }
    var o: array<f32, QUERIES * SLOTS>;
    for (var i = 0u; i < QUERIES * SLOTS; i++) {
        o[i] = 0.0;
    }
    workgroupBarrier();
    let own_rows = lane / KEYS * (QUERIES / 4u);
    for (; key < end; key += KEYS) {
        let own_key = key + lane % KEYS;
        var scores: array<f32, QUERIES / 4u>;
        for (var i = 0u; i < QUERIES / 4u; i++) {
            scores[i] = 0.0;
        }
        if own_key < end {
            let place = place_of(sequence, kv_head, own_key);
            var chains: array<vec4<f32>, QUERIES / 4u>;
            for (var i = 0u; i < QUERIES / 4u; i++) {
                chains[i] = vec4<f32>(0.0);
            }
            for (var four = 0u; four < FOURS; four++) {
                let k = key4(place, four * 4u);
                for (var i = 0u; i < QUERIES / 4u; i++) {
                    chains[i] = fma(q_tile[(own_rows + i) * FOURS + four], k, chains[i]);
                }
            }
            let scale = key_scale(place);
            for (var i = 0u; i < QUERIES / 4u; i++) {
                scores[i] = r.scale * (folded4(chains[i]) * scale);
            }
        }
        for (var i = 0u; i < QUERIES / 4u; i++) {
            p_tile[(own_rows + i) * KEYS + lane % KEYS] = scores[i];
        }
        workgroupBarrier();
        if lane < QUERIES {
            var most = maxima[lane];
            for (var j = 0u; j < KEYS && key + j < end; j++) {
                if sees(context + first + lane, key + j) {
                    most = max(most, p_tile[lane * KEYS + j]);
                }
            }
            factors[lane] = exp_of(maxima[lane] - most);
            maxima[lane] = most;
        }
        workgroupBarrier();
        for (var i = 0u; i < QUERIES / 4u; i++) {
            let row = own_rows + i;
            var p = 0.0;
            if own_key < end && sees(context + first + row, own_key) {
                p = exp_of(scores[i] - maxima[row]);
            }
            p_tile[row * KEYS + lane % KEYS] = p;
        }
        workgroupBarrier();
        if lane < QUERIES {
            var sum = 0.0;
            for (var j = 0u; j < KEYS; j++) {
                sum += p_tile[lane * KEYS + j];
            }
            sums[lane] = fma(sums[lane], factors[lane], sum);
        }
        for (var slot = 0u; slot < SLOTS; slot++) {
            let d = slot * 64u + lane;
            if d < HEAD_DIM {
                // the sums of 16 keys first: one by one, many small ones would be lost beside what is there already
                var tile: array<f32, QUERIES>;
                for (var row = 0u; row < QUERIES; row++) {
                    tile[row] = 0.0;
                }
                for (var j = 0u; j < KEYS && key + j < end; j++) {
                    let place = place_of(sequence, kv_head, key + j);
                    let v = value_element(place, d);
                    let scale = value_scale(place);
                    for (var row = 0u; row < QUERIES; row++) {
                        let p = p_tile[row * KEYS + j];
                        if p != 0.0 {
                            tile[row] = fma(p * scale, v, tile[row]);
                        }
                    }
                }
                for (var row = 0u; row < QUERIES; row++) {
                    o[slot * QUERIES + row] = fma(o[slot * QUERIES + row], factors[row], tile[row]);
                }
            }
        }
        workgroupBarrier();
    }
    for (var slot = 0u; slot < SLOTS; slot++) {
        let d = slot * 64u + lane;
        for (var row = 0u; row < QUERIES; row++) {
            if d < HEAD_DIM && first + row < length {
                let y = r.y + (begin_row + first + row) * r.y_stride + head * HEAD_DIM + d;
                arena[y] = o[slot * QUERIES + row] / sums[row];
            }
        }
    }
}
