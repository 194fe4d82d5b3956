// Dimension d of a head after rotation: the element lies at `at` in the arena, the row's angles begin at `angles`: r.pairs cosines,
// then as many sines. ROTATION 1: pairs are r.pairs apart, 2: neighbours; 0 rotates nothing.
fn rotated(at: u32, d: u32, angles: u32) -> f32 {
    let x = arena[at];
    if ROTATION == 0u || d >= 2u * r.pairs {
        return x;
    }
    var pair = d / 2u;
    var is_second = d % 2u == 1u;
    var distance = 1u;
    if ROTATION == 1u {
        is_second = d >= r.pairs;
        pair = select(d, d - r.pairs, is_second);
        distance = r.pairs;
    }
    let c = arena[angles + pair];
    let s = arena[angles + r.pairs + pair];
    if is_second {
        return fma(x, c, arena[at - distance] * s);
    }
    return fma(x, c, -(arena[at + distance] * s));
}
