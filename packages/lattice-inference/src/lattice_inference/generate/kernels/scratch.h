/* The memory in which one thread samples one row at a time. */
#ifndef LATTICE_SAMPLING_SCRATCH_H
#define LATTICE_SAMPLING_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#include "sampling.h"

#define LATTICE_SCRATCH_ALIGNMENT 64
#define LATTICE_SCRATCH_MARGIN 64 /* elements past the end that whole vectors may read and write */

typedef struct {
    float *row;           /* the logits after mask, bias and penalties */
    float *maxima;        /* of each block of the row */
    double *surpluses;    /* of those maxima */
    uint64_t *sums;       /* of each block's weights */
    /* the tokens that are left, in ascending order */
    int32_t *ids;
    double *surplus;
    uint64_t *weight;
    uint64_t *key;
    /* what a selection still has to choose from */
    uint64_t *few_keys;
    uint64_t *few_weights;
} lattice_scratch;

static inline char *lattice_part(char *memory, int64_t *used, int64_t count, int64_t element)
{
    char *part = memory == NULL ? NULL : memory + *used;
    const int64_t bytes = (count + LATTICE_SCRATCH_MARGIN) * element;
    *used += (bytes + LATTICE_SCRATCH_ALIGNMENT - 1) / LATTICE_SCRATCH_ALIGNMENT * LATTICE_SCRATCH_ALIGNMENT;
    return part;
}

/* Lays the parts out for a vocabulary in `memory`, which may be NULL, and returns how many bytes they take. */
static inline int64_t lattice_lay_out(char *memory, int64_t vocabulary, lattice_scratch *s)
{
    const int64_t blocks = (vocabulary + LATTICE_SAMPLING_BLOCK - 1) / LATTICE_SAMPLING_BLOCK;
    int64_t used = 0;
    s->row = (float *)lattice_part(memory, &used, vocabulary, sizeof *s->row);
    s->maxima = (float *)lattice_part(memory, &used, blocks, sizeof *s->maxima);
    s->surpluses = (double *)lattice_part(memory, &used, blocks, sizeof *s->surpluses);
    s->sums = (uint64_t *)lattice_part(memory, &used, blocks, sizeof *s->sums);
    s->ids = (int32_t *)lattice_part(memory, &used, vocabulary, sizeof *s->ids);
    s->surplus = (double *)lattice_part(memory, &used, vocabulary, sizeof *s->surplus);
    s->weight = (uint64_t *)lattice_part(memory, &used, vocabulary, sizeof *s->weight);
    s->key = (uint64_t *)lattice_part(memory, &used, vocabulary, sizeof *s->key);
    s->few_keys = (uint64_t *)lattice_part(memory, &used, vocabulary, sizeof *s->few_keys);
    s->few_weights = (uint64_t *)lattice_part(memory, &used, vocabulary, sizeof *s->few_weights);
    return used;
}

#endif
