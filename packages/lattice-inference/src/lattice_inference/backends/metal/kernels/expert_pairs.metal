// A pair is a row and one of its experts: number row * each + place. A weight has n rows an expert; this part of it begins with row
// first and has held of them. Where SENT is 1 the input has a row a pair, else a row for all pairs of a row.

inline device const float *input_of(Step s, uint pair) {
    constant Record *r = s.record;
    return s.arena + r->x + pair / r->each * r->x_stride + (SENT == 1u ? pair % r->each * r->k : 0u);
}

// The row of this part of the weight that gives a column of an expert, or ~0 if the part has none.
inline uint weight_row(constant Record *r, uint expert, uint column) {
    const uint row = expert * r->n + column;
    return column < r->n && row >= r->first && row < r->first + r->held ? row - r->first : ~0u;
}

inline void put_pair(Step s, uint pair, uint expert, uint column, float value) {
    constant Record *r = s.record;
    if (weight_row(r, expert, column) != ~0u) {
        s.arena[r->y + pair / r->each * r->y_stride + pair % r->each * r->n + column] = value;
    }
}
