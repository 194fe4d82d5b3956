// How a linear ends: bias, then the activation ACTIVATION or the residual that `a` holds, which may be y itself. A weight may be cut
// into parts: this one begins with output r.first.

// Where GATED is 1 a weight has r.n rows of gates and as many of what they let through; the same column of both is finished together.
fn finish_gated(row: u32, column: u32, gate: f32, up: f32) {
    var g = gate;
    var u = up;
    if BIAS == 1u {
        g += bias[column];
        u += bias[r.n + column];
    }
    arena[r.y + row * r.y_stride + column] = silu_of(g) * u;
}

fn finish(row: u32, column: u32, chain: f32) {
    var y = chain;
    if BIAS == 1u {
        y += bias[r.first + column];
    }
    y = activated(ACTIVATION, y);
    if RESIDUAL == 1u {
        y += arena[r.a + row * r.a_stride + column];
    }
    arena[r.y + row * r.y_stride + column] = y;
}
