/* Switches callgrind's counting on and off around a stretch of a program. Outside of callgrind both do nothing. */
#include <valgrind/callgrind.h>

void collect_start(void)
{
    CALLGRIND_ZERO_STATS;
    CALLGRIND_START_INSTRUMENTATION;
}

/* Ends counting; what was counted is written to the next file, under a name. */
void collect_stop(const char *name)
{
    CALLGRIND_STOP_INSTRUMENTATION;
    CALLGRIND_DUMP_STATS_AT(name);
}

int collect_possible(void)
{
    return RUNNING_ON_VALGRIND;
}
