/* Samples one row, for the instruction set that this file is compiled for.
 *
 * The row is read once for its greatest logit, which finds NaN and infinity too, and for the maxima of blocks. Later passes
 * look only into blocks that can matter: weights below half a unit are 0, and only a few blocks hold the most probable tokens.
 * Steps that drop tokens work on the list of those that are left.
 */
#include <float.h>
#include <math.h>

#include "lattice/simd_f64.h"
#include "sampling.h"
#include "scratch.h"
#include "selection.h"
#include "weights.h"

#define BLOCK LATTICE_SAMPLING_BLOCK

typedef struct {
    const float *row;
    int64_t count, blocks;
    float tail[BLOCK]; /* the last block, filled up with -infinity */
    float greatest;
    int64_t place; /* of the first token with the greatest logit */
} logits_view;

static const float *block_of(const logits_view *view, int64_t block)
{
    return (block + 1) * BLOCK <= view->count ? view->row + block * BLOCK : view->tail;
}

/* Finds the greatest logit. Returns 0 where it is not finite: `place` and `greatest` are then those of the first NaN, or of the
 * first infinity. */
static int view_row(logits_view *view, const float *row, int64_t count, float *maxima)
{
    view->row = row;
    view->count = count;
    view->blocks = (count + BLOCK - 1) / BLOCK;
    for (int i = 0; i < BLOCK; i++) {
        const int64_t at = (view->blocks - 1) * BLOCK + i;
        view->tail[i] = at < count ? row[at] : -INFINITY;
    }
    float greatest = -INFINITY;
    int64_t first = 0; /* block with the greatest */
    f32x16 unordered = f32x16_zero();
    for (int64_t b = 0; b < view->blocks; b++) {
        const float *logits = block_of(view, b);
        f32x16 most = f32x16_set1(-INFINITY);
        for (int i = 0; i < BLOCK; i += 16) {
            const f32x16 x = f32x16_load(logits + i);
            unordered = f32x16_select(f32x16_equal(x, x), unordered, f32x16_set1(1.0f));
            most = f32x16_max(x, most); /* the other of the two where x is NaN */
        }
        maxima[b] = f32x16_fold_max(most);
        if (maxima[b] > greatest) {
            greatest = maxima[b];
            first = b;
        }
    }
    view->greatest = greatest;
    if (f32x16_fold_max(unordered) > 0.0f) {
        view->place = 0;
        while (row[view->place] == row[view->place])
            view->place++;
        view->greatest = row[view->place];
        return 0;
    }
    view->place = first * BLOCK;
    while (row[view->place] != greatest)
        view->place++;
    return greatest < INFINITY && greatest > -INFINITY;
}

/* The logits with -infinity for each token whose bit is not set. */
static void mask_row(const float *logits, int64_t count, const uint32_t *allowed, float *row)
{
    for (int64_t start = 0; start < count; start += 32) {
        const uint32_t bits = allowed[start / 32];
        const int here = count - start < 32 ? (int)(count - start) : 32;
        if (bits == 0)
            for (int i = 0; i < here; i++)
                row[start + i] = -INFINITY;
        else
            for (int i = 0; i < here; i++)
                row[start + i] = bits >> i & 1 ? logits[start + i] : -INFINITY;
    }
}

static int overflowed(float result, float before)
{
    return isinf(result) && !isinf(before) && before == before;
}

/* Adds the bias and applies penalties. Returns 0 where a result is beyond float32. */
static int adjust_row(const lattice_row *r, float *row)
{
    const lattice_sampling *how = r->how;
    int fits = 1;
    for (int64_t i = 0; i < how->bias_count; i++) {
        float *x = &row[how->bias_ids[i]];
        const float before = *x;
        *x = before + how->bias[i];
        fits &= !overflowed(*x, before) || isinf(how->bias[i]);
    }
    for (int64_t i = 0; i < r->seen_places; i++) {
        if (r->seen[i].token < 0)
            continue;
        float *x = &row[r->seen[i].token];
        float before = *x;
        if (how->repetition != 1.0f) {
            *x = before > 0 ? before / how->repetition : before * how->repetition;
            fits &= !overflowed(*x, before);
        }
        if (r->seen[i].count > 0 && (how->presence != 0 || how->frequency != 0)) {
            before = *x;
            const float counted = how->frequency * (float)r->seen[i].count;
            *x = before - (how->presence + counted);
            fits &= !overflowed(*x, before);
        }
    }
    return fits;
}

LATTICE_INLINE f64x8 surpluses_at(const float *logits, int group, double greatest, double scale)
{
    const f32x16 x = f32x16_load(logits + group * 16);
    return surplus_of(f64x8_from_low(x), greatest, scale);
}

LATTICE_INLINE f64x8 upper_surpluses_at(const float *logits, int group, double greatest, double scale)
{
    const f32x16 x = f32x16_load(logits + group * 16);
    return surplus_of(f64x8_from_high(x), greatest, scale);
}

/* The sum of all tokens' weights; `sums` gets that of each block. */
static uint64_t weigh_row(const logits_view *view, const float *maxima, double scale, int bits, uint64_t *sums)
{
    const double greatest = view->greatest, unit = (double)(INT64_C(1) << bits), least = -bits - 2.0;
    uint64_t total = 0;
    for (int64_t b = 0; b < view->blocks; b++) {
        sums[b] = 0;
        if ((maxima[b] - greatest) * scale < least)
            continue;
        const float *logits = block_of(view, b);
        i64x8 sum = i64x8_set1(0);
        for (int group = 0; group < BLOCK / 16; group++) {
            sum = i64x8_add(sum, weight_of(surpluses_at(logits, group, greatest, scale), unit));
            sum = i64x8_add(sum, weight_of(upper_surpluses_at(logits, group, greatest, scale), unit));
        }
        total += sums[b] = sum_of_weights(sum);
    }
    return total;
}

/* The tokens whose surplus is at least `least`, into ids and surplus, in ascending order. */
static int64_t list_tokens(const logits_view *view, const lattice_scratch *s, double scale, double least)
{
    const double greatest = view->greatest;
    int64_t count = 0;
    for (int64_t b = 0; b < view->blocks; b++) {
        if (!((s->maxima[b] - greatest) * scale >= least))
            continue;
        const float *logits = block_of(view, b);
        double surplus[BLOCK];
        for (int group = 0; group < BLOCK / 16; group++) {
            f64x8_store(surplus + group * 16, surpluses_at(logits, group, greatest, scale));
            f64x8_store(surplus + group * 16 + 8, upper_surpluses_at(logits, group, greatest, scale));
        }
        for (int i = 0; i < BLOCK; i++) {
            s->ids[count] = (int32_t)(b * BLOCK + i);
            s->surplus[count] = surplus[i];
            count += surplus[i] >= least;
        }
    }
    return count;
}

/* The weights of a list, and their sum. What stands after the list in its last vector is made 0 first. */
static uint64_t weigh_list(const lattice_scratch *s, int64_t count, double unit)
{
    i64x8 sum = i64x8_set1(0);
    for (int64_t i = count; i % 8 != 0; i++)
        s->surplus[i] = -INFINITY;
    for (int64_t i = 0; i < count; i += 8) {
        const i64x8 weights = weight_of(f64x8_load(s->surplus + i), unit);
        store_weights(s->weight + i, weights);
        sum = i64x8_add(sum, weights);
    }
    return sum_of_weights(sum);
}

/* Keeps of a list the first tokens in the order of `key` until they reach `target`. */
static int64_t keep_shortest(const lattice_scratch *s, int64_t count, int weighted, uint64_t target)
{
    memcpy(s->few_keys, s->key, (size_t)count * sizeof *s->key);
    if (weighted)
        memcpy(s->few_weights, s->weight, (size_t)count * sizeof *s->weight);
    lattice_limit limit = select_shortest(s->few_keys, weighted ? s->few_weights : NULL, count, target);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t key = s->key[i];
        const int equal = key == limit.key && limit.equal > 0;
        limit.equal -= equal;
        s->ids[kept] = s->ids[i];
        s->surplus[kept] = s->surplus[i];
        s->weight[kept] = s->weight[i];
        kept += key < limit.key || equal;
    }
    return kept;
}

static int64_t keep_most_probable(const lattice_scratch *s, int64_t count, int weighted, uint64_t target)
{
    for (int64_t i = 0; i < count; i++)
        s->key[i] = key_of(s->surplus[i]);
    return keep_shortest(s, count, weighted, target);
}

/* The surplus that the k most probable tokens reach: at least k blocks have a maximum of the k-th greatest maximum or more. */
static double least_of_top_k(const logits_view *view, const lattice_scratch *s, double scale, int64_t k)
{
    if (k >= view->blocks)
        return -DBL_MAX;
    for (int64_t b = 0; b < view->blocks; b++)
        s->few_keys[b] = key_of((s->maxima[b] - (double)view->greatest) * scale);
    const double least = -value_of(select_shortest(s->few_keys, NULL, view->blocks, (uint64_t)k).key);
    return least > -DBL_MAX ? least : -DBL_MAX; /* a forbidden token is not one of them */
}

static int64_t keep_typical(const lattice_scratch *s, int64_t count, double mass, double unit)
{
    const uint64_t total = weigh_list(s, count, unit);
    int64_t products = 0;
    for (int64_t i = 0; i < count; i++)
        products += (int64_t)__builtin_rint((double)(int64_t)s->weight[i] * -s->surplus[i]);
    const double mean = (double)products / (double)(int64_t)total;
    for (int64_t i = 0; i < count; i++)
        s->key[i] = key_of(-s->surplus[i] - mean);
    count = keep_shortest(s, count, 1, reached_at(total, mass));
    double greatest = -INFINITY; /* the most probable token may be gone */
    for (int64_t i = 0; i < count; i++)
        greatest = s->surplus[i] > greatest ? s->surplus[i] : greatest;
    for (int64_t i = 0; i < count; i++)
        s->surplus[i] -= greatest;
    return count;
}

/* The first word of Philox4x64-10 with the key (seed, 0) and the counter position + 1, its upper 53 bits. */
static uint64_t random_bits(uint64_t seed, uint64_t position)
{
    uint64_t x[4] = {position + 1, position == UINT64_MAX, 0, 0}, k[2] = {seed, 0};
    for (int round = 0; round < 10; round++) {
        const unsigned __int128 a = (unsigned __int128)0xD2E7470EE14C6C93 * x[0];
        const unsigned __int128 b = (unsigned __int128)0xCA5A826395121157 * x[2];
        const uint64_t next[4] = {(uint64_t)(b >> 64) ^ x[1] ^ k[0], (uint64_t)b, (uint64_t)(a >> 64) ^ x[3] ^ k[1],
                                  (uint64_t)a};
        memcpy(x, next, sizeof x);
        k[0] += 0x9E3779B97F4A7C15;
        k[1] += 0xBB67AE8584CAA73B;
    }
    return x[0] >> 11;
}

static uint64_t drawn_of(const lattice_row *r, uint64_t total)
{
    return (uint64_t)((unsigned __int128)random_bits(r->seed, r->position) * total >> 53);
}

/* Draws among all tokens: the block by the sums, then the token in it. */
static int64_t draw_from_row(const lattice_row *r, const logits_view *view, const lattice_scratch *s, uint64_t total,
                             double unit)
{
    uint64_t left = drawn_of(r, total);
    int64_t block = 0;
    while (left >= s->sums[block])
        left -= s->sums[block++];
    uint64_t weights[BLOCK];
    const float *logits = block_of(view, block);
    for (int group = 0; group < BLOCK / 16; group++) {
        store_weights(weights + group * 16,
                      weight_of(surpluses_at(logits, group, view->greatest, r->how->scale), unit));
        store_weights(weights + group * 16 + 8,
                      weight_of(upper_surpluses_at(logits, group, view->greatest, r->how->scale), unit));
    }
    int64_t token = block * BLOCK;
    for (int i = 0; left >= weights[i]; i++, token++)
        left -= weights[i];
    return token;
}

static uint64_t sum_of_list(const lattice_scratch *s, int64_t count)
{
    uint64_t total = 0;
    for (int64_t i = 0; i < count; i++)
        total += s->weight[i];
    return total;
}

static int64_t draw_from_list(const lattice_row *r, const lattice_scratch *s, int64_t count)
{
    uint64_t left = drawn_of(r, sum_of_list(s, count));
    int64_t i = 0;
    for (; left >= s->weight[i]; i++)
        left -= s->weight[i];
    return s->ids[i];
}

/* Tells the tokens of a list that have a weight, instead of drawing one. */
static void tell_list(lattice_row *r, const lattice_scratch *s, int64_t count)
{
    const double total = (double)(int64_t)sum_of_list(s, count);
    for (int64_t i = 0; i < count; i++) {
        r->left_ids[r->left] = s->ids[i];
        r->left_probabilities[r->left] = (double)(int64_t)s->weight[i] / total;
        r->left += s->weight[i] > 0;
    }
}

/* The least surplus that a token may have whose weight is `weight` >= 1 or more, and some below it. */
static double surplus_below(uint64_t weight, int bits)
{
    return 62.0 - __builtin_clzll(weight) - bits;
}

/* Returns a token, or the place of the greatest logit where the row wants to know what may be drawn. */
static int64_t draw(lattice_row *r, const logits_view *view, const lattice_scratch *s)
{
    const lattice_sampling *how = r->how;
    const int bits = weight_bits(r->vocabulary);
    const double unit = (double)(INT64_C(1) << bits);
    const uint64_t least_weight = how->min_p > 0 ? reached_at(UINT64_C(1) << bits, how->min_p) : 0;
    const int keeps_k = how->top_k > 0 && how->top_k < r->vocabulary;
    int64_t count;
    if (keeps_k || how->typical_p < 1) {
        count = list_tokens(view, s, how->scale, keeps_k ? least_of_top_k(view, s, how->scale, how->top_k) : -DBL_MAX);
        if (keeps_k && count > how->top_k)
            count = keep_most_probable(s, count, 0, (uint64_t)how->top_k);
        if (how->typical_p < 1)
            count = keep_typical(s, count, how->typical_p, unit);
        const uint64_t total = weigh_list(s, count, unit);
        if (how->top_p < 1)
            count = keep_most_probable(s, count, 1, reached_at(total, how->top_p));
    } else {
        const uint64_t total = weigh_row(view, s->maxima, how->scale, bits, s->sums);
        if (how->top_p >= 1 && how->min_p <= 0 && r->left_ids == NULL)
            return draw_from_row(r, view, s, total, unit);
        const uint64_t target = how->top_p < 1 ? reached_at(total, how->top_p) : total;
        /* All tokens lighter than this together are no more than what need not be reached. It is halved, since of two tokens
         * with nearly the same surplus the lesser may be rounded to the greater weight. */
        const uint64_t spared = how->top_p < 1 ? (total - target) / (uint64_t)r->vocabulary : least_weight;
        count = list_tokens(view, s, how->scale, surplus_below(spared > 1 ? spared : 1, bits));
        weigh_list(s, count, unit);
        if (how->top_p < 1)
            count = keep_most_probable(s, count, 1, target);
    }
    if (how->min_p > 0) {
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++) {
            s->ids[kept] = s->ids[i];
            const uint64_t weight = s->weight[i];
            s->weight[kept] = weight;
            kept += weight >= least_weight;
        }
        count = kept;
    }
    if (r->left_ids == NULL)
        return draw_from_list(r, s, count);
    tell_list(r, s, count);
    return view->place;
}

/* Log-probabilities by the model's own logits. */
static void tell_probabilities(lattice_row *r, const lattice_scratch *s)
{
    logits_view view;
    const double log2_e = 1.4426950408889634;
    view_row(&view, r->logits, r->vocabulary, s->maxima);
    const int bits = weight_bits(r->vocabulary);
    const double unit = (double)(INT64_C(1) << bits), greatest = view.greatest;
    const double total = natural_log((double)(int64_t)weigh_row(&view, s->maxima, log2_e, bits, s->sums) * (1 / unit));
    r->logprob = (double)r->logits[r->token] - greatest - total;
    r->listed = r->top < r->vocabulary ? r->top : r->vocabulary;
    if (r->listed == 0)
        return;
    int64_t count = list_tokens(&view, s, log2_e, least_of_top_k(&view, s, log2_e, r->listed));
    if (count > r->listed)
        count = keep_most_probable(s, count, 0, (uint64_t)r->listed);
    for (int64_t place = 0; place < count; place++) { /* the greatest of those that are left, of equal ones the first */
        int64_t best = place;
        for (int64_t i = place + 1; i < count; i++)
            if (s->surplus[i] > s->surplus[best])
                best = i;
        const int32_t id = s->ids[best];
        const double surplus = s->surplus[best];
        memmove(s->ids + place + 1, s->ids + place, (size_t)(best - place) * sizeof *s->ids);
        memmove(s->surplus + place + 1, s->surplus + place, (size_t)(best - place) * sizeof *s->surplus);
        s->ids[place] = id;
        s->surplus[place] = surplus;
        r->top_ids[place] = id;
        r->top_logprobs[place] = (double)r->logits[id] - greatest - total;
    }
    /* forbidden tokens fill the list, the lowest ids first */
    for (int64_t id = 0; count < r->listed; id++) {
        if (r->logits[id] > -INFINITY)
            continue;
        r->top_ids[count] = (int32_t)id;
        r->top_logprobs[count++] = -INFINITY;
    }
}

static void refuse(lattice_row *r, const logits_view *view)
{
    r->status = LATTICE_NO_TOKEN;
    r->token = view->place;
    r->value = view->greatest;
}

static void sample_row(lattice_row *r, char *memory)
{
    lattice_scratch s;
    lattice_lay_out(memory, r->vocabulary, &s);
    logits_view view;
    const float *row = r->logits;
    r->listed = r->left = 0;
    if (r->allowed != NULL) {
        if (!view_row(&view, row, r->vocabulary, s.maxima)) { /* a NaN that the mask would hide */
            refuse(r, &view);
            return;
        }
        mask_row(row, r->vocabulary, r->allowed, s.row);
        row = s.row;
    }
    if (r->how->bias_count > 0 || r->seen_places > 0) {
        if (row != s.row)
            memcpy(s.row, row, (size_t)r->vocabulary * sizeof *row);
        row = s.row;
        if (!adjust_row(r, s.row)) {
            r->status = LATTICE_PAST_FLOAT32;
            return;
        }
    }
    if (!view_row(&view, row, r->vocabulary, s.maxima)) {
        refuse(r, &view);
        return;
    }
    r->status = LATTICE_SAMPLED;
    if (r->how->scale != 0) {
        r->token = draw(r, &view, &s);
    } else {
        r->token = view.place;
        if (r->left_ids != NULL) {
            r->left_ids[0] = view.place;
            r->left_probabilities[0] = 1.0;
            r->left = 1;
        }
    }
    if (r->top >= 0)
        tell_probabilities(r, &s);
}

const lattice_sampling_kernels LATTICE_FN(lattice_sampling_kernels) = {.sample = sample_row};
