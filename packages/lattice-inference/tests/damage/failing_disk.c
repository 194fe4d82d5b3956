/* A disk that fails: preloaded into a process, it counts what reaches the disk under one folder, and fails one of them.
 *
 * Counted are writes, truncations, forcing to the disk, new entries of folders, renames and links. A write that fails has
 * written half of its bytes, as a full disk does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096];
static long fails_at = 0; /* the operation that fails, from 1; 0: none does */
static bool lasting = false; /* whether those after it fail, too */
static bool has_failed = false;
static int number = EIO;
static long counted = 0;

void failing_disk_arm(const char *path, long operation, int error, int stays) {
    strncpy(folder, path, sizeof folder - 1);
    number = error;
    lasting = stays;
    has_failed = false;
    counted = 0;
    fails_at = operation;
}

/* Fail no more, and return whether an operation failed. */
int failing_disk_disarm(void) {
    fails_at = 0;
    folder[0] = 0;
    return has_failed;
}

static bool is_ours(const char *path) { return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0; }

static bool is_open_of_ours(int descriptor) {
    char link[64], path[4096];
    if (!folder[0])
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return false;
    path[length] = 0;
    return is_ours(path);
}

static bool fails(bool ours) {
    if (!ours || fails_at == 0)
        return false;
    counted++;
    if (counted != fails_at && !(lasting && counted > fails_at))
        return false;
    has_failed = true;
    errno = number;
    return true;
}

#define REAL(result, name, ...)                                                                                        \
    static result (*real)(__VA_ARGS__);                                                                               \
    if (!real)                                                                                                         \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (fails(is_open_of_ours(descriptor))) {
        if (real(descriptor, data, size / 2) < 0)
            return -1;
        errno = number;
        return -1;
    }
    return real(descriptor, data, size);
}

#define PWRITE(symbol, offset_type)                                                                                    \
    ssize_t symbol(int descriptor, const void *data, size_t size, offset_type place) {                                 \
        REAL(ssize_t, #symbol, int, const void *, size_t, offset_type);                                                \
        if (fails(is_open_of_ours(descriptor))) {                                                                      \
            if (real(descriptor, data, size / 2, place) < 0)                                                           \
                return -1;                                                                                             \
            errno = number;                                                                                            \
            return -1;                                                                                                 \
        }                                                                                                              \
        return real(descriptor, data, size, place);                                                                    \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define BY_DESCRIPTOR(symbol)                                                                                          \
    int symbol(int descriptor) {                                                                                       \
        REAL(int, #symbol, int);                                                                                       \
        return fails(is_open_of_ours(descriptor)) ? -1 : real(descriptor);                                             \
    }
BY_DESCRIPTOR(fsync)
BY_DESCRIPTOR(fdatasync)

#define TRUNCATE(symbol, offset_type)                                                                                  \
    int symbol(int descriptor, offset_type size) {                                                                     \
        REAL(int, #symbol, int, offset_type);                                                                          \
        return fails(is_open_of_ours(descriptor)) ? -1 : real(descriptor, size);                                       \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define TWO_PATHS(symbol)                                                                                              \
    int symbol(const char *from, const char *to) {                                                                     \
        REAL(int, #symbol, const char *, const char *);                                                                \
        return fails(is_ours(to)) ? -1 : real(from, to);                                                               \
    }
#define SEND(symbol, offset_type)                                                                                      \
    ssize_t symbol(int out, int in, offset_type *place, size_t size) {                                                 \
        REAL(ssize_t, #symbol, int, int, offset_type *, size_t);                                                       \
        return fails(is_open_of_ours(out)) ? -1 : real(out, in, place, size);                                          \
    }
SEND(sendfile, off_t)
SEND(sendfile64, off64_t)

TWO_PATHS(rename)
TWO_PATHS(link)

int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    return fails(is_ours(to)) ? -1 : real(at, from, to_at, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return fails(is_ours(path)) ? -1 : real(path, mode);
}

#define OPEN(symbol)                                                                                                   \
    int symbol(const char *path, int flags, ...) {                                                                     \
        REAL(int, #symbol, const char *, int, ...);                                                                    \
        mode_t mode = 0;                                                                                               \
        if (flags & O_CREAT) {                                                                                         \
            va_list rest;                                                                                              \
            va_start(rest, flags);                                                                                     \
            mode = va_arg(rest, mode_t);                                                                               \
            va_end(rest);                                                                                              \
            if (fails(is_ours(path) && access(path, F_OK) != 0))                                                       \
                return -1;                                                                                             \
        }                                                                                                              \
        return real(path, flags, mode);                                                                                \
    }
OPEN(open)
OPEN(open64)
