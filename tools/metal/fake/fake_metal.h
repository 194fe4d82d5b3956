/* How tests set the EMULATED device of fake_metal.m. */
#ifndef FAKE_METAL_CONTROL_H
#define FAKE_METAL_CONTROL_H

#include <stdint.h>

enum fake_setting {
    FAKE_NO_DEVICE,      /* 1: there is none */
    FAKE_MACOS,          /* the system's version, by default 15 */
    FAKE_OLD_GPU,        /* 1: without products of matrices in a simdgroup */
    FAKE_LANES,          /* of a simdgroup, by default 32 */
    FAKE_REFUSE_LIBRARY, /* 1: files are refused */
    FAKE_REFUSE_SOURCE,  /* 1: source is refused */
    FAKE_MOST_BYTES,     /* of a buffer */
    FAKE_WORKING_SET,    /* bytes */
    FAKE_ROOM,           /* bytes that buffers may have together */
    FAKE_FAIL_NEXT,      /* code of the error that the next committed command buffer ends in; 0: none */
    FAKE_IS_LATE,        /* 1: command buffers run when they are waited for */
    FAKE_NO_COMMANDS,    /* 1: there are no command buffers */
    FAKE_SEED,           /* of the order of threads */
    FAKE_SETTINGS
};

enum fake_count {
    FAKE_OBJECTS,    /* that live */
    FAKE_COMMITTED,  /* command buffers */
    FAKE_ENCODERS,   /* of calls */
    FAKE_BLITS,      /* encoders of copies */
    FAKE_DISPATCHES,
    FAKE_SWITCHES,   /* of pipelines */
    FAKE_REQUESTS,   /* of residency */
    FAKE_RESIDENT,   /* buffers */
    FAKE_NO_COPIES,  /* buffers over pages that were there */
    FAKE_FAST_MATH,  /* 1: source was compiled with it */
    FAKE_COUNTS
};

int fake_metal_load(const char *emulation); /* the emulation's library; 0: it cannot be loaded */
void fake_metal_set(enum fake_setting setting, int64_t value);
void fake_metal_reset(void); /* all settings; counts but of objects and resident buffers */
int64_t fake_metal_count(enum fake_count count);
const char *fake_metal_source(void); /* that was compiled last; "" if none was */

#endif
