// The gated delta rule in blocks of BLOCK tokens, as graph/recurrent_ops.py defines it. A workgroup has a value head of a sequence and
// goes through its tokens; an invocation has the columns i, i + 64, ... of values.
//
//   a head of a slot: state [key][value] at the block's beginning | keys of the block's rows | rows r | factors alpha
//
// Invocation j keeps d[t][j], and so does j + 32: the first half multiplies keys by the token's key, the second by its query. The block
// in which a step begins is in the slot to read, and stays whole there; later blocks are in the slot to write, each over the one before.

const MOST_DIM = 256u;
const SMALLEST = 0x1p-126f;

var<workgroup> key: array<f32, MOST_DIM>;
var<workgroup> query: array<f32, MOST_DIM>;
var<workgroup> sums: array<vec2<f32>, 64>;
var<workgroup> factors: array<f32, 64>;
var<workgroup> products: array<f32, 64>;

fn flushed(x: f32) -> f32 {
    return select(x, 0.0, x < SMALLEST);
}

fn softplus(x: f32) -> f32 {
    let e = exp_of(-abs(x));
    let s = e / (2.0 + e);
    let square = s * s;
    var p = 1.0 / 15.0;
    for (var odd = 13.0; odd > 2.0; odd -= 2.0) {
        p = fma(p, square, 1.0 / odd);
    }
    return max(0.0, x) + fma((s + s) * square, p, s + s);
}

// Normalised key and query of a token, into workgroup memory.
fn load_token(lane: u32, x: u32, key_head: u32) {
    let width = r.head_dim;
    let q = x + key_head * width;
    let k = q + r.kv_heads * width;
    var own = vec2<f32>(0.0);
    for (var i = lane; i < width; i += 64u) {
        let v = vec2<f32>(arena[q + i], arena[k + i]);
        own = fma(v, v, own);
    }
    workgroupBarrier(); // what the token before left is read
    sums[lane] = own;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            sums[lane] += sums[lane + half];
        }
    }
    workgroupBarrier();
    let scale = vec2<f32>(1.0) / sqrt(sums[0] + vec2<f32>(1e-6));
    let of_query = 1.0 / sqrt(f32(width));
    for (var i = lane; i < width; i += 64u) {
        query[i] = (arena[q + i] * scale.x) * of_query;
        key[i] = arena[k + i] * scale.y;
    }
    workgroupBarrier();
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups);
    let sequences = step[step[STEP_SEQUENCE_OF_ROW] + r.rows - 1u] + 1u;
    if index >= sequences * r.heads {
        return;
    }
    let sequence = index / r.heads;
    let head = index % r.heads;
    let first = step[step[STEP_BOUNDS] + sequence];
    let last = step[step[STEP_BOUNDS] + sequence + 1u];
    let context = step[step[STEP_CONTEXT] + sequence];
    let share = r.heads / r.kv_heads;
    let key_head = select(head % r.kv_heads, head / share, GROUPING == 0u);
    let width = r.head_dim;
    let head_size = width * r.n + BLOCK * (width + r.n + 1u);
    var state = (read_slot(sequence) * r.heads + head) * head_size;
    var keys = state + width * r.n;
    var rows = keys + BLOCK * width;
    var alphas = rows + BLOCK * r.n;
    if context == 0u {
        for (var v = lane; v < r.n; v += 64u) {
            for (var i = 0u; i < width; i++) {
                slots[state + i * r.n + v] = 0.0;
            }
        }
    }
    let j = lane % 32u;
    var whole = 1.0; // D
    var d = 0.0;
    for (var row = 0u; row < context % BLOCK; row++) {
        let alpha = slots[alphas + row];
        whole = flushed(whole * alpha);
        d = select(select(0.0, flushed(d * alpha), j < row), 1.0, j == row);
    }
    for (var token = first; token < last; token++) {
        let row = (context + token - first) % BLOCK;
        let x = r.x + token * r.x_stride;
        load_token(lane, x, key_head);
        let alpha = flushed(exp_of(decay[head] * softplus(arena[r.a + token * r.a_stride + head] + weight[head])));
        let beta = 1.0 / (1.0 + exp_of(-arena[r.b + token * r.b_stride + head]));
        whole = flushed(whole * alpha);
        d = select(select(0.0, flushed(d * alpha), j < row), 1.0, j == row);
        for (var i = lane; i < width; i += 64u) {
            slots[keys + row * width + i] = key[i];
        }
        if lane == 0u {
            slots[alphas + row] = alpha;
        }
        storageBarrier();
        workgroupBarrier();
        var product = 0.0;
        if j <= row {
            for (var i = 0u; i < width; i++) {
                product = fma(slots[keys + j * width + i], select(query[i], key[i], lane < 32u), product);
            }
        }
        factors[lane] = d;
        products[lane] = d * product;
        workgroupBarrier();
        for (var v = lane; v < r.n; v += 64u) {
            var u = 0.0;
            var y = 0.0;
            for (var i = 0u; i < width; i++) {
                let s = slots[state + i * r.n + v];
                u = fma(key[i], s, u);
                y = fma(query[i], s, y);
            }
            u *= whole;
            y *= whole;
            for (var i = 0u; i < row; i++) {
                let held = slots[rows + i * r.n + v];
                u = fma(products[i], held, u);
                y = fma(products[32u + i], held, y);
            }
            let value = arena[x + 2u * r.kv_heads * width + head * r.n + v];
            let own = beta * (value - u);
            slots[rows + row * r.n + v] = own;
            arena[r.y + token * r.y_stride + head * r.n + v] = fma(products[32u + row], own, y);
        }
        if row == BLOCK - 1u {
            let next = (write_slot(sequence) * r.heads + head) * head_size;
            for (var v = lane; v < r.n; v += 64u) {
                for (var i = 0u; i < width; i++) {
                    var s = whole * slots[state + i * r.n + v];
                    for (var t = 0u; t < BLOCK; t++) {
                        s = fma(factors[t] * slots[keys + t * width + i], slots[rows + t * r.n + v], s);
                    }
                    slots[next + i * r.n + v] = s;
                }
            }
            storageBarrier();
            workgroupBarrier(); // the next block's keys lie where this one's were
            state = next;
            keys = state + width * r.n;
            rows = keys + BLOCK * width;
            alphas = rows + BLOCK * r.n;
            whole = 1.0;
            d = 0.0;
        }
    }
}
