/* Rotary positions: y = x turned, pair by pair of a head's dimensions, by position * frequency.
 *
 * Cosines and sines are worked out once a step for all layers and heads, in double precision: the angle, rounded to float32 as
 * models were trained with, can be 10^5 and more, and the turn counts to its last bit. The double is exact to far more than a
 * float32 needs, in plain C without fused operations, so every level and compiler rounds it alike.
 */
#ifndef LATTICE_ROPE_H
#define LATTICE_ROPE_H

#include "rows/normalize.h"

/* pi / 2 in three parts; the first two have 29 bits, so that n times them is exact for n < 2^24. */
#define HALF_PI_1 0x1.921fb54p+0
#define HALF_PI_2 0x1.10b4611p-30
#define HALF_PI_3 0x1.4c4c6628b80dcp-59
#define ROUNDING 0x1.8p+52 /* adding it leaves no fraction bits */

/* For 0 <= x < 2^24: the angle is brought into [-pi/4, pi/4] and a quarter n, and the series around 0 are used. */
LATTICE_INLINE void cosine_sine(double x, double *cosine, double *sine)
{
    const double quarters = (x * 0x1.45f306dc9c883p-1 + ROUNDING) - ROUNDING;
    const double r = ((x - quarters * HALF_PI_1) - quarters * HALF_PI_2) - quarters * HALF_PI_3;
    const double s = r * r;
    double odd = -0x1.ae7f3e733b81fp-41;
    odd = odd * s + 0x1.6124613a86d09p-33;
    odd = odd * s - 0x1.ae64567f544e4p-26;
    odd = odd * s + 0x1.71de3a556c734p-19;
    odd = odd * s - 0x1.a01a01a01a01ap-13;
    odd = odd * s + 0x1.1111111111111p-7;
    odd = odd * s - 0x1.5555555555555p-3;
    odd = r + r * s * odd;
    double even = 0x1.ae7f3e733b81fp-45;
    even = even * s - 0x1.93974a8c07c9dp-37;
    even = even * s + 0x1.1eed8eff8d898p-29;
    even = even * s - 0x1.27e4fb7789f5cp-22;
    even = even * s + 0x1.a01a01a01a01ap-16;
    even = even * s - 0x1.6c16c16c16c17p-10;
    even = even * s + 0x1.5555555555555p-5;
    even = even * s - 0.5;
    even = 1.0 + s * even;
    const int quarter = (int)((int64_t)quarters & 3);
    const double c = quarter & 1 ? odd : even, d = quarter & 1 ? even : odd;
    *cosine = quarter == 1 || quarter == 2 ? -c : c;
    *sine = quarter >= 2 ? -d : d;
}

void LATTICE_FN(rope_angles_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const int64_t pairs = op->n / 2;
    const float *frequencies = op->angles.frequencies;
    int64_t first, end;
    task_rows(step->tokens, task, tasks, &first, &end);
    for (int64_t t = first; t < end; t++) {
        float *y = lattice_row(step, &op->output, t);
        for (int64_t i = 0; i < pairs; i++) {
            const float angle = (float)step->ids[2][t] * frequencies[i];
            double cosine, sine;
            cosine_sine(angle, &cosine, &sine);
            y[i] = (float)cosine * op->angles.scale;
            y[pairs + i] = (float)sine * op->angles.scale;
        }
    }
}

/* (a, b) -> (a c - b s, b c + a s) */
LATTICE_INLINE void turn(f32x16 *a, f32x16 *b, f32x16 cosine, f32x16 sine)
{
    const f32x16 first = f32x16_fma(*a, cosine, f32x16_neg(f32x16_mul(*b, sine)));
    *b = f32x16_fma(*b, cosine, f32x16_mul(*a, sine));
    *a = first;
}

/* The sines of pairs from `i` on; of angles the other way round where `back`. */
LATTICE_INLINE f32x16 load_sines(const float *angles, int64_t i, int64_t pairs, int back)
{
    const f32x16 sine = load_part(angles + pairs, i, pairs);
    return back ? f32x16_neg(sine) : sine;
}

LATTICE_INLINE void turn_halves(const float *x, float *y, const float *angles, int64_t pairs, int back)
{
    for (int64_t i = 0; i < pairs; i += 16) {
        f32x16 a = load_part(x, i, pairs), b = load_part(x + pairs, i, pairs);
        turn(&a, &b, load_part(angles, i, pairs), load_sines(angles, i, pairs, back));
        store_part(y, i, pairs, a);
        store_part(y + pairs, i, pairs, b);
    }
}

/* Thirty-two floats as those in even and those in odd places, and back. */
#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512)
LATTICE_INLINE void load_neighbours(const float *x, f32x16 *even, f32x16 *odd)
{
    const f32x16 first = f32x16_load(x), second = f32x16_load(x + 16);
    const __m512i places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(first, places, second);
    *odd = _mm512_permutex2var_ps(first, _mm512_add_epi32(places, _mm512_set1_epi32(1)), second);
}
LATTICE_INLINE void store_neighbours(float *y, f32x16 even, f32x16 odd)
{
    const __m512i places = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    f32x16_store(y, _mm512_permutex2var_ps(even, places, odd));
    f32x16_store(y + 16, _mm512_permutex2var_ps(even, _mm512_add_epi32(places, _mm512_set1_epi32(8)), odd));
}
#elif defined(LATTICE_ISA_NEON)
LATTICE_INLINE void load_neighbours(const float *x, f32x16 *even, f32x16 *odd)
{
    float first[16], second[16];
    for (int i = 0; i < 16; i += 4) {
        const float32x4x2_t both = vld2q_f32(x + 2 * i);
        vst1q_f32(first + i, both.val[0]);
        vst1q_f32(second + i, both.val[1]);
    }
    *even = f32x16_load(first);
    *odd = f32x16_load(second);
}
LATTICE_INLINE void store_neighbours(float *y, f32x16 even, f32x16 odd)
{
    float first[16], second[16];
    f32x16_store(first, even);
    f32x16_store(second, odd);
    for (int i = 0; i < 16; i += 4)
        vst2q_f32(y + 2 * i, (float32x4x2_t){{vld1q_f32(first + i), vld1q_f32(second + i)}});
}
#else
LATTICE_INLINE void load_neighbours(const float *x, f32x16 *even, f32x16 *odd)
{
    float first[16], second[16];
    for (int i = 0; i < 16; i++) {
        first[i] = x[2 * i];
        second[i] = x[2 * i + 1];
    }
    *even = f32x16_load(first);
    *odd = f32x16_load(second);
}
LATTICE_INLINE void store_neighbours(float *y, f32x16 even, f32x16 odd)
{
    float first[16], second[16];
    f32x16_store(first, even);
    f32x16_store(second, odd);
    for (int i = 0; i < 16; i++) {
        y[2 * i] = first[i];
        y[2 * i + 1] = second[i];
    }
}
#endif

LATTICE_INLINE void turn_neighbours(const float *x, float *y, const float *angles, int64_t pairs, int back)
{
    for (int64_t i = 0; i < pairs; i += 16) {
        const int64_t here = pairs - i < 16 ? pairs - i : 16;
        const float *from = x + 2 * i;
        float *to = y + 2 * i, padded[32];
        if (here < 16) {
            memset(padded, 0, sizeof padded);
            memcpy(padded, from, (size_t)(2 * here) * sizeof(float));
            from = to = padded;
        }
        f32x16 a, b;
        load_neighbours(from, &a, &b);
        turn(&a, &b, load_part(angles, i, pairs), load_sines(angles, i, pairs, back));
        store_neighbours(to, a, b);
        if (here < 16)
            memcpy(y + 2 * i, padded, (size_t)(2 * here) * sizeof(float));
    }
}

LATTICE_INLINE void turn_task(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int back)
{
    const int64_t pairs = op->rope.width / 2, head_dim = op->rope.head_dim;
    int64_t first, end;
    task_rows(step->tokens, task, tasks, &first, &end);
    for (int64_t t = first; t < end; t++) {
        const float *x = lattice_row(step, &op->input[0], t), *angles = lattice_row(step, &op->input[1], t);
        float *y = lattice_row(step, &op->output, t);
        for (int64_t head = 0; head < op->rope.heads; head++, x += head_dim, y += head_dim) {
            if (op->rope.pairing == LATTICE_PAIRING_HALF)
                turn_halves(x, y, angles, pairs, back);
            else
                turn_neighbours(x, y, angles, pairs, back);
            memcpy(y + 2 * pairs, x + 2 * pairs, (size_t)(head_dim - 2 * pairs) * sizeof(float));
        }
    }
}

void LATTICE_FN(rope_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    turn_task(op, step, task, tasks, 0);
}

/* Gradients are turned by the same angles the other way round. */
void LATTICE_FN(rope_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    turn_task(op, step, task, tasks, 1);
}

#endif
