/* How many processors this process may use: its affinity, cut by the CPU quota of its control groups (Linux).
 *
 * A container that may use one processor's worth of time of a machine of 64 gets one thread: more would only be throttled.
 * Nothing is ever pinned to a processor.
 */
#ifndef LATTICE_PROCESSORS_H
#define LATTICE_PROCESSORS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LATTICE_PATH_BYTES 4096

/* Processors in a quota of `microseconds` every `period`, rounded up; 0 for no limit. */
static inline int lattice_quota_processors(long microseconds, long period)
{
    if (microseconds <= 0 || period <= 0)
        return 0;
    const long processors = (microseconds - 1) / period + 1;
    return processors < INT_MAX ? (int)processors : INT_MAX;
}

/* Reads one number from `folder`/`name`; 0 when there is none. */
static inline long lattice_read_number(const char *folder, const char *name)
{
    char path[LATTICE_PATH_BYTES + 32];
    long number = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%ld", &number) != 1) /* "max": no limit */
        number = 0;
    fclose(file);
    return number;
}

/* The limit that the control group at `folder` sets itself, of version 2 or 1; 0 for none. */
static inline int lattice_quota_of_group(const char *folder)
{
    char path[LATTICE_PATH_BYTES + 32];
    long microseconds = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return lattice_quota_processors(lattice_read_number(folder, "cpu.cfs_quota_us"),
                                        lattice_read_number(folder, "cpu.cfs_period_us"));
    if (fscanf(file, "%ld %ld", &microseconds, &period) != 2)
        microseconds = 0;
    fclose(file);
    return lattice_quota_processors(microseconds, period);
}

/* The least limit of the groups from `mount` + `group` up to `mount`; 0 for none. `group` is cut on the way. */
static inline int lattice_quota_of_branch(const char *mount, char *group)
{
    char folder[LATTICE_PATH_BYTES];
    int least = 0;
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, group);
        const int quota = lattice_quota_of_group(folder);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

/* Whether the comma-separated list `controllers` holds "cpu". */
static inline int lattice_controls_cpu(const char *controllers)
{
    for (const char *name = controllers;; name++) {
        const size_t length = strcspn(name, ",");
        if (length == 3 && strncmp(name, "cpu", 3) == 0)
            return 1;
        name += length;
        if (*name == '\0')
            return 0;
    }
}

/* The least CPU limit of this process's control groups, in processors; 0 for none. The file system is read below `root`:
 * "" is this machine's own, tests bring theirs. */
static inline int lattice_quota_below(const char *root)
{
    char line[2048], mount[LATTICE_PATH_BYTES / 2];
    int least = 0;
    snprintf(mount, sizeof mount, "%s/proc/self/cgroup", root);
    FILE *file = fopen(mount, "r");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL) { /* hierarchy:controllers:group */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *controllers++ = '\0';
        *group++ = '\0';
        const int unified = controllers[0] == '\0';
        if (!unified && !lattice_controls_cpu(controllers))
            continue;
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, unified ? "" : "/cpu");
        const int quota = lattice_quota_of_branch(mount, group);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    }
    fclose(file);
    return least;
}

/* The processors that this process may be scheduled on. */
static inline int lattice_affinity(void)
{
    int processors = 0;
#if defined(__linux__)
    for (int most = CPU_SETSIZE; processors == 0 && most <= 1 << 20; most *= 2) { /* too small a set is refused */
        cpu_set_t *set = CPU_ALLOC((size_t)most);
        if (set == NULL)
            break;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(most), set) == 0)
            processors = CPU_COUNT_S(CPU_ALLOC_SIZE(most), set);
        CPU_FREE(set);
    }
#endif
    if (processors <= 0)
        processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return processors > 0 ? processors : 1;
}

/* How many threads this process should compute on, at least 1. */
static inline int lattice_usable_processors(void)
{
    const int processors = lattice_affinity(), quota = lattice_quota_below("");
    return quota > 0 && quota < processors ? quota : processors;
}

#endif
