// The scheduler of the fibers, and the C interface (emulated.h). The translated kernels stand before it in the same file.

#include <mutex>

#include <sys/mman.h>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulated {

Threadgroup threadgroup_now;

#ifdef __x86_64__
// Saves what a call keeps and goes on with another stack. ucontext asks the kernel for the signal mask twice a switch.
extern "C" void emulated_switch(void **save, void *load);
asm(R"(
    .text
    .globl emulated_switch
    .hidden emulated_switch
    .type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulated_switch, .-emulated_switch
)");
#endif

static void switch_to(Fiber &from, Fiber &to) {
    threadgroup_now.current = &to;
#ifdef __SANITIZE_ADDRESS__
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(from.has_ended ? nullptr : &fake, to.stack, to.stack == nullptr ? 0 : STACK_BYTES);
#endif
#ifdef __x86_64__
    emulated_switch(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(static_cast<ucontext_t *>(from.stack_pointer), static_cast<ucontext_t *>(to.stack_pointer));
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

static void describe_waiting(char *text, std::size_t size) {
    Threadgroup &now = threadgroup_now;
    std::size_t used = 0;
    const Site *seen[4];
    unsigned kinds = 0;
    for (const Fiber &fiber : now.fibers) {
        bool is_new = fiber.waits_at != nullptr;
        for (unsigned i = 0; i < kinds; i++) {
            is_new = is_new && seen[i] != fiber.waits_at;
        }
        if (!is_new || kinds == 4) {
            continue;
        }
        unsigned count = 0;
        for (const Fiber &other : now.fibers) {
            count += other.waits_at == fiber.waits_at;
        }
        seen[kinds++] = fiber.waits_at;
        used += static_cast<std::size_t>(std::snprintf(
            text + used, size - used, "%s%u threads wait at %s:%d (%s)", used ? ", " : "", count, fiber.waits_at->file,
            fiber.waits_at->line, fiber.waits_at->operation));
    }
    if (now.ended) {
        std::snprintf(text + used, size - used, ", %u have ended", now.ended);
    }
}

void fail(const char *text) {
    Threadgroup &now = threadgroup_now;
    if (!now.has_failed) {
        now.has_failed = true;
        std::snprintf(now.error, sizeof now.error, "threadgroup %u: %s", now.group, text);
    }
    switch_to(*now.current, now.scheduler);
    std::abort(); // nothing goes on with a fiber of a group that failed
}

static Fiber &next_fiber() {
    Threadgroup &now = threadgroup_now;
    if (now.ready_count == 0) {
        if (now.ended < THREADS && !now.has_failed) {
            char text[800];
            describe_waiting(text, sizeof text);
            now.has_failed = true;
            std::snprintf(now.error, sizeof now.error, "threadgroup %u: some threads do not come: %s", now.group, text);
        }
        return now.scheduler;
    }
    const unsigned lane = now.ready[now.ready_first];
    now.ready_first = (now.ready_first + 1) % THREADS;
    now.ready_count--;
    return now.fibers[lane];
}

// Lets members run, in a drawn order, but for the one that runs now.
static void make_ready(unsigned first, unsigned members) {
    Threadgroup &now = threadgroup_now;
    const uint64_t order = drawn();
    const unsigned step = static_cast<unsigned>(order >> 16) | 1u;
    for (unsigned i = 0; i < members; i++) {
        const unsigned lane = first + (static_cast<unsigned>(order) + i * step) % members;
        if (&now.fibers[lane] != now.current) {
            now.ready[(now.ready_first + now.ready_count) % THREADS] = lane;
            now.ready_count++;
        }
    }
}

void release(Meeting &meeting) {
    Threadgroup &now = threadgroup_now;
    for (unsigned i = 0; i < meeting.members; i++) {
        now.fibers[meeting.first + i].waits_at = nullptr;
    }
    meeting.waiting = 0;
    make_ready(meeting.first, meeting.members);
    // the one that came last goes on at once in one of two cases: else it would always be ahead
    if (drawn() >> 63) {
        const unsigned lane = now.current->lane;
        now.ready[(now.ready_first + now.ready_count) % THREADS] = lane;
        now.ready_count++;
        Fiber &self = *now.current;
        Fiber &next = next_fiber();
        if (&next != &self) {
            switch_to(self, next);
        }
    }
}

bool arrive(Meeting &meeting, const Site *site, void *argument) {
    Threadgroup &now = threadgroup_now;
    Fiber &fiber = *now.current;
    fiber.waits_at = site;
    fiber.argument = argument;
    if (meeting.waiting == 0) {
        meeting.site = site;
    } else if (meeting.site != site) {
        char text[800];
        describe_waiting(text, sizeof text);
        fail(text);
    }
    if (++meeting.waiting < meeting.members) {
        switch_to(fiber, next_fiber());
        return false;
    }
    for (unsigned i = 1; i < meeting.members; i++) {
        const unsigned one = meeting.first + i / LANES * LANES;
        if (now.fibers[meeting.first + i].trail != now.fibers[one].trail) {
            char text[400];
            std::snprintf(
                text, sizeof text, "threads of a simdgroup came to %s:%d (%s) by different operations of matrices", site->file,
                site->line, site->operation);
            fail(text);
        }
    }
    return true;
}

static void run_fiber() {
    Threadgroup &now = threadgroup_now;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    now.body(now.current->lane);
    now.current->has_ended = true;
    now.ended++;
    switch_to(*now.current, next_fiber());
    std::abort();
}

static void begin(Fiber &fiber, unsigned lane) {
    if (fiber.stack == nullptr) {
        void *memory = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            std::abort();
        }
        fiber.stack = static_cast<char *>(memory);
    }
    fiber.lane = lane;
    fiber.trail = 0;
    fiber.has_ended = false;
    fiber.waits_at = nullptr;
#ifdef __x86_64__
    void **top = reinterpret_cast<void **>(fiber.stack + STACK_BYTES - 64);
    *--top = nullptr; // where run_fiber would return to: it does not
    *--top = reinterpret_cast<void *>(run_fiber);
    for (unsigned i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    fiber.stack_pointer = top;
#else
    static ucontext_t contexts[THREADS + 1];
    ucontext_t *context = &contexts[lane];
    getcontext(context);
    context->uc_stack.ss_sp = fiber.stack;
    context->uc_stack.ss_size = STACK_BYTES;
    makecontext(context, run_fiber, 0);
    fiber.stack_pointer = context;
    threadgroup_now.scheduler.stack_pointer = &contexts[THREADS];
#endif
}

static Kernel kernel_now;
static void *const *buffers_now;

static void run_thread(unsigned lane) { kernel_now(buffers_now, threadgroup_now.group, lane); }

static bool run_group(uint32_t group) {
    Threadgroup &now = threadgroup_now;
    now.group = group;
    now.serial++;
    now.ended = 0;
    now.ready_first = 0;
    now.ready_count = 0;
    now.has_failed = false;
    now.body = run_thread;
    now.current = &now.scheduler;
    for (unsigned i = 0; i < THREADS / LANES; i++) {
        now.simdgroups[i].first = i * LANES;
        now.simdgroups[i].members = LANES;
        now.simdgroups[i].waiting = 0;
    }
    now.whole.members = THREADS;
    now.whole.waiting = 0;
    for (unsigned lane = 0; lane < THREADS; lane++) {
        begin(now.fibers[lane], lane);
    }
    make_ready(0, THREADS);
    switch_to(now.scheduler, next_fiber());
    return !now.has_failed;
}

} // namespace emulated

#include "emulated.h"

// all else is hidden, so that several libraries in a process do not share it
#define EMULATED_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::mutex one_at_a_time;

} // namespace

EMULATED_EXPORT int32_t emulated_function(const char *name) {
    for (int32_t i = 0; i < static_cast<int32_t>(sizeof emulated_entries / sizeof *emulated_entries); i++) {
        if (std::strcmp(emulated_entries[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

EMULATED_EXPORT uint32_t emulated_constant_count(void) { return sizeof emulated_constants / sizeof *emulated_constants; }

EMULATED_EXPORT const char *emulated_source_sha256(void) { return EMULATED_SOURCE_SHA256; }

EMULATED_EXPORT int32_t emulated_dispatch(const emulated_call *call, char *error, uint64_t error_bytes) {
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    emulated::Threadgroup &now = emulated::threadgroup_now;
    if (call->function < 0 || call->function >= static_cast<int32_t>(sizeof emulated_entries / sizeof *emulated_entries) ||
        call->constant_count != emulated_constant_count()) {
        std::snprintf(error, error_bytes, "no such function, or another number of constants");
        return 1;
    }
    for (uint32_t i = 0; i < call->constant_count; i++) {
        emulated_constants[i]->value = call->constants[i];
    }
    const emulated::Entry &entry = emulated_entries[call->function];
    emulated::kernel_now = entry.kernel;
    emulated::buffers_now = call->buffers;
    now.random = (uint64_t(call->seed >> 16) + 1) * 0x9e3779b97f4a7c15ull;
    now.order_of_sums = emulated::drawn();
    now.random = (uint64_t(call->seed) + 1) * 0x9e3779b97f4a7c15ull;
    const bool goes_down = emulated::drawn() >> 63;
    const uint32_t first = call->groups == 0 ? 0 : static_cast<uint32_t>(emulated::drawn() % call->groups);
    for (uint32_t i = 0; i < call->groups; i++) {
        const uint64_t place = uint64_t(first) + (goes_down ? call->groups - 1 - i : i);
        if (!emulated::run_group(static_cast<uint32_t>(place % call->groups))) {
            std::snprintf(error, error_bytes, "%s: %s", entry.name, now.error);
            return 1;
        }
    }
    return 0;
}

EMULATED_EXPORT void *emulated_allocate(uint64_t nbytes) { return std::malloc(nbytes); }

EMULATED_EXPORT void emulated_release(void *memory) { std::free(memory); }
