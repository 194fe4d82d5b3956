// What every kernel sees: the arena of activations, the inputs of the step, and its own parameter record.
//
// All slots of the memory plan lie in `arena`, and records hold offsets into it, counted in floats. `words` begins with a header of
// offsets of its parts (backends/gpu/step_inputs.py); the constants STEP_* name its entries.
//
// The language is Metal 2.3: C++14, no bfloat16. Compile without fast math: masks need exp(-inf) = 0 and NaN must stay NaN.
// A threadgroup has 64 threads, two simdgroups of 32.

// backends/gpu/record.py has the meaning of the fields.
struct Record {
    uint rows;
    uint n;
    uint k;
    uint first;
    uint x;
    uint x_stride;
    uint y;
    uint y_stride;
    uint a;
    uint a_stride;
    uint b;
    uint b_stride;
    uint section;
    uint heads;
    uint kv_heads;
    uint head_dim;
    uint pairs;
    uint window;
    uint scratch;
    uint each;
    uint experts;
    uint held;
    uint zero;
    float scale;
    float epsilon;
    float offset;
};

enum : uint {
    STEP_TOKEN_IDS = 0u,
    STEP_TOKEN_TYPE_IDS = 1u,
    STEP_POSITIONS = 2u,
    STEP_BOUNDS = 3u,
    STEP_SEQUENCE_OF_ROW = 4u,
    STEP_LOGIT_ROWS = 5u,
    STEP_TILES = 6u,
    STEP_TILE_COUNT = 7u,
    STEP_CONTEXT = 8u,
    STEP_PAGE_BOUNDS = 9u,
    STEP_PAGES = 10u,
    STEP_PAGE_TOKENS = 11u,
    STEP_SEGMENTS = 12u,
    STEP_ADAPTERS = 13u,
    STEP_READ_SLOTS = 14u,
    STEP_WRITE_SLOTS = 15u,
};

constant constexpr uint THREADS = 64u;
constant constexpr uint SIMDGROUPS = 2u;

#define STEP_BUFFERS                                                                                  \
    device float *arena [[buffer(0)]], device const uint *words [[buffer(1)]], constant Record *record [[buffer(2)]]
#define WEIGHT_BUFFERS                                                                                \
    device const uchar *weight [[buffer(3)]], device const float *scales [[buffer(4)]], device const float *bias [[buffer(5)]]
#define PAGE_BUFFERS device uint *keys [[buffer(3)]], device uint *values [[buffer(4)]]
#define SLOT_BUFFERS                                                                                  \
    device float *slots [[buffer(3)]], device const float *taps [[buffer(4)]], device const float *decay [[buffer(5)]]
#define THREAD                                                                                        \
    uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_threadgroup]],           \
        uint simd_lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]

// What the functions of kernels share of a step.
struct Step {
    device float *arena;
    device const uint *words;
    constant Record *record;
};

// Entry `index` of the part of the step's inputs that begins where the header's entry `part` says.
inline uint word_of(Step s, uint part, uint index) {
    return s.words[s.words[part] + index];
}

inline bool is_nan(float x) {
    return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u;
}

// The sum over all threads of a threadgroup, in every thread. `parts` has SIMDGROUPS floats, free to be written.
inline float group_sum(float own, threadgroup float *parts, uint simd_lane, uint simdgroup) {
    const float sum = simd_sum(own);
    threadgroup_barrier(mem_flags::mem_threadgroup); // what an earlier sum left is read
    if (simd_lane == 0u) {
        parts[simdgroup] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return parts[0] + parts[1];
}

inline float group_max(float own, threadgroup float *parts, uint simd_lane, uint simdgroup) {
    const float most = simd_max(own);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_lane == 0u) {
        parts[simdgroup] = most;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return max(parts[0], parts[1]);
}
