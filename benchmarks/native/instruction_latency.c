/* How long the main instructions of the kernels take on this CPU, in cycles: chains of one register, and eight chains side by side.
 *
 *     gcc -O1 -march=native -o instruction_latency benchmarks/native/instruction_latency.c && ./instruction_latency
 *
 * A cycle is what an integer addition takes that waits for the one before it, so the clock's frequency does not matter. The least of
 * many short runs counts, so other processes matter little. The tables in kernels/<folder>/README.md are from this.
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <x86intrin.h>

#define RUNS 3000
#define STEPS 250 /* of 8 instructions */

/* The least ticks of `steps` times the body, which holds 8 instructions; the loop runs beside it and costs nothing more. */
#define LEAST(result, steps, body)                                                                                            \
    do {                                                                                                               \
        uint64_t least_ = UINT64_MAX;                                                                                  \
        for (int run_ = 0; run_ < RUNS; run_++) {                                                                      \
            unsigned core_;                                                                                            \
            _mm_lfence();                                                                                              \
            const uint64_t begin_ = __rdtscp(&core_);                                                                  \
            _mm_lfence();                                                                                              \
            for (int step_ = 0; step_ < (steps); step_++)                                                                \
                body;                                                                                                  \
            _mm_lfence();                                                                                              \
            const uint64_t ticks_ = __rdtscp(&core_) - begin_;                                                         \
            least_ = ticks_ < least_ ? ticks_ : least_;                                                                \
        }                                                                                                              \
        result = (double)least_;                                                                                       \
    } while (0)

#define EIGHT(text) text text text text text text text text
#define VECTORS                                                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9"

static double nothing, cycle;

/* `chained` writes and reads register 0; `apart` is eight of it, each with a register for itself. */
#define MEASURE(name, chained, apart)                                                                                  \
    do {                                                                                                               \
        double one_, eight_;                                                                                           \
        LEAST(one_, STEPS, __asm__ volatile(EIGHT(chained "\n") ::: VECTORS));                                                \
        LEAST(eight_, STEPS, __asm__ volatile(apart ::: VECTORS));                                                            \
        printf("%-28s %5.1f %8.2f\n", name, (one_ - nothing) / (8 * STEPS) / cycle,                                    \
               (eight_ - nothing) / (8 * STEPS) / cycle);                                                              \
    } while (0)

#define ONE(op, r, n, tail) op " " tail ", %%" r n ", %%" r n "\n"
#define APART(op, r, tail)                                                                                             \
    ONE(op, r, "0", tail) ONE(op, r, "1", tail) ONE(op, r, "2", tail) ONE(op, r, "3", tail) ONE(op, r, "4", tail)       \
    ONE(op, r, "5", tail) ONE(op, r, "6", tail) ONE(op, r, "7", tail)
#define TWO(op, r, n) op " %%" r n ", %%" r n "\n"
#define APART_TWO(op, r)                                                                                               \
    TWO(op, r, "0") TWO(op, r, "1") TWO(op, r, "2") TWO(op, r, "3") TWO(op, r, "4") TWO(op, r, "5") TWO(op, r, "6")     \
    TWO(op, r, "7")

#define BINARY(op, r) MEASURE(op " " r, op " %%" r "8, %%" r "0, %%" r "0", APART(op, r, "%%" r "8"))
#define UNARY(op, r) MEASURE(op " " r, op " %%" r "0, %%" r "0", APART_TWO(op, r))
#define ACCUMULATE(op, r) MEASURE(op " " r, op " %%" r "8, %%" r "9, %%" r "0",                                        \
    op " %%" r "8, %%" r "9, %%" r "0\n" op " %%" r "8, %%" r "9, %%" r "1\n" op " %%" r "8, %%" r "9, %%" r "2\n"      \
    op " %%" r "8, %%" r "9, %%" r "3\n" op " %%" r "8, %%" r "9, %%" r "4\n" op " %%" r "8, %%" r "9, %%" r "5\n"      \
    op " %%" r "8, %%" r "9, %%" r "6\n" op " %%" r "8, %%" r "9, %%" r "7\n")
/* From half a register to a whole one: the chain goes through the lower half. */
#define WIDEN(op, half, whole)                                                                                         \
    MEASURE(op " " whole, op " %%" half "0, %%" whole "0",                                                             \
            op " %%" half "8, %%" whole "0\n" op " %%" half "8, %%" whole "1\n" op " %%" half "8, %%" whole "2\n"       \
            op " %%" half "8, %%" whole "3\n" op " %%" half "8, %%" whole "4\n" op " %%" half "8, %%" whole "5\n"       \
            op " %%" half "8, %%" whole "6\n" op " %%" half "8, %%" whole "7\n")

int main(void)
{
    double added;
    __asm__ volatile("vzeroall" ::: VECTORS);
    LEAST(nothing, 0, __asm__ volatile("" :::));
    LEAST(added, STEPS, __asm__ volatile(EIGHT("add $1, %%rax\n") ::: "rax"));
    cycle = (added - nothing) / (8 * STEPS);
    printf("%-28s %5s %8s\n", "instruction", "chain", "apart");
    ACCUMULATE("vfmadd231ps", "ymm");
    BINARY("vaddps", "ymm");
    BINARY("vmulps", "ymm");
    BINARY("vmaxps", "ymm");
    BINARY("vdivps", "ymm");
    UNARY("vsqrtps", "ymm");
    BINARY("vpmaddwd", "ymm");
    BINARY("vpaddd", "ymm");
    BINARY("vpmulld", "ymm");
    WIDEN("vpmovsxbw", "xmm", "ymm");
    WIDEN("vcvtph2ps", "xmm", "ymm");
    UNARY("vcvtdq2ps", "ymm");
    BINARY("vpermps", "ymm");
#if defined(__AVX512F__)
    ACCUMULATE("vfmadd231ps", "zmm");
    BINARY("vaddps", "zmm");
    BINARY("vdivps", "zmm");
    UNARY("vsqrtps", "zmm");
    BINARY("vpmaddwd", "zmm");
    WIDEN("vpmovsxbw", "ymm", "zmm");
    WIDEN("vcvtph2ps", "ymm", "zmm");
    UNARY("vcvtdq2ps", "zmm");
    BINARY("vpermps", "zmm");
#endif
#if defined(__AVX512VNNI__)
    ACCUMULATE("vpdpbusd", "zmm");
#endif
#if defined(__AVX512BF16__)
    ACCUMULATE("vdpbf16ps", "zmm");
#endif
    return 0;
}
