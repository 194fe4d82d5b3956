// How a linear ends: bias, then the activation ACTIVATION or the residual that `a` holds, which may be y itself. A weight may be cut
// into parts: this one begins with output first.

// Where GATED is 1 a weight has n rows of gates and as many of what they let through; the same column of both is finished together.
inline void finish_gated(Step s, device const float *bias, uint row, uint column, float gate, float up) {
    constant Record *r = s.record;
    if (BIAS == 1u) {
        gate += bias[column];
        up += bias[r->n + column];
    }
    s.arena[r->y + row * r->y_stride + column] = silu_of(gate) * up;
}

inline void finish(Step s, device const float *bias, uint row, uint column, float sum) {
    constant Record *r = s.record;
    float y = sum;
    if (BIAS == 1u) {
        y += bias[r->first + column];
    }
    y = activated(ACTIVATION, y);
    if (RESIDUAL == 1u) {
        y += s.arena[r->a + row * r->a_stride + column];
    }
    s.arena[r->y + row * r->y_stride + column] = y;
}
