/* One step of a normalizer or pre-tokenizer: what it does, and with what. */
#ifndef LT_STEP_H
#define LT_STEP_H

#include <stdint.h>

typedef struct {
    uint8_t kind;         /* an lt_normalize_step or an lt_split_step */
    const void *argument; /* the kind's own struct, or NULL for a kind that needs none; belongs to the pipeline's owner */
} lt_step;

#endif
