/* Vulkan with faults that no driver gives on demand: a library that hands calls on to the real one.
 *
 * fault_plan(which, after, result) makes one call of a function return `result`, once `after` more calls of it have
 * succeeded; after = -1 plans none. fault_calls counts the calls of a function, fault_buffers and fault_memories what
 * exists. REAL_VULKAN is the path of the real library. Built with that one's name, this one is loaded in its place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef int Result; /* VkResult */

enum { CREATE_BUFFER, ALLOCATE_MEMORY, KINDS };

static _Atomic long calls[KINDS], remaining[KINDS] = {-1, -1};
static _Atomic int results[KINDS];
static _Atomic long buffers, memories;

void fault_plan(int which, long after, int result)
{
    results[which] = result;
    remaining[which] = after;
}

long fault_calls(int which) { return calls[which]; }
long fault_buffers(void) { return buffers; }
long fault_memories(void) { return memories; }

/* The result that a call has instead of the driver's; 0 for the driver's. */
static Result planned(int which)
{
    calls[which]++;
    if (remaining[which] < 0)
        return 0;
    return remaining[which]-- == 0 ? results[which] : 0;
}

typedef Function (*GetAddress)(void *, const char *);
static GetAddress real_instance_address, real_device_address;

static Result (*real_create_buffer)(void *, const void *, const void *, uint64_t *);
static void (*real_destroy_buffer)(void *, uint64_t, const void *);
static Result (*real_allocate)(void *, const void *, const void *, uint64_t *);
static void (*real_free)(void *, uint64_t, const void *);

static Result create_buffer(void *device, const void *info, const void *allocator, uint64_t *made)
{
    Result result = planned(CREATE_BUFFER);
    if (result == 0)
        result = real_create_buffer(device, info, allocator, made);
    buffers += result == 0;
    return result;
}

static void destroy_buffer(void *device, uint64_t buffer, const void *allocator)
{
    buffers -= buffer != 0;
    real_destroy_buffer(device, buffer, allocator);
}

static Result allocate(void *device, const void *info, const void *allocator, uint64_t *made)
{
    Result result = planned(ALLOCATE_MEMORY);
    if (result == 0)
        result = real_allocate(device, info, allocator, made);
    memories += result == 0;
    return result;
}

static void free_memory(void *device, uint64_t memory, const void *allocator)
{
    memories -= memory != 0;
    real_free(device, memory, allocator);
}

static const struct {
    const char *name;
    Function ours;
    Function *real;
} caught[] = {
    {"vkCreateBuffer", (Function)create_buffer, (Function *)&real_create_buffer},
    {"vkDestroyBuffer", (Function)destroy_buffer, (Function *)&real_destroy_buffer},
    {"vkAllocateMemory", (Function)allocate, (Function *)&real_allocate},
    {"vkFreeMemory", (Function)free_memory, (Function *)&real_free},
};

static Function wrapped(const char *name, Function real)
{
    for (size_t i = 0; real != NULL && i < sizeof caught / sizeof caught[0]; i++)
        if (strcmp(name, caught[i].name) == 0) {
            *caught[i].real = real;
            return caught[i].ours;
        }
    return real;
}

static Function device_address(void *device, const char *name)
{
    return wrapped(name, real_device_address(device, name));
}

Function vkGetInstanceProcAddr(void *instance, const char *name)
{
    if (real_instance_address == NULL) {
        void *library = dlopen(getenv("REAL_VULKAN"), RTLD_NOW | RTLD_LOCAL);
        real_instance_address = (GetAddress)dlsym(library, "vkGetInstanceProcAddr");
    }
    const Function real = real_instance_address(instance, name);
    if (strcmp(name, "vkGetInstanceProcAddr") == 0)
        return (Function)vkGetInstanceProcAddr;
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        real_device_address = (GetAddress)real;
        return (Function)device_address;
    }
    return wrapped(name, real);
}
