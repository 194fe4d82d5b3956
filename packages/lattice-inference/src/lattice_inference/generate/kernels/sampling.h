/* Chooses a token from a row of logits, and says how probable it was: generate/sampler.py, row by row and in parallel.
 *
 * sampler.py is the readable form; tests compare tokens and log-probabilities bit for bit. All arithmetic on probabilities is
 * in whole numbers (weights.h), so neither vectors nor partial selections change a result.
 */
#ifndef LATTICE_SAMPLING_H
#define LATTICE_SAMPLING_H

#include <stdint.h>

struct lattice_pool; /* lattice/pool.h */

#define LATTICE_SAMPLING_BLOCK 64 /* logits whose maximum decides whether they are looked at again */

/* How tokens of one text are chosen; see SamplingConfig. */
typedef struct {
    double scale; /* log2(e) / temperature; 0 takes the greatest logit */
    double top_p, typical_p, min_p;
    int64_t top_k;
    float repetition, presence, frequency;
    int64_t bias_count;
    const int32_t *bias_ids;
    const float *bias;
} lattice_sampling;

/* A token of the context, and how often it was generated. */
typedef struct {
    int32_t token; /* -1: an empty place of the table */
    int32_t count;
} lattice_token_count;

enum {
    LATTICE_SAMPLED = 0,
    LATTICE_NO_TOKEN = 1,      /* `token` is where the greatest logit is, `value` that logit: NaN or infinity */
    LATTICE_PAST_FLOAT32 = 2,  /* a penalty or bias overflows float32: the readable form chooses, in float64 */
};

typedef struct {
    const lattice_sampling *how;
    const float *logits;
    int64_t vocabulary;
    const uint32_t *allowed;         /* a bit a token, or NULL */
    const lattice_token_count *seen; /* a table of `seen_places` places, or NULL: no penalties */
    int64_t seen_places;
    uint64_t seed, position;
    int32_t top; /* how many log-probabilities are listed; -1: none, nor the token's */
    /* NULL, or places for the whole vocabulary: the tokens that may be drawn and their probabilities; none is drawn then */
    int64_t *left_ids;
    double *left_probabilities;
    /* results */
    int32_t status;
    int64_t token;
    float value;
    double logprob;
    int32_t *top_ids; /* `top` places each, the most probable token first */
    double *top_logprobs;
    int64_t listed;
    int64_t left;
} lattice_row;

typedef struct {
    void (*sample)(lattice_row *row, char *scratch);
} lattice_sampling_kernels;

/* The kernels of an instruction set; NULL when this build has none for it. */
const lattice_sampling_kernels *lattice_sampling_table(int isa);

/* Bytes of memory that one thread needs for rows of a vocabulary. */
int64_t lattice_sampling_bytes(int64_t vocabulary);

/* Samples `count` rows on at most `threads` threads of the pool, each with `bytes` bytes of `scratch`. */
void lattice_sample_rows(lattice_row *rows, int64_t count, const lattice_sampling_kernels *kernels,
                         struct lattice_pool *pool, int threads, char *scratch, int64_t bytes);

#endif
