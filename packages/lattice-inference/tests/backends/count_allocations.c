/* Preloaded into a process, counts what asks the C library or the system for memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

static atomic_long count, mapped;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t number, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

long allocations(void)
{
    return atomic_load(&count);
}

long mappings(void)
{
    return atomic_load(&mapped);
}

void *malloc(size_t size)
{
    atomic_fetch_add(&count, 1);
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    atomic_fetch_add(&count, 1);
    return __libc_calloc(number, size);
}

void *realloc(void *old, size_t size)
{
    atomic_fetch_add(&count, 1);
    return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size)
{
    atomic_fetch_add(&count, 1);
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
    *result = memalign(alignment, size);
    return *result == NULL ? 12 : 0;
}

void *mmap(void *address, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (next == NULL)
        next = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    atomic_fetch_add(&count, 1);
    atomic_fetch_add(&mapped, 1);
    return next(address, length, protection, flags, descriptor, offset);
}

/* What mmap is called where offsets of files are said to have 64 bits. */
void *mmap64(void *address, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    return mmap(address, length, protection, flags, descriptor, offset);
}
