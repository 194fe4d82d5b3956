// Joins what attention_few left of a row's segments, from left to right. Segments without a key that the row sees have no part. A
// thread has one dimension.

kernel void attention_merge(STEP_BUFFERS, THREAD) {
    constant Record *r = record;
    const uint width = r->heads * HEAD_DIM;
    const uint index = group * THREADS + lane;
    const uint row = index / width;
    if (row >= r->rows) {
        return;
    }
    const uint column = index % width;
    const uint segments = words[STEP_SEGMENTS];
    device const float *part =
        arena + r->scratch + (row * r->heads + column / HEAD_DIM) * segments * (HEAD_DIM + 2u);
    float most = 0.0f;
    float sum = 0.0f;
    float o = 0.0f;
    bool is_first = true;
    for (uint segment = 0u; segment < segments; segment++, part += HEAD_DIM + 2u) {
        if (part[1] == 0.0f) {
            continue;
        }
        const float part_o = part[2u + column % HEAD_DIM];
        if (is_first) {
            most = part[0];
            sum = part[1];
            o = part_o;
            is_first = false;
            continue;
        }
        const float both = max(most, part[0]);
        const float f1 = exp_of(most - both);
        const float f2 = exp_of(part[0] - both);
        sum = fma(part[1], f2, sum * f1);
        o = fma(part_o, f2, o * f1);
        most = both;
    }
    arena[r->y + row * r->y_stride + column] = o / sum;
}
