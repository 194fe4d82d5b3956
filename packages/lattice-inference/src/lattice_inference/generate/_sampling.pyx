"""Binding of the sampling kernels: checks of rows and memory, then one call without the GIL."""

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import numpy as np

from lattice_inference.errors import InvalidInputError

REFUSED = InvalidInputError
include "lattice/binding.pxi"

cdef extern from "sampling.h" nogil:
    int LATTICE_SAMPLED, LATTICE_NO_TOKEN, LATTICE_PAST_FLOAT32
    ctypedef struct lattice_sampling:
        double scale, top_p, typical_p, min_p
        int64_t top_k
        float repetition, presence, frequency
        int64_t bias_count
        const int32_t *bias_ids
        const float *bias
    ctypedef struct lattice_token_count:
        int32_t token, count
    ctypedef struct lattice_row:
        const lattice_sampling *how
        const float *logits
        int64_t vocabulary
        const uint32_t *allowed
        const lattice_token_count *seen
        int64_t seen_places
        uint64_t seed, position
        int32_t top, status
        int64_t token
        float value
        double logprob
        int32_t *top_ids
        double *top_logprobs
        int64_t listed
        int64_t *left_ids
        double *left_probabilities
        int64_t left
    ctypedef struct lattice_sampling_kernels:
        pass
    const lattice_sampling_kernels *lattice_sampling_table(int isa)
    int64_t lattice_sampling_bytes(int64_t vocabulary)
    void lattice_sample_rows(lattice_row *rows, int64_t count, const lattice_sampling_kernels *kernels, lattice_pool *,
                             int threads, char *scratch, int64_t bytes)

SAMPLED, NO_TOKEN, PAST_FLOAT32 = LATTICE_SAMPLED, LATTICE_NO_TOKEN, LATTICE_PAST_FLOAT32
MOST_VOCABULARY = 1 << 30
MOST_LISTED = 1 << 10
FIRST_PLACES = 16

cdef bint has_kernels(int isa):
    return lattice_sampling_table(isa) != NULL


cdef class TokenCounts:
    """Which tokens were in a context and how often each was generated: a small hash table."""

    cdef lattice_token_count *table
    cdef readonly Py_ssize_t used, places
    cdef readonly int32_t greatest

    def __cinit__(self):
        self.places, self.greatest = FIRST_PLACES, -1
        self.table = _empty_table(FIRST_PLACES)

    def __dealloc__(self):
        free(self.table)

    def add(self, int32_t token, int count):
        """Add ``count`` to how often ``token`` was generated; 0 only makes it known."""
        if token < 0:
            raise ValueError(f"there is no token {token}")
        cdef lattice_token_count *place = _place_of(self.table, self.places, token)
        if place.token < 0:
            if 2 * (self.used + 1) > self.places:
                self._grow()
                place = _place_of(self.table, self.places, token)
            self.used += 1
            place.token = token
            self.greatest = max(self.greatest, token)
        place.count += count

    def copy(self):
        """Return another table with the same counts."""
        cdef TokenCounts other = TokenCounts()
        cdef lattice_token_count *table = _empty_table(self.places)
        memcpy(table, self.table, self.places * sizeof(lattice_token_count))
        free(other.table)
        other.table, other.places, other.used, other.greatest = table, self.places, self.used, self.greatest
        return other

    def items(self):
        """Return the tokens and their counts, as a dict."""
        return {self.table[i].token: self.table[i].count for i in range(self.places) if self.table[i].token >= 0}

    cdef int _grow(self) except -1:
        cdef lattice_token_count *larger = _empty_table(2 * self.places)
        cdef Py_ssize_t i
        for i in range(self.places):
            if self.table[i].token >= 0:
                _place_of(larger, 2 * self.places, self.table[i].token)[0] = self.table[i]
        free(self.table)
        self.table = larger
        self.places *= 2
        return 0


cdef lattice_token_count *_empty_table(Py_ssize_t places) except NULL:
    cdef lattice_token_count *table = <lattice_token_count *>calloc(places, sizeof(lattice_token_count))
    if table == NULL:
        raise MemoryError
    cdef Py_ssize_t i
    for i in range(places):
        table[i].token = -1
    return table


cdef lattice_token_count *_place_of(lattice_token_count *table, Py_ssize_t places, int32_t token) noexcept nogil:
    """Return where a token is or would be; half of the places at least are empty."""
    cdef uint32_t place = (<uint32_t>token * <uint32_t>2654435769) & <uint32_t>(places - 1)
    while table[place].token >= 0 and table[place].token != token:
        place = (place + 1) & <uint32_t>(places - 1)
    return table + place


cdef class RowSettings:
    """How the tokens of one text are chosen, and the counts for its penalties.

    ``scale`` is log2(e) / temperature, or 0 for the most probable token. ``top`` is the number of log-probabilities to list,
    -1 for none. ``bias`` maps tokens below ``vocabulary`` to numbers.
    """

    cdef lattice_sampling how
    cdef readonly uint64_t seed
    cdef readonly int64_t vocabulary
    cdef readonly int top
    cdef readonly TokenCounts counts
    cdef int32_t *bias_ids
    cdef float *bias

    def __cinit__(
        self, *, double scale, double top_p, double typical_p, double min_p, int64_t top_k, double repetition, double presence,
        double frequency, dict bias, uint64_t seed, int64_t vocabulary, int top, TokenCounts counts,
    ):
        cdef Py_ssize_t i
        if not 1 <= vocabulary <= MOST_VOCABULARY or not -1 <= top <= MOST_LISTED:
            raise ValueError(f"no rows of {vocabulary} logits with {top} log-probabilities")
        # NaN is none of these
        if not (0 <= scale < INFINITY and 0 <= top_p and 0 <= typical_p and 0 <= min_p <= 1):
            raise ValueError(f"no token is chosen with the scale {scale} and the shares {top_p}, {typical_p} and {min_p}")
        memset(&self.how, 0, sizeof(self.how))
        self.bias_ids = <int32_t *>malloc(max(1, len(bias)) * sizeof(int32_t))
        self.bias = <float *>malloc(max(1, len(bias)) * sizeof(float))
        if self.bias_ids == NULL or self.bias == NULL:
            raise MemoryError
        for i, (token, value) in enumerate(bias.items()):
            if not 0 <= token < vocabulary:
                raise ValueError(f"there is no token {token}")
            self.bias_ids[i], self.bias[i] = token, value
        self.how.scale, self.how.top_p, self.how.typical_p, self.how.min_p = scale, top_p, typical_p, min_p
        self.how.top_k = top_k
        self.how.repetition, self.how.presence, self.how.frequency = <float>repetition, <float>presence, <float>frequency
        self.how.bias_count, self.how.bias_ids, self.how.bias = len(bias), self.bias_ids, self.bias
        self.seed, self.vocabulary, self.top, self.counts = seed, vocabulary, top, counts

    def __dealloc__(self):
        free(self.bias_ids)
        free(self.bias)


cdef class Scratch:
    """Memory for the threads of one call; kept for the next."""

    cdef char *data
    cdef int64_t bytes

    def __cinit__(self, int64_t bytes):
        self.bytes = bytes
        self.data = <char *>malloc(bytes)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.data)


cdef list idle_scratches = []  # append and pop are atomic, with the GIL and without


cdef Scratch _take_scratch(int64_t bytes):
    cdef Scratch scratch
    try:
        scratch = idle_scratches.pop()
        if scratch.bytes >= bytes:
            return scratch
    except IndexError:
        pass
    return Scratch(bytes)


cdef class RowList:
    """C memory of a call's rows and their results."""

    cdef lattice_row *rows
    cdef int32_t *top_ids
    cdef double *top_logprobs

    def __cinit__(self, Py_ssize_t count, Py_ssize_t listed):
        self.rows = <lattice_row *>calloc(max(1, count), sizeof(lattice_row))
        self.top_ids = <int32_t *>malloc(max(1, listed) * sizeof(int32_t))
        self.top_logprobs = <double *>malloc(max(1, listed) * sizeof(double))
        if self.rows == NULL or self.top_ids == NULL or self.top_logprobs == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.rows)
        free(self.top_ids)
        free(self.top_logprobs)


cdef int _fill_row(
    lattice_row *row, const float[:, :] logits, Py_ssize_t index, RowSettings settings, uint64_t position, object bits
) except -1:
    """Set what a row is sampled by; the caller keeps the settings, logits and bits."""
    cdef const uint32_t[::1] allowed
    if not 0 <= index < logits.shape[0] or logits.strides[1] != sizeof(float):
        raise ValueError(f"there is no row {index} among {logits.shape[0]}, or rows are not contiguous")
    if settings.vocabulary > logits.shape[1]:
        raise ValueError(f"a row of {logits.shape[1]} logits for a vocabulary of {settings.vocabulary}")
    row.how, row.vocabulary, row.seed, row.top = &settings.how, settings.vocabulary, settings.seed, settings.top
    row.logits = &logits[index, 0]
    row.position = position
    if bits is not None:
        allowed = bits
        if allowed.shape[0] * 32 < settings.vocabulary:
            raise ValueError(f"a mask of {allowed.shape[0]} words for a vocabulary of {settings.vocabulary}")
        row.allowed = &allowed[0]
    if settings.counts is not None:
        if settings.counts.greatest >= settings.vocabulary:
            raise ValueError(f"token {settings.counts.greatest} was counted, and a row has {settings.vocabulary} tokens")
        row.seen, row.seen_places = settings.counts.table, settings.counts.places
    return 0


cdef _run(RowList native, Py_ssize_t count, int64_t vocabulary, isa, int threads):
    cdef const lattice_sampling_kernels *kernels = lattice_sampling_table(_level(isa))
    cdef int64_t bytes = lattice_sampling_bytes(vocabulary)
    cdef Scratch scratch = _take_scratch(bytes * threads)
    with nogil:
        lattice_sample_rows(native.rows, count, kernels, pool, threads, scratch.data, bytes)
    idle_scratches.append(scratch)


def sample(const float[:, :] logits, draws, rows, *, isa=None, threads=None):
    """Choose a token from each of the ``rows`` of ``logits``.

    ``draws`` has for each row (sampler, position, allowed): an object whose ``settings`` are RowSettings, an integer, and None
    or uint32 with a bit for each token.
    Returns for each row (status, token, value, logprob, top): the status SAMPLED with the log-probabilities, or
    NO_TOKEN with the place and value of the greatest logit, or PAST_FLOAT32. ``logprob`` is None where none is wanted.
    """
    cdef Py_ssize_t count = len(draws), i, j, listed = 0
    cdef int64_t vocabulary = 1
    cdef RowSettings settings
    cdef lattice_row *row
    cdef int usable = pool.get_threads(pool) if threads is None else thread_count(threads)
    if len(rows) != count:
        raise ValueError(f"{len(rows)} rows of logits for {count} draws")
    for sampler, _, _ in draws:
        settings = sampler.settings
        listed += max(0, settings.top)
        vocabulary = max(vocabulary, settings.vocabulary)
    cdef RowList native = RowList(count, listed)
    listed = 0
    for i in range(count):
        sampler, position, bits = draws[i]
        settings = sampler.settings
        row = &native.rows[i]
        _fill_row(row, logits, rows[i], settings, position, bits)
        row.top_ids, row.top_logprobs = native.top_ids + listed, native.top_logprobs + listed
        listed += max(0, settings.top)
    if count:
        _run(native, count, vocabulary, isa, max(1, min(usable, count)))
    results = []
    for i in range(count):
        row = &native.rows[i]
        sampled = row.status == LATTICE_SAMPLED and row.top >= 0
        top = tuple([(row.top_ids[j], row.top_logprobs[j]) for j in range(row.listed)]) if sampled else ()
        results.append((row.status, row.token, row.value, row.logprob if sampled else None, top))
    return results


def distribution(const float[:, :] logits, RowSettings settings not None, allowed, *, isa=None):
    """Return (status, token, value, ids, probabilities) of one row.

    The ids are the tokens that :func:`sample` may draw.
    """
    cdef RowList native = RowList(1, 0)
    cdef lattice_row *row = &native.rows[0]
    ids = np.empty(settings.vocabulary + 1, np.int64)  # a place more, which the last token may overwrite
    probabilities = np.empty(settings.vocabulary + 1, np.float64)
    cdef int64_t[::1] id_places = ids
    cdef double[::1] places = probabilities
    _fill_row(row, logits, 0, settings, 0, allowed)
    row.top = -1
    row.left_ids, row.left_probabilities = &id_places[0], &places[0]
    _run(native, 1, settings.vocabulary, isa, 1)
    return row.status, row.token, row.value, ids[: row.left].copy(), probabilities[: row.left].copy()


cdef int best_level = -1


cdef int _level(isa) except -1:
    global best_level
    if isa is not None:
        return level_of(isa)
    if best_level < 0:
        best_level = level_of(None)
    return best_level
