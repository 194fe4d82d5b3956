/* Tests of lattice/processors.h on file systems made for it in a temporary folder, given as the only argument. */
#include "lattice/processors.h"

#include <errno.h>
#include <sys/stat.h>

static int failures;

/* Writes `text` to `root``path`, making its folders. */
static void put(const char *root, const char *path, const char *text)
{
    char whole[LATTICE_PATH_BYTES];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = strchr(whole + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(whole, 0700) != 0 && errno != EEXIST)
            perror(whole);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) {
        perror(whole);
        exit(2);
    }
}

typedef struct {
    const char *what, *groups; /* /proc/self/cgroup */
    struct {
        const char *path, *text;
    } files[3];
    int expected;
} quota_case;

static const quota_case cases[] = {
    {"no control groups", NULL, {{NULL, NULL}}, 0},
    {"version 2, no limit", "0::/\n", {{"/sys/fs/cgroup/cpu.max", "max 100000\n"}}, 0},
    {"version 2, one processor, as a container sees it", "0::/\n", {{"/sys/fs/cgroup/cpu.max", "100000 100000\n"}}, 1},
    {"one and a half is two", "0::/\n", {{"/sys/fs/cgroup/cpu.max", "150000 100000\n"}}, 2},
    {"a tenth is one", "0::/\n", {{"/sys/fs/cgroup/cpu.max", "10000 100000\n"}}, 1},
    {"the least limit from the group up to the root",
     "0::/system.slice/work.service\n",
     {{"/sys/fs/cgroup/cpu.max", "max 100000\n"},
      {"/sys/fs/cgroup/system.slice/cpu.max", "200000 100000\n"},
      {"/sys/fs/cgroup/system.slice/work.service/cpu.max", "800000 100000\n"}},
     2},
    {"a group of the host's, seen from inside a container", "0::/docker/abc\n", {{"/sys/fs/cgroup/cpu.max", "300000 100000\n"}},
     3},
    {"version 1",
     "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/docker/abc\n",
     {{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n"}, {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
     4},
    {"version 1, no limit",
     "4:cpuacct,cpu:/\n",
     {{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"}, {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
     0},
    {"version 1, the limit of its own group",
     "4:cpu,cpuacct:/jobs\n0::/\n",
     {{"/sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "50000\n"}, {"/sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "25000\n"}},
     2},
    {"cpuset is not cpu", "4:cpuset:/\n", {{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "1000\n"}}, 0},
    {"a period of zero", "0::/\n", {{"/sys/fs/cgroup/cpu.max", "100000 0\n"}}, 0},
    {"no number", "0::/\nnonsense\n:\n", {{"/sys/fs/cgroup/cpu.max", "\n"}}, 0},
    {"the largest number", "0::/\n", {{"/sys/fs/cgroup/cpu.max", "9223372036854775807 1\n"}}, INT_MAX},
};

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char root[LATTICE_PATH_BYTES / 4];
        snprintf(root, sizeof root, "%.900s/%zu", arguments[1], i);
        if (cases[i].groups != NULL)
            put(root, "/proc/self/cgroup", cases[i].groups);
        for (size_t j = 0; j < 3 && cases[i].files[j].path != NULL; j++)
            put(root, cases[i].files[j].path, cases[i].files[j].text);
        const int quota = lattice_quota_below(root);
        if (quota != cases[i].expected) {
            fprintf(stderr, "%s: %d processors instead of %d\n", cases[i].what, quota, cases[i].expected);
            failures++;
        }
    }
    const int affinity = lattice_affinity(), usable = lattice_usable_processors();
    if (affinity < 1 || usable < 1 || usable > affinity) {
        fprintf(stderr, "%d usable processors of %d\n", usable, affinity);
        failures++;
    }
    if (failures == 0)
        printf("processors: ok, %d usable here\n", usable);
    return failures != 0;
}
