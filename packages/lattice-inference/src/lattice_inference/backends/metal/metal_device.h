/* Apple's Metal as functions of C: a device, buffers, kernels, and command buffers that run them.
 *
 * Objects are pointers that their functions return retained; lattice_metal_release gives one back. Functions return a
 * METAL_ status and write what went wrong to `message`. All may be called from any thread without the GIL.
 */
#ifndef LATTICE_METAL_DEVICE_H
#define LATTICE_METAL_DEVICE_H

#include <stddef.h>
#include <stdint.h>

enum {
    METAL_OK = 0,
    METAL_NO_DEVICE = 1,  /* none here */
    METAL_UNSUITED = 2,   /* the system or the GPU is too old */
    METAL_REFUSED = 3,    /* no library of kernels, or not this kernel */
    METAL_NO_MEMORY = 4,
    METAL_FAILED = 5      /* a command buffer ended in an error */
};

enum { METAL_OWN_BUFFERS = 3, METAL_MESSAGE_BYTES = 4096 };

typedef struct lattice_metal lattice_metal;

typedef struct {
    char name[128];
    char system[64];
    char library[METAL_MESSAGE_BYTES]; /* which one serves, and why */
    uint64_t most_buffer_bytes;
    uint64_t working_set_bytes; /* what the system recommends to use at most */
    int32_t has_residency;      /* whether buffers are kept resident on request */
} lattice_metal_facts;

/* One launch of a kernel. The step's buffers are at 0 (arena), 1 (words) and 2 (records), its own ones follow. */
typedef struct {
    void *kernel;
    uint64_t record; /* where its record begins */
    uint32_t groups;
    uint32_t count; /* the buffers that follow arena, words and records */
    void *buffers[METAL_OWN_BUFFERS];
    uint64_t offsets[METAL_OWN_BUFFERS];
} lattice_metal_call;

typedef struct {
    void *source, *target;
    uint64_t source_offset, target_offset, bytes;
} lattice_metal_copying;

/* Open the system's device. The library in the file `library` is tried first (NULL: there is none), then `source`. */
int lattice_metal_open(const char *library, const char *source, lattice_metal **device, lattice_metal_facts *facts,
                       char *message);
void lattice_metal_close(lattice_metal *device);
void lattice_metal_release(void *object);

/* Bytes that buffers and kernels take now. */
uint64_t lattice_metal_allocated(lattice_metal *device);

/* A buffer that the CPU reads and writes too; of `pages` if these are not NULL: whole pages that outlive the buffer. */
int lattice_metal_buffer(lattice_metal *device, void *pages, uint64_t bytes, void **buffer);
void *lattice_metal_contents(void *buffer);

/* Keep a buffer resident from the next command buffer on; forget it before its last release. */
void lattice_metal_keep(lattice_metal *device, void *buffer);
void lattice_metal_forget(lattice_metal *device, void *buffer);

/* A kernel by its function's name, for constants by their index. */
int lattice_metal_kernel(lattice_metal *device, const char *function, const uint32_t *indices, const uint32_t *values,
                         uint32_t constants, uint32_t threads, void **kernel, char *message);

/* Encode calls, which run one after the other, or copies; nothing runs before it is committed. */
int lattice_metal_encode_calls(lattice_metal *device, void *arena, void *words, void *records, uint32_t threads,
                               const lattice_metal_call *calls, uint64_t count, void **commands);
int lattice_metal_encode_copies(lattice_metal *device, const lattice_metal_copying *copies, uint64_t count,
                                void **commands);
void lattice_metal_commit(lattice_metal *device, void *commands);

/* Whether it has ended, well or in an error. */
int32_t lattice_metal_has_ended(void *commands);
/* Wait for its end and say how it ended. */
int lattice_metal_wait(void *commands, char *message);

#endif
