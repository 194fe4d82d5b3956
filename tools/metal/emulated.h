/* The kernels of backends/metal/kernels run by the CPU: the C interface of the library that build.py makes. Tests only. */

#ifndef LATTICE_EMULATED_H
#define LATTICE_EMULATED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMULATED_BUFFERS = 6 };

/* A function constant that a call leaves out: a kernel that uses it is an error. */
#define EMULATED_UNSET 0xffc0deadu

struct emulated_call {
    int32_t function; /* of emulated_function */
    uint32_t groups;  /* threadgroups of the grid */
    uint32_t seed;    /* of the order of threadgroups and threads; its upper 16 bits of that of additions in simdgroups */
    uint32_t constant_count;
    const uint32_t *constants;       /* function constants by their number: emulated_constant_count of them */
    void *buffers[EMULATED_BUFFERS]; /* by number, offsets added; NULL where a kernel has none */
};

/* The number of a function, or -1 if there is none of that name. */
int32_t emulated_function(const char *name);

uint32_t emulated_constant_count(void);

/* Hexadecimal, of the source text in UTF-8 that the library was built from. */
const char *emulated_source_sha256(void);

/* Run a kernel to its end, one at a time in a process. Return 0, or 1 with a text that names file and line in `error`. */
int32_t emulated_dispatch(const struct emulated_call *call, char *error, uint64_t error_bytes);

/* Memory of exactly so many bytes: AddressSanitizer sees what is read beyond. */
void *emulated_allocate(uint64_t nbytes);
void emulated_release(void *memory);

#ifdef __cplusplus
}
#endif

#endif
