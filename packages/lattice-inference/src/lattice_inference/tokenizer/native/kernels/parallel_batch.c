/* Batches on several threads: see parallel_batch.h. */
#include "parallel_batch.h"

enum {
    CHUNK_CHARACTERS = 8192, /* some 100 us of work: waking a thread costs a tenth of that */
    CHUNKS_A_THREAD = 4,     /* texts of equal length differ in cost, so a thread that is done takes another chunk */
};

typedef struct {
    const lt_pipeline *pipeline;
    const lt_input *texts, *seconds;
    lt_template single, pair;
    lt_truncation truncation;
    bool find_special;
    lt_batch *chunks;
    const size_t *starts; /* the first text of each chunk, and the end of the last */
    int *statuses;
    int32_t *boundaries, *token_counts;
    uint8_t *truncated;
} work;

static void encode_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    const work *w = context;
    size_t start = w->starts[task];
    const lt_input *seconds = w->seconds != NULL ? w->seconds + start : NULL;
    w->statuses[task] = lt_encode_batch(w->pipeline, w->texts + start, seconds, w->starts[task + 1] - start, w->single,
                                        w->pair, w->truncation, w->find_special, &w->chunks[task], w->boundaries + start,
                                        w->token_counts + start, w->truncated + start);
}

static size_t characters(const lt_input *texts, const lt_input *seconds, size_t index) {
    size_t second = seconds != NULL && seconds[index].data != NULL ? (size_t)seconds[index].length : 0;
    return (size_t)texts[index].length + second;
}

static bool splits_outside(const lt_pipeline *pipeline) {
    for (size_t i = 0; i < pipeline->split_count; i++)
        if (pipeline->split_steps[i].kind == LT_SPLIT_EXTERNAL)
            return true;
    return false;
}

/* Joins the chunks: counts their tokens and makes their boundaries go on from one to the next. */
static int join(lt_batches *batches, const work *w) {
    for (size_t chunk = 0; chunk < batches->count; chunk++) {
        if (w->statuses[chunk] != LT_OK) {
            batches->failed_text = w->starts[chunk] + batches->chunks[chunk].failed_text;
            batches->failed_character = batches->chunks[chunk].failed_character;
            return w->statuses[chunk];
        }
        if (batches->size + batches->chunks[chunk].size > INT32_MAX)
            return LT_TOO_MANY_TOKENS;
        for (size_t i = w->starts[chunk] + 1; i <= w->starts[chunk + 1]; i++)
            w->boundaries[i] += (int32_t)batches->size;
        batches->size += batches->chunks[chunk].size;
    }
    return LT_OK;
}

int lt_encode_texts(const lt_pipeline *pipeline, lattice_pool *pool, int threads, const lt_input *texts,
                    const lt_input *seconds, size_t count, lt_template single, lt_template pair, lt_truncation truncation,
                    bool find_special, lt_batches *batches, int32_t *boundaries, int32_t *token_counts,
                    uint8_t *truncated) {
    size_t whole[2] = {0, count};
    int status = LT_OK;
    *batches = (lt_batches){.chunks = &batches->only, .count = 1};
    work w = {pipeline,        texts,  seconds, single,     pair,         truncation, find_special,
              batches->chunks, whole, &status,  boundaries, token_counts, truncated};
    boundaries[0] = 0;
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += characters(texts, seconds, i);
    int available = pool->get_threads(pool);
    threads = threads < available ? threads : available;
    if (threads < 2 || count < 2 || total < 2 * CHUNK_CHARACTERS || splits_outside(pipeline)) {
        encode_chunk(&w, 0, 0);
        return join(batches, &w);
    }
    size_t share = total / ((size_t)threads * CHUNKS_A_THREAD);
    share = share < CHUNK_CHARACTERS ? CHUNK_CHARACTERS : share;
    size_t most = total / share + 1; /* every chunk but the last has at least a share */
    size_t *starts = malloc((most + 1) * sizeof *starts);
    int *statuses = calloc(most, sizeof *statuses);
    lt_batch *chunks = calloc(most, sizeof *chunks);
    if (starts == NULL || statuses == NULL || chunks == NULL) {
        free(chunks);
        batches->count = 0;
        status = LT_NO_MEMORY;
    } else {
        size_t chunk = 0, filled = 0;
        starts[0] = 0;
        for (size_t i = 0; i < count; i++) {
            filled += characters(texts, seconds, i);
            if (filled >= share) {
                starts[++chunk] = i + 1;
                filled = 0;
            }
        }
        if (starts[chunk] < count)
            starts[++chunk] = count;
        batches->chunks = w.chunks = chunks;
        batches->count = chunk;
        w.starts = starts;
        w.statuses = statuses;
        if (pool->enter(pool, threads, 0) > 0) {
            pool->loop(pool, (int64_t)chunk, encode_chunk, &w);
            pool->leave(pool);
        } else { /* others compute: this thread does it by itself */
            for (size_t task = 0; task < chunk; task++)
                encode_chunk(&w, (int64_t)task, 0);
        }
        status = join(batches, &w);
    }
    free(starts);
    free(statuses);
    return status;
}

void lt_batches_free(lt_batches *batches) {
    for (size_t chunk = 0; chunk < batches->count; chunk++)
        lt_batch_free(&batches->chunks[chunk]);
    if (batches->chunks != &batches->only)
        free(batches->chunks);
    *batches = (lt_batches){0};
}
