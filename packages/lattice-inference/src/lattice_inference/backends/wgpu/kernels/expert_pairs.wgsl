// A pair is a row and one of its experts: number row * r.each + place. A weight has r.n rows an expert; this part of it begins with row
// r.first and has r.held of them. Where SENT is 1 the input has a row a pair, else a row for all pairs of a row.

fn input_of(pair: u32) -> u32 {
    let row = r.x + pair / r.each * r.x_stride;
    return select(row, row + pair % r.each * r.k, SENT == 1u);
}

fn is_held(expert: u32, column: u32) -> bool {
    let row = expert * r.n + column;
    return column < r.n && row >= r.first && row < r.first + r.held;
}

fn weight_row(expert: u32, column: u32) -> u32 {
    return select(0u, expert * r.n + column - r.first, is_held(expert, column));
}

fn put(pair: u32, expert: u32, column: u32, value: f32) {
    if is_held(expert, column) {
        arena[r.y + pair / r.each * r.y_stride + pair % r.each * r.n + column] = value;
    }
}
