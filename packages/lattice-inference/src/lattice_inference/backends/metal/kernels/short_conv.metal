// y[t, n] = sum over i < TAPS of x[t - TAPS + 1 + i, n] weight[n, i], one chain, one result a thread. Rows before the step are in the
// slot; those before the sequence are 0.
//
//   a slot: rows of n columns; row i has the position base - (TAPS - 1) + i, where base begins the block
//
// A thread also keeps its row: in the slot to read while the block lasts, in the slot to write if the next block needs it.

kernel void short_conv(STEP_BUFFERS, SLOT_BUFFERS, THREAD) {
    constant Record *r = record;
    const Step s = {arena, words, record};
    const uint index = group * THREADS + lane;
    const uint row = index / r->n;
    const uint column = index % r->n;
    if (row >= r->rows) {
        return;
    }
    const uint before = TAPS - 1u;
    const uint sequence = word_of(s, STEP_SEQUENCE_OF_ROW, row);
    const uint first = word_of(s, STEP_BOUNDS, sequence);
    const uint context = word_of(s, STEP_CONTEXT, sequence);
    const uint end = context + word_of(s, STEP_BOUNDS, sequence + 1u) - first;
    const uint position = context + row - first;
    const uint base = context - context % BLOCK;
    const uint next = end - end % BLOCK;
    device float *reading = slots + read_slot(s, sequence) * (before + BLOCK) * r->n + column;
    float y = 0.0f;
    for (uint i = 0u; i < TAPS; i++) {
        const uint at = position + i; // `before` further on than the position of this tap
        float x = 0.0f;
        if (at >= context + before) {
            x = arena[r->x + (first + at - before - context) * r->x_stride + column];
        } else if (at >= before) {
            x = reading[(at - base) * r->n];
        }
        y = fma(x, taps[column * TAPS + i], y);
    }
    arena[r->y + row * r->y_stride + column] = y;
    const float own = arena[r->x + row * r->x_stride + column];
    if (position < base + BLOCK) {
        reading[(before + position - base) * r->n] = own;
    }
    if (next == base) {
        return;
    }
    device float *writing = slots + write_slot(s, sequence) * (before + BLOCK) * r->n + column;
    if (position + before >= next) {
        writing[(before + position - next) * r->n] = own;
    }
    if (row == first) { // and the rows before the step that the next block needs
        for (uint held = next - before; held < context; held++) {
            writing[(before + held - next) * r->n] = reading[(before + held - base) * r->n];
        }
    }
}
