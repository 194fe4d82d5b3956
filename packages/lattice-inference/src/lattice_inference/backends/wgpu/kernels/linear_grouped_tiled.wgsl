// The products of pairs and their experts, many rows: a workgroup has a tile of 32 pairs of one expert by 32 columns, an invocation 4 by
// 4, as in linear_tiled. The table `b` of moe_group says which expert a tile has and which pairs.
//
// Each result is one chain of multiply-adds over k from 0, whatever pairs stand beside it.

const TILE = 32u;
const DEPTH = 16u;

var<workgroup> x_tile: array<f32, 512>;
var<workgroup> w_tile: array<f32, 512>;
var<workgroup> found: u32;

// The expert of a tile: the last one with no more tiles before it; r.experts for a tile too many.
fn expert_of(tile: f32) -> u32 {
    let tiles = r.b + r.experts + 1u;
    if tile >= arena[tiles + r.experts] {
        return r.experts;
    }
    var low = 0u;
    var high = r.experts;
    while low + 1u < high {
        let middle = (low + high) / 2u;
        if arena[tiles + middle] <= tile {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tiles_of_columns = (r.n + TILE - 1u) / TILE;
    let index = group_index(group, groups);
    let tile = index / tiles_of_columns;
    let first_column = index % tiles_of_columns * TILE;
    if lane == 0u {
        found = expert_of(f32(tile));
    }
    let expert = workgroupUniformLoad(&found);
    if expert == r.experts {
        return;
    }
    let tiles = r.b + r.experts + 1u;
    let pairs = tiles + r.experts + 1u;
    let first_pair = u32(arena[r.b + expert]) + (tile - u32(arena[tiles + expert])) * TILE;
    let last_pair = u32(arena[r.b + expert + 1u]) - 1u;
    let own_row = lane / 8u * 4u;
    let own_column = lane % 8u * 4u;
    var c = array<vec4<f32>, 4>(vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0));
    for (var k = 0u; k < r.k; k += DEPTH) {
        for (var part = lane; part < 128u; part += 64u) {
            let quarter = k + part % 4u * 4u;
            let line = part / 4u;
            var x = vec4<f32>(0.0);
            var w = vec4<f32>(0.0);
            if quarter < r.k {
                let at = input_of(u32(arena[pairs + min(first_pair + line, last_pair)])) + quarter;
                x.x = arena[at];
                if quarter + 1u < r.k { x.y = arena[at + 1u]; }
                if quarter + 2u < r.k { x.z = arena[at + 2u]; }
                if quarter + 3u < r.k { x.w = arena[at + 3u]; }
                w = weight4(weight_row(expert, first_column + line), quarter);
            }
            for (var i = 0u; i < 4u; i++) {
                x_tile[(part % 4u * 4u + i) * TILE + line] = x[i];
                w_tile[(part % 4u * 4u + i) * TILE + line] = w[i];
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < DEPTH; i++) {
            let x = i * TILE + own_row;
            let w = i * TILE + own_column;
            let w4 = vec4<f32>(w_tile[w], w_tile[w + 1u], w_tile[w + 2u], w_tile[w + 3u]);
            c[0] = fma(vec4<f32>(x_tile[x]), w4, c[0]);
            c[1] = fma(vec4<f32>(x_tile[x + 1u]), w4, c[1]);
            c[2] = fma(vec4<f32>(x_tile[x + 2u]), w4, c[2]);
            c[3] = fma(vec4<f32>(x_tile[x + 3u]), w4, c[3]);
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u && first_pair + own_row + i <= last_pair; i++) {
        let pair = u32(arena[pairs + first_pair + own_row + i]);
        for (var j = 0u; j < 4u; j++) {
            put(pair, expert, first_column + own_column + j, c[i][j]);
        }
    }
}
