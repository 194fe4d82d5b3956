/* float32 rows to int8, int4 and bits: the reference system's packing, byte for byte.
 *
 *     int8    scale = 127 / largest magnitude;  q = round(v scale), halves away from zero, in [-127, 127]
 *     int4    scale = 15 / (2 largest);  q = round((v + largest) scale), in [0, 15]; even components in the high nibble
 *     binary  bit = v >= threshold, the first component in the highest bit of the first byte
 *
 * A row whose largest magnitude is not above 1e-10 has scale 1. Unused nibbles and bits are zero. Products and sums are
 * rounded to float32 one by one, without fused multiply-adds, so every instruction set writes the same bytes.
 */
#include "row_sums.h"

#define SMALLEST_MAGNITUDE 1e-10f

LATTICE_INLINE float largest_magnitude(const float *row, size_t width)
{
    f32x16 largest = f32x16_zero();
    for (size_t k = 0; k < width; k += BLOCK)
        largest = f32x16_max(f32x16_abs(load_block(LATTICE_FLOAT32, row, k, width)), largest);
    return f32x16_fold_max(largest);
}

/* Halves away from zero. |x| < 2^31. Taking the whole part is exact, and so is the rest. */
LATTICE_INLINE f32x16 round_away(f32x16 x)
{
    const f32x16 whole = f32x16_from_i32x16(i32x16_from_f32x16(x)), rest = f32x16_abs(f32x16_sub(x, whole));
    const f32x16 next = f32x16_add(whole, f32x16_copysign(f32x16_set1(1.0f), x));
    return f32x16_select(f32x16_less(rest, f32x16_set1(0.5f)), whole, next);
}

LATTICE_INLINE void store_rounded(f32x16 value, float least, float most, int32_t *integers)
{
    const f32x16 bounded = f32x16_min(f32x16_max(round_away(value), f32x16_set1(least)), f32x16_set1(most));
    const i32x16 whole = i32x16_from_f32x16(bounded);
    memcpy(integers, &whole, sizeof whole);
}

static void to_int8(const float *rows, size_t count, size_t width, int8_t *data, float *scales)
{
    for (size_t i = 0; i < count; i++, rows += width, data += width) {
        const float largest = largest_magnitude(rows, width);
        const float scale = largest > SMALLEST_MAGNITUDE ? 127.0f / largest : 1.0f;
        scales[i] = scale;
        for (size_t k = 0; k < width; k += BLOCK) {
            int32_t integers[BLOCK];
            store_rounded(f32x16_mul(load_block(LATTICE_FLOAT32, rows, k, width), f32x16_set1(scale)), -127.0f, 127.0f,
                          integers);
            for (size_t j = 0; j < BLOCK && k + j < width; j++)
                data[k + j] = (int8_t)integers[j];
        }
    }
}

static void to_int4(const float *rows, size_t count, size_t width, uint8_t *data, float *scales, float *magnitudes)
{
    const size_t bytes = (width + 1) / 2;
    for (size_t i = 0; i < count; i++, rows += width, data += bytes) {
        const float largest = largest_magnitude(rows, width);
        const float scale = largest > SMALLEST_MAGNITUDE ? 15.0f / (2.0f * largest) : 1.0f;
        scales[i] = scale;
        magnitudes[i] = largest;
        for (size_t k = 0; k < width; k += BLOCK) {
            int32_t integers[BLOCK];
            const f32x16 shifted = f32x16_add(load_block(LATTICE_FLOAT32, rows, k, width), f32x16_set1(largest));
            store_rounded(f32x16_mul(shifted, f32x16_set1(scale)), 0.0f, 15.0f, integers);
            for (size_t j = 0; j < BLOCK && k + j < width; j += 2) {
                const int32_t odd = k + j + 1 < width ? integers[j + 1] : 0;
                data[(k + j) / 2] = (uint8_t)(integers[j] << 4 | odd);
            }
        }
    }
}

static void to_binary(const float *rows, size_t count, size_t width, float threshold, uint8_t *data)
{
    const size_t bytes = (width + 7) / 8;
    for (size_t i = 0; i < count; i++, rows += width, data += bytes)
        for (size_t byte = 0; byte < bytes; byte++) {
            unsigned bits = 0;
            for (size_t j = 0; j < 8; j++)
                bits = bits << 1 | (byte * 8 + j < width && rows[byte * 8 + j] >= threshold);
            data[byte] = (uint8_t)bits;
        }
}

static int64_t find_not_finite(const float *rows, size_t count, size_t width)
{
    for (size_t i = 0; i < count; i++) {
        int bad = 0;
        for (size_t k = 0; k < width; k++) {
            const float value = rows[i * width + k];
            bad |= !(value - value == 0.0f);
        }
        if (bad)
            return (int64_t)i;
    }
    return -1;
}

const lattice_storing_kernels LATTICE_FN(lattice_storing_kernels) = {
    .to_int8 = to_int8,
    .to_int4 = to_int4,
    .to_binary = to_binary,
    .find_not_finite = find_not_finite,
};
