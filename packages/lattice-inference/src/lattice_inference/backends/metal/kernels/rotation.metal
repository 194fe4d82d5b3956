// Dimension d of a head after rotation: x is the element, the row's angles begin at `angles`: pairs cosines, then as many sines.
// ROTATION 1: pairs are `pairs` apart, 2: neighbours; 0 rotates nothing.
inline float rotated(Step s, device const float *x, uint d, device const float *angles) {
    const uint pairs = s.record->pairs;
    if (ROTATION == 0u || d >= 2u * pairs) {
        return *x;
    }
    const bool is_second = ROTATION == 1u ? d >= pairs : d % 2u == 1u;
    const uint distance = ROTATION == 1u ? pairs : 1u;
    const uint pair = ROTATION == 2u ? d / 2u : is_second ? d - pairs : d;
    const float cosine = angles[pair];
    const float sine = angles[pairs + pair];
    if (is_second) {
        return fma(*x, cosine, *(x - distance) * sine);
    }
    return fma(*x, cosine, -(x[distance] * sine));
}
