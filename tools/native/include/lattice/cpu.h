/* What this CPU and operating system can run: feature bits and the choice of an instruction set.
 *
 * A feature counts only when the operating system saves the registers it needs (XGETBV on x86): a CPU may announce AVX-512
 * under a hypervisor or kernel that does not preserve it. Tile registers (AMX) also need the system's permission, which is asked
 * for here. Nothing here executes an instruction beyond the baseline.
 */
#ifndef LATTICE_CPU_H
#define LATTICE_CPU_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

/* Levels that kernels are compiled for. Their numbers are stable: they index tables of kernels. */
typedef enum {
    LATTICE_BASELINE = 0, /* x86-64-v2, or plain C without fused multiply-add elsewhere */
    LATTICE_AVX2 = 1,     /* AVX2, FMA, F16C */
    LATTICE_AVX512 = 2,   /* AVX-512 F, BW, DQ, VL on top of AVX2 */
    LATTICE_NEON = 3,     /* AArch64 Advanced SIMD, always with FMA */
    LATTICE_ISA_COUNT = 4
} lattice_isa;

/* Single instructions that some kernels have a body of their own for. */
enum {
    LATTICE_FEATURE_AVX2 = 1u << 0,
    LATTICE_FEATURE_AVX512 = 1u << 1,
    LATTICE_FEATURE_AVX_VNNI = 1u << 2,
    LATTICE_FEATURE_AVX512_VNNI = 1u << 3,
    LATTICE_FEATURE_AVX512_BF16 = 1u << 4,
    LATTICE_FEATURE_AVX512_VPOPCNTDQ = 1u << 5,
    LATTICE_FEATURE_NEON = 1u << 6,
    LATTICE_FEATURE_DOTPROD = 1u << 7,
    LATTICE_FEATURE_I8MM = 1u << 8,
    LATTICE_FEATURE_BF16 = 1u << 9,
    LATTICE_FEATURE_AMX_INT8 = 1u << 10,
    LATTICE_FEATURE_AMX_BF16 = 1u << 11,
};

static inline const char *lattice_isa_name(int isa)
{
    static const char *const names[LATTICE_ISA_COUNT] = {"baseline", "avx2", "avx512", "neon"};
    return isa >= 0 && isa < LATTICE_ISA_COUNT ? names[isa] : "unknown";
}

#if defined(__x86_64__)
static inline uint64_t lattice_enabled_register_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((uint64_t)high << 32) | low;
}

/* What CPUID and XGETBV say, as far as it decides anything here. */
typedef struct {
    uint32_t leaf1_c;          /* leaf 1, ECX */
    uint32_t leaf7_b, leaf7_c; /* leaf 7, subleaf 0, EBX and ECX */
    uint32_t leaf7_1_a;        /* leaf 7, subleaf 1, EAX */
    uint64_t saved_state;      /* XCR0; read only when leaf 1 says that it may be (OSXSAVE) */
    uint32_t leaf7_d;          /* leaf 7, subleaf 0, EDX */
    int tiles_permitted;       /* whether this process may use tile registers */
} lattice_cpuid;

static inline int lattice_may_read_state(const lattice_cpuid *id)
{
    return (id->leaf1_c >> 27) & 1; /* OSXSAVE */
}

static inline int lattice_has_tiles(const lattice_cpuid *id)
{
    const uint64_t tile_state = 0x60000; /* XCR0 bits 17, 18: the shapes of tiles and what they hold */
    return ((id->leaf7_d >> 24) & 1) && lattice_may_read_state(id) && (id->saved_state & tile_state) == tile_state;
}

/* Whether this process may use tile registers. Linux saves their 8 KB only for processes that have asked, and refuses where a
 * thread's signal stack is too small for them. The answer is the process's: it holds in all threads, those that are started
 * later too, and in forks. */
static inline int lattice_ask_for_tiles(void)
{
#if defined(__linux__) && !defined(__ILP32__)
    static int answers; /* 0: not asked, else 1 + whether permitted; asking twice does no harm */
    int answer = __atomic_load_n(&answers, __ATOMIC_RELAXED);
    if (answer == 0) {
        long result;
        /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), by its number: C libraries have no function for it */
        __asm__ volatile("syscall" : "=a"(result) : "a"(158L), "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
        answer = 1 + (result == 0);
        __atomic_store_n(&answers, answer, __ATOMIC_RELAXED);
    }
    return answer - 1;
#else
    return 0;
#endif
}

static inline uint32_t lattice_features_of(const lattice_cpuid *id)
{
    const int fma = (id->leaf1_c >> 12) & 1, avx = (id->leaf1_c >> 28) & 1, f16c = (id->leaf1_c >> 29) & 1;
    const int ymm_saved = (id->saved_state & 0x6) == 0x6;   /* XCR0 bits 1, 2: SSE and AVX */
    const int zmm_saved = (id->saved_state & 0xe6) == 0xe6; /* and bits 5, 6, 7: mask and upper registers */
    const int avx2 = (id->leaf7_b >> 5) & 1;
    const int avx512 = ((id->leaf7_b >> 16) & 1) && ((id->leaf7_b >> 17) & 1) && ((id->leaf7_b >> 30) & 1) &&
                       ((id->leaf7_b >> 31) & 1); /* F DQ BW VL */
    if (!lattice_may_read_state(id) || !ymm_saved || !avx || !avx2 || !fma || !f16c)
        return 0;
    uint32_t features = LATTICE_FEATURE_AVX2;
    if ((id->leaf7_1_a >> 4) & 1)
        features |= LATTICE_FEATURE_AVX_VNNI;
#if defined(LATTICE_EMULATE_AVX512) /* a build for tests: the kernels of this level are made of AVX2 instructions */
    features |= LATTICE_FEATURE_AVX512;
#endif
    if (avx512 && zmm_saved) {
        features |= LATTICE_FEATURE_AVX512;
        if ((id->leaf7_c >> 11) & 1)
            features |= LATTICE_FEATURE_AVX512_VNNI;
        if ((id->leaf7_c >> 14) & 1)
            features |= LATTICE_FEATURE_AVX512_VPOPCNTDQ;
        if ((id->leaf7_1_a >> 5) & 1)
            features |= LATTICE_FEATURE_AVX512_BF16;
    }
    if (lattice_has_tiles(id) && id->tiles_permitted) {
        if ((id->leaf7_d >> 25) & 1)
            features |= LATTICE_FEATURE_AMX_INT8;
        if ((id->leaf7_d >> 22) & 1)
            features |= LATTICE_FEATURE_AMX_BF16;
    }
    return features;
}

static inline uint32_t lattice_cpu_features(void)
{
    lattice_cpuid id = {0};
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &id.leaf1_c, &d))
        return 0;
    if (lattice_may_read_state(&id))
        id.saved_state = lattice_enabled_register_state();
    if (__get_cpuid_count(7, 0, &a, &id.leaf7_b, &id.leaf7_c, &id.leaf7_d) && a >= 1) /* EAX: the highest subleaf */
        __get_cpuid_count(7, 1, &id.leaf7_1_a, &b, &c, &d);
    id.tiles_permitted = lattice_has_tiles(&id) && lattice_ask_for_tiles();
    return lattice_features_of(&id);
}
#elif defined(__aarch64__)
static inline uint32_t lattice_cpu_features(void)
{
    uint32_t features = LATTICE_FEATURE_NEON;
#if defined(__linux__)
    const unsigned long capabilities = getauxval(AT_HWCAP);
    const unsigned long capabilities2 = getauxval(AT_HWCAP2);
    if (capabilities & (1ul << 20)) /* HWCAP_ASIMDDP */
        features |= LATTICE_FEATURE_DOTPROD;
    if (capabilities2 & (1ul << 13)) /* HWCAP2_I8MM */
        features |= LATTICE_FEATURE_I8MM;
    if (capabilities2 & (1ul << 14)) /* HWCAP2_BF16 */
        features |= LATTICE_FEATURE_BF16;
#elif defined(__APPLE__)
    const struct {
        const char *name;
        uint32_t feature;
    } queries[] = {{"hw.optional.arm.FEAT_DotProd", LATTICE_FEATURE_DOTPROD},
                   {"hw.optional.arm.FEAT_I8MM", LATTICE_FEATURE_I8MM},
                   {"hw.optional.arm.FEAT_BF16", LATTICE_FEATURE_BF16}};
    for (unsigned i = 0; i < sizeof queries / sizeof queries[0]; i++) {
        int value = 0;
        size_t size = sizeof value;
        if (sysctlbyname(queries[i].name, &value, &size, NULL, 0) == 0 && value)
            features |= queries[i].feature;
    }
#endif
    return features;
}
#else
static inline uint32_t lattice_cpu_features(void)
{
    return 0;
}
#endif

static inline int lattice_isa_available(int isa)
{
    const uint32_t features = lattice_cpu_features();
    switch (isa) {
    case LATTICE_BASELINE:
        return 1;
    case LATTICE_AVX2:
        return (features & LATTICE_FEATURE_AVX2) != 0;
    case LATTICE_AVX512:
        return (features & LATTICE_FEATURE_AVX512) != 0;
    case LATTICE_NEON:
        return (features & LATTICE_FEATURE_NEON) != 0;
    default:
        return 0;
    }
}

/* The level named `requested` (NULL or "": the best one). Returns -1 for an unknown name, -2 for one this CPU cannot run. */
static inline int lattice_isa_select(const char *requested)
{
    if (requested == NULL || requested[0] == '\0') {
        for (int isa = LATTICE_ISA_COUNT - 1; isa > LATTICE_BASELINE; isa--)
            if (lattice_isa_available(isa))
                return isa;
        return LATTICE_BASELINE;
    }
    for (int isa = 0; isa < LATTICE_ISA_COUNT; isa++)
        if (strcmp(requested, lattice_isa_name(isa)) == 0)
            return lattice_isa_available(isa) ? isa : -2;
    return -1;
}

#endif
