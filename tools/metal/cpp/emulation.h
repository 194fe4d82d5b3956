// Threads of a threadgroup as fibers of one thread of the CPU.
//
// A fiber runs until it comes to an operation of its simdgroup or a barrier, and waits there for the others. The last one to come does
// the operation for all. Which fiber runs next is drawn from the seed of a call. In which order a simdgroup adds up is drawn from the
// upper half of the seed, once for all calls: a device does not change it. Fibers that wait at different places, or for one that has
// ended, are an error that names the places.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated {

constexpr unsigned THREADS = 64;
constexpr unsigned LANES = 32;
constexpr std::size_t STACK_BYTES = 256 << 10;

// A place in the source where threads meet.
struct Site {
    const char *operation;
    const char *file;
    int line;
};

struct Fiber {
    void *stack_pointer = nullptr;
    char *stack = nullptr;
    void *fake_stack = nullptr;
    const Site *waits_at = nullptr;
    void *argument = nullptr;
    unsigned lane = 0;
    uint64_t trail = 0; // of the operations of its simdgroup that it passed without a wait
    bool has_ended = false;
};

// Those who meet at an operation: a simdgroup, or the threadgroup.
struct Meeting {
    const Site *site = nullptr;
    unsigned first = 0;
    unsigned members = 0;
    unsigned waiting = 0;
};

struct Threadgroup {
    Fiber fibers[THREADS];
    Fiber scheduler;
    Meeting simdgroups[THREADS / LANES];
    Meeting whole;
    unsigned ready[THREADS]; // lanes that can run, a ring
    unsigned ready_first = 0;
    unsigned ready_count = 0;
    unsigned ended = 0;
    Fiber *current = nullptr;
    uint64_t random = 0;
    uint64_t order_of_sums = 0;
    uint32_t group = 0;
    uint64_t serial = 0; // of threadgroups, for their memory
    void (*body)(unsigned lane) = nullptr;
    bool has_failed = false;
    char error[1024];
};

extern Threadgroup threadgroup_now;

[[noreturn]] void fail(const char *text);
void wait_for_others(Fiber &fiber);
void release(Meeting &meeting);
bool arrive(Meeting &meeting, const Site *site, void *argument);

inline uint64_t drawn() { // xorshift64*
    uint64_t x = threadgroup_now.random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    threadgroup_now.random = x;
    return x * 0x2545f4914f6cdd1dull;
}

// Runs `complete(arguments of all members)` once all members of the meeting are here.
template <typename Complete>
inline void meet(Meeting &meeting, const Site *site, void *argument, Complete complete) {
    if (arrive(meeting, site, argument)) {
        complete(meeting);
        release(meeting);
    }
}

inline Meeting &own_simdgroup() { return threadgroup_now.simdgroups[threadgroup_now.current->lane / LANES]; }

template <typename T>
inline T &argument_of(const Meeting &meeting, unsigned member) {
    return *static_cast<T *>(threadgroup_now.fibers[meeting.first + member].argument);
}

inline void barrier(const Site *site) {
    meet(threadgroup_now.whole, site, nullptr, [](Meeting &) {});
}

inline void simd_barrier(const Site *site) {
    meet(own_simdgroup(), site, nullptr, [](Meeting &) {});
}

// The sum over a simdgroup in a drawn order: a chain, or a tree over drawn places.
inline float simd_sum(float own, const Site *site) {
    meet(own_simdgroup(), site, &own, [](Meeting &meeting) {
        float values[LANES];
        const uint64_t order = threadgroup_now.order_of_sums;
        const unsigned step = static_cast<unsigned>(order >> 8) | 1u;
        for (unsigned i = 0; i < LANES; i++) {
            values[i] = argument_of<float>(meeting, (static_cast<unsigned>(order) + i * step) % LANES);
        }
        if (order >> 63) {
            for (unsigned i = 1; i < LANES; i++) {
                values[0] += values[i];
            }
        } else {
            for (unsigned half = LANES / 2; half > 0; half /= 2) {
                for (unsigned i = 0; i < half; i++) {
                    values[i] += values[i + half];
                }
            }
        }
        for (unsigned i = 0; i < LANES; i++) {
            argument_of<float>(meeting, i) = values[0];
        }
    });
    return own;
}

inline float simd_max(float own, const Site *site) {
    meet(own_simdgroup(), site, &own, [](Meeting &meeting) {
        float most = argument_of<float>(meeting, 0);
        for (unsigned i = 1; i < LANES; i++) {
            most = __builtin_fmaxf(most, argument_of<float>(meeting, i));
        }
        for (unsigned i = 0; i < LANES; i++) {
            argument_of<float>(meeting, i) = most;
        }
    });
    return own;
}

// A matrix of 8 by 8 as a simdgroup holds it: two neighbours of a row in each thread.
struct Matrix8x8 {
    float own[2];
};

// An operation of the whole simdgroup that needs no other thread's numbers: that all came by it is looked at when they next meet.
inline unsigned pass(const Site *site) {
    Fiber &fiber = *threadgroup_now.current;
    fiber.trail = fiber.trail * 0x9e3779b97f4a7c15ull + reinterpret_cast<uintptr_t>(site);
    return fiber.lane % LANES;
}

inline void load(Matrix8x8 &matrix, const float *from, std::size_t stride, const Site *site) {
    const unsigned lane = pass(site);
    const float *at = from + lane / 4 * stride + lane % 4 * 2;
    matrix.own[0] = at[0];
    matrix.own[1] = at[1];
}

inline void store(const Matrix8x8 &matrix, float *to, std::size_t stride, const Site *site) {
    const unsigned lane = pass(site);
    float *at = to + lane / 4 * stride + lane % 4 * 2;
    at[0] = matrix.own[0];
    at[1] = matrix.own[1];
}

inline Matrix8x8 filled(float value, const Site *site) {
    pass(site);
    return Matrix8x8{{value, value}};
}

struct Product {
    Matrix8x8 *d;
    Matrix8x8 a, b, c;
};

// d = a b + c.
inline void multiply_accumulate(
    Matrix8x8 &d, const Matrix8x8 &a, const Matrix8x8 &b, const Matrix8x8 &c, const Site *site) {
    Product product = {&d, a, b, c};
    meet(own_simdgroup(), site, &product, [](Meeting &meeting) {
        float left[8][8], right[8][8], sums[8][8];
        for (unsigned i = 0; i < LANES; i++) {
            const Product &own = argument_of<Product>(meeting, i);
            std::memcpy(&left[i / 4][i % 4 * 2], own.a.own, 8);
            std::memcpy(&right[i / 4][i % 4 * 2], own.b.own, 8);
            std::memcpy(&sums[i / 4][i % 4 * 2], own.c.own, 8);
        }
        for (unsigned row = 0; row < 8; row++) {
            for (unsigned k = 0; k < 8; k++) {
                for (unsigned column = 0; column < 8; column++) {
                    sums[row][column] = __builtin_fmaf(left[row][k], right[k][column], sums[row][column]);
                }
            }
        }
        for (unsigned i = 0; i < LANES; i++) {
            std::memcpy(argument_of<Product>(meeting, i).d->own, &sums[i / 4][i % 4 * 2], 8);
        }
    });
}

// Memory of a threadgroup that is NaN until it is written: one place for each declaration.
template <typename Array>
struct ThreadgroupMemory {
    Array content;
    uint64_t serial = 0;

    Array &of_this_group() {
        if (serial != threadgroup_now.serial) {
            serial = threadgroup_now.serial;
            for (std::size_t i = 0; i < sizeof content / 4; i++) {
                const uint32_t bits = 0xffc0dead;
                std::memcpy(reinterpret_cast<char *>(&content) + 4 * i, &bits, 4);
            }
        }
        return content;
    }
};

// A function constant. One that a call has left out must not be used: Metal would make no pipeline.
struct Constant {
    const char *name;
    uint32_t value;

    operator uint32_t() const {
        if (__builtin_expect(value == 0xffc0dead, 0)) {
            char text[200];
            std::snprintf(text, sizeof text, "the function constant %s is used and not set", name);
            fail(text);
        }
        return value;
    }
};

// A kernel as all of them are called.
using Kernel = void (*)(void *const *buffers, uint32_t group, uint32_t lane);

struct Entry {
    const char *name;
    Kernel kernel;
};

} // namespace emulated

#define EMULATED_SITE(operation)                                                                   \
    ([]() -> const emulated::Site * {                                                              \
        static const emulated::Site site = {operation, __FILE__, __LINE__};                        \
        return &site;                                                                              \
    }())
