// y[t, n] = sum over i < TAPS of x[t - TAPS + 1 + i, n] weight[n, i], one chain, one result an invocation. Rows before the step are in
// the slot; those before the sequence are 0.
//
//   a slot: rows of r.n columns; row i has the position base - (TAPS - 1) + i, where base begins the block
//
// An invocation also keeps its row: in the slot to read while the block lasts, in the slot to write if the next block needs it.

const BEFORE = TAPS - 1u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups) * 64u + lane;
    let row = index / r.n;
    let column = index % r.n;
    if row >= r.rows {
        return;
    }
    let sequence = step[step[STEP_SEQUENCE_OF_ROW] + row];
    let first = step[step[STEP_BOUNDS] + sequence];
    let context = step[step[STEP_CONTEXT] + sequence];
    let end = context + step[step[STEP_BOUNDS] + sequence + 1u] - first;
    let position = context + row - first;
    let base = context - context % BLOCK;
    let next = end - end % BLOCK;
    let slot_rows = BEFORE + BLOCK;
    let reading = read_slot(sequence) * slot_rows;
    var y = 0.0;
    for (var i = 0u; i < TAPS; i++) {
        let at = position + i; // BEFORE further on than the position of this tap
        var x = 0.0;
        if at >= context + BEFORE {
            x = arena[r.x + (first + at - BEFORE - context) * r.x_stride + column];
        } else if at >= BEFORE {
            x = slots[(reading + at - base) * r.n + column];
        }
        y = fma(x, weight[column * TAPS + i], y);
    }
    arena[r.y + row * r.y_stride + column] = y;
    let own = arena[r.x + row * r.x_stride + column];
    if position < base + BLOCK {
        slots[(reading + BEFORE + position - base) * r.n + column] = own;
    }
    if next == base {
        return;
    }
    let writing = write_slot(sequence) * slot_rows;
    if position + BEFORE >= next {
        slots[(writing + BEFORE + position - next) * r.n + column] = own;
    }
    if row == first { // and the rows before the step that the next block needs
        for (var held = next - BEFORE; held < context; held++) {
            slots[(writing + BEFORE + held - next) * r.n + column] = slots[(reading + BEFORE + held - base) * r.n + column];
        }
    }
}
