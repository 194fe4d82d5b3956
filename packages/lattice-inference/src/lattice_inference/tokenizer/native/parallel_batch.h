/* Many texts to tokens on the process's threads.
 *
 *   texts   | a b c d | e f | g h i j k | l m |     contiguous, about as many characters each
 *   tasks        0       1        2        3        claimed by whichever thread is free
 *   chunks  | tokens  | ... |           |     |     each task's own memory, joined in order by the caller
 *
 * What a text's tokens are does not depend on how texts are shared out. */
#ifndef LT_PARALLEL_BATCH_H
#define LT_PARALLEL_BATCH_H

#include "lattice/pool.h" /* first: it says which functions of the system it needs */

#include "batch.h"

typedef struct {
    lt_batch *chunks; /* in the order of the texts */
    size_t count;
    lt_batch only; /* the chunk where there is one, so that a short call asks for no memory */
    size_t size;   /* tokens in all chunks */
    size_t failed_text;       /* after an error: the first text that has one */
    int32_t failed_character; /* after LT_LONE_SURROGATE: which character of it */
} lt_batches;

/* As lt_encode_batch, on at most threads of the pool's threads; boundaries counts through all chunks. A pipeline that
 * splits by a function outside of C runs on the calling thread. Free with lt_batches_free, after an error too. */
int lt_encode_texts(const lt_pipeline *pipeline, lattice_pool *pool, int threads, const lt_input *texts,
                    const lt_input *seconds, size_t count, lt_template single, lt_template pair, lt_truncation truncation,
                    bool find_special, lt_batches *batches, int32_t *boundaries, int32_t *token_counts,
                    uint8_t *truncated);

void lt_batches_free(lt_batches *batches);

#endif
