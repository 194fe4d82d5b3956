// y[t, n] = sum over k of x[t, k] weight[n, k]: many rows. A workgroup has a tile of 32 rows by 32 columns, an invocation 4 by 4.
//
//        columns n ->                 x and weight go through workgroup memory, 16 of k at a time:
//      +----+----+ ...                   x_tile[k][row]   of floats, four rows are read as neighbours
//   t  |4x4 |4x4 |                       w_tile[k][column]
//      +----+----+
//
// Where GATED is 1 a tile's columns are 16 of gates and the same 16 of the other half, which meet in workgroup memory at the end.
//
// Each result is one chain of multiply-adds over k from 0, whatever rows stand beside it. Bound by reads of workgroup memory: 8
// floats for 16 multiply-adds.

const TILE = 32u;
const DEPTH = 16u;

var<workgroup> x_tile: array<f32, 512>;
var<workgroup> w_tile: array<f32, 512>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let width = select(TILE, TILE / 2u, GATED == 1u);
    let tiles_of_columns = (r.n + width - 1u) / width;
    let index = group_index(group, groups);
    let first_row = index / tiles_of_columns * TILE;
    let first_column = index % tiles_of_columns * width;
    if first_row >= r.rows {
        return;
    }
    let own_row = lane / 8u * 4u;
    let own_column = lane % 8u * 4u;
    var c0 = vec4<f32>(0.0);
    var c1 = vec4<f32>(0.0);
    var c2 = vec4<f32>(0.0);
    var c3 = vec4<f32>(0.0);
    for (var k = 0u; k < r.k; k += DEPTH) {
        // four of k for each of 128 pairs of row (or column) and quarter; what lies outside of the matrices is 0 in weights
        for (var part = lane; part < 128u; part += 64u) {
            let quarter = k + part % 4u * 4u;
            let line = part / 4u;
            let row = min(first_row + line, r.rows - 1u);
            let at = r.x + row * r.x_stride + quarter;
            var x = vec4<f32>(0.0);
            var w = vec4<f32>(0.0);
            if quarter + 3u < r.k {
                x = vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
            } else {
                if quarter < r.k { x.x = arena[at]; }
                if quarter + 1u < r.k { x.y = arena[at + 1u]; }
                if quarter + 2u < r.k { x.z = arena[at + 2u]; }
            }
            if quarter < r.k {
                w = weight4(min(first_column + line % width, r.n - 1u) + line / width * r.n, quarter);
            }
            let target_line = part % 4u * 4u * TILE + line;
            x_tile[target_line] = x.x;
            x_tile[target_line + TILE] = x.y;
            x_tile[target_line + 2u * TILE] = x.z;
            x_tile[target_line + 3u * TILE] = x.w;
            w_tile[target_line] = w.x;
            w_tile[target_line + TILE] = w.y;
            w_tile[target_line + 2u * TILE] = w.z;
            w_tile[target_line + 3u * TILE] = w.w;
        }
        workgroupBarrier();
        for (var i = 0u; i < DEPTH; i++) {
            let x = i * TILE + own_row;
            let w = i * TILE + own_column;
            let w4 = vec4<f32>(w_tile[w], w_tile[w + 1u], w_tile[w + 2u], w_tile[w + 3u]);
            c0 = fma(vec4<f32>(x_tile[x]), w4, c0);
            c1 = fma(vec4<f32>(x_tile[x + 1u]), w4, c1);
            c2 = fma(vec4<f32>(x_tile[x + 2u]), w4, c2);
            c3 = fma(vec4<f32>(x_tile[x + 3u]), w4, c3);
        }
        workgroupBarrier();
    }
    if GATED == 1u {
        let own_up = own_row * width + own_column % width;
        if own_column >= width {
            put_up(own_up, c0);
            put_up(own_up + width, c1);
            put_up(own_up + 2u * width, c2);
            put_up(own_up + 3u * width, c3);
        }
        workgroupBarrier();
        if own_column < width {
            finish_gated_row(first_row + own_row, first_column + own_column, c0, own_up);
            finish_gated_row(first_row + own_row + 1u, first_column + own_column, c1, own_up + width);
            finish_gated_row(first_row + own_row + 2u, first_column + own_column, c2, own_up + 2u * width);
            finish_gated_row(first_row + own_row + 3u, first_column + own_column, c3, own_up + 3u * width);
        }
        return;
    }
    finish_row(first_row + own_row, first_column + own_column, c0);
    finish_row(first_row + own_row + 1u, first_column + own_column, c1);
    finish_row(first_row + own_row + 2u, first_column + own_column, c2);
    finish_row(first_row + own_row + 3u, first_column + own_column, c3);
}

fn finish_row(row: u32, column: u32, chains: vec4<f32>) {
    if row >= r.rows {
        return;
    }
    if column < r.n { finish(row, column, chains.x); }
    if column + 1u < r.n { finish(row, column + 1u, chains.y); }
    if column + 2u < r.n { finish(row, column + 2u, chains.z); }
    if column + 3u < r.n { finish(row, column + 3u, chains.w); }
}

fn put_up(at: u32, chains: vec4<f32>) {
    w_tile[at] = chains.x;
    w_tile[at + 1u] = chains.y;
    w_tile[at + 2u] = chains.z;
    w_tile[at + 3u] = chains.w;
}

fn finish_gated_row(row: u32, column: u32, gates: vec4<f32>, up: u32) {
    if row >= r.rows {
        return;
    }
    for (var i = 0u; i < 4u && column + i < r.n; i++) {
        finish_gated(row, column + i, gates[i], w_tile[up + i]);
    }
}
