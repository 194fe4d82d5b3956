"""Core of the in-memory cache: keys, the table, and which call computes a missing text.

It is compiled because a model evicts the processor's caches between two calls: a few microseconds of Python then take
a hundred. Each step on a table or dictionary is atomic under Python's global lock. In a Python without that lock each
object has its own, which nothing in these steps waits under.
"""

import threading
from collections import OrderedDict

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Contains, PyDict_DelItem, PyDict_GetItem
from cpython.object cimport PyObject
from libc.math cimport isfinite
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy

cimport numpy as cnp

import blake3
import numpy as np

cnp.import_array()


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    void* PyUnicode_DATA(object text)


cdef extern from "lattice/object_lock.h":
    ctypedef struct lattice_object_lock:
        pass
    void lattice_lock(lattice_object_lock*) noexcept
    void lattice_unlock(lattice_object_lock*) noexcept


KEY_BYTES = 32
ENTRY_OVERHEAD_BYTES = 320

cdef Py_ssize_t OVERHEAD = ENTRY_OVERHEAD_BYTES


cdef class TextKeys:
    """Return the keys (BLAKE3, 32 bytes) of texts.

    Each key hashes the shared prefix, then the text's length and the text.
    """

    cdef object _copy

    def __cinit__(self, bytes prefix not None):
        self._copy = blake3.blake3(prefix).copy

    cpdef bytes key(self, str text):
        """Return the key of a text."""
        cdef const char* data
        cdef uint64_t size
        cdef bytes encoded
        if text is None:
            raise TypeError("a text is a str, not None")
        if PyUnicode_IS_ASCII(text):
            data, size = <const char*>PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text)
        else:
            encoded = text.encode()
            data, size = PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded)
        counted = PyBytes_FromStringAndSize(NULL, 8 + size)
        memcpy(PyBytes_AS_STRING(counted), &size, 8)
        memcpy(PyBytes_AS_STRING(counted) + 8, data, size)
        hasher = self._copy()
        hasher.update(counted)
        return hasher.digest()

    def keys(self, texts):
        """Return the keys of some texts."""
        return [self.key(text) for text in texts]


cdef class CachedEmbedding:
    """A vector and what is known about its text. Immutable.

    Attributes:
        data: the vector's float32 numbers as bytes.
        token_count: tokens that the model read; -1 if unknown.
        truncated: whether the text was cut at the model's token limit.
        origin: what the vectors of one space have in common.
        owner: who stored it; only the same service takes a truncated text's vector back.
    """

    cdef readonly bytes data
    cdef readonly object origin
    cdef readonly bytes owner
    cdef readonly int32_t token_count
    cdef readonly bint truncated

    def __init__(self, bytes data not None, *, int32_t token_count, bint truncated, origin, bytes owner=b""):
        self.data = data
        self.token_count = token_count
        self.truncated = truncated
        self.origin = origin
        self.owner = owner

    @property
    def vector(self):
        """The vector, read-only, without a copy."""
        return np.frombuffer(self.data, np.float32)

    def __repr__(self):
        return f"CachedEmbedding({len(self.data) // 4} float32, tokens={self.token_count}, truncated={self.truncated})"


cdef class Shard:
    """One table: entries in the order of their last use."""

    cdef lattice_object_lock _lock
    cdef readonly object capacity
    cdef readonly object max_bytes
    cdef readonly object entries
    cdef object _move_to_end
    cdef object _pop_oldest
    cdef Py_ssize_t _most_entries
    cdef Py_ssize_t _most_bytes
    cdef readonly Py_ssize_t bytes_held
    cdef readonly Py_ssize_t hits
    cdef readonly Py_ssize_t misses
    cdef readonly Py_ssize_t evictions

    def __init__(self, capacity, max_bytes):
        self.capacity = capacity
        self.max_bytes = max_bytes
        self._most_entries = -1 if capacity is None else capacity
        self._most_bytes = -1 if max_bytes is None else max_bytes
        self.entries = OrderedDict()
        self._move_to_end = self.entries.move_to_end
        self._pop_oldest = self.entries.popitem

    cpdef CachedEmbedding get(self, bytes key):
        cdef PyObject* found
        cdef CachedEmbedding entry = None
        lattice_lock(&self._lock)
        try:
            found = PyDict_GetItem(self.entries, key)
            if found == NULL:
                self.misses += 1
            else:
                entry = <CachedEmbedding>found
                self.hits += 1
                try:
                    self._move_to_end(key)
                except KeyError:  # it made room for another in the meantime
                    pass
        finally:
            lattice_unlock(&self._lock)
        return entry

    cpdef CachedEmbedding peek(self, bytes key):
        cdef PyObject* found
        cdef CachedEmbedding entry = None
        lattice_lock(&self._lock)
        try:
            found = PyDict_GetItem(self.entries, key)
            if found != NULL:
                entry = <CachedEmbedding>found
        finally:
            lattice_unlock(&self._lock)
        return entry

    cpdef put(self, bytes key, CachedEmbedding entry):
        if key is None or entry is None:
            raise TypeError("a shard keeps an entry under a key, and neither is None")
        lattice_lock(&self._lock)
        try:
            self._put(key, entry)
        finally:
            lattice_unlock(&self._lock)

    cdef _put(self, bytes key, CachedEmbedding entry):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(entry.data) + OVERHEAD
        if PyDict_Contains(self.entries, key):
            replaced = self.entries.pop(key, None)
            if replaced is not None:
                self.bytes_held -= PyBytes_GET_SIZE((<CachedEmbedding>replaced).data) + OVERHEAD
        if 0 <= self._most_bytes < size:
            return
        self.entries[key] = entry
        self.bytes_held += size
        while (0 <= self._most_entries < len(self.entries)) or (0 <= self._most_bytes < self.bytes_held):
            _, oldest = self._pop_oldest(False)
            self.bytes_held -= PyBytes_GET_SIZE((<CachedEmbedding>oldest).data) + OVERHEAD
            self.evictions += 1

    def clear(self):
        lattice_lock(&self._lock)
        try:
            self.entries.clear()
            self.bytes_held = 0
        finally:
            lattice_unlock(&self._lock)


LOOK_SECONDS = 0.05  # between two looks at a cancellation, by who waits for another's work


cdef class Flight:
    """The work of one thread, its leader, on some keys; others may wait for it.

    Nearly every flight ends without a passenger: what they wait on is made for the first of them.
    """

    cdef lattice_object_lock _lock
    cdef object _landed
    cdef dict _results
    cdef bint _over

    def board(self):
        """Be ready for :meth:`wait`."""
        cdef object landed
        cdef bint over
        if self._landed is None and not self._over:
            landed = threading.Event()
            lattice_lock(&self._lock)
            try:
                if self._landed is None:  # another may have boarded meanwhile
                    self._landed = landed
                landed = self._landed
                over = self._over
            finally:
                lattice_unlock(&self._lock)
            if over:
                landed.set()

    def wait(self, key, is_cancelled=None):
        """Wait for the leader and return its result for ``key``, or None if it failed.

        Call :meth:`board` first.

        ``is_cancelled`` is asked now and then; where it says so, this returns None before the leader has ended.
        """
        cdef bint over
        while True:
            lattice_lock(&self._lock)
            try:
                over = self._over
            finally:
                lattice_unlock(&self._lock)
            if over or self._landed.wait(None if is_cancelled is None else LOOK_SECONDS):
                return self._results.get(key)
            if is_cancelled():
                return None

    cpdef land(self, dict results):
        """Let the waiting calls go on; later ones need not wait."""
        cdef object landed
        lattice_lock(&self._lock)
        try:
            self._results = results
            self._over = True
            landed = self._landed
        finally:
            lattice_unlock(&self._lock)
        if landed is not None:
            landed.set()


cdef class SingleFlight:
    """Who works on which keys.

    Each caller of :meth:`claim` must :meth:`finish` its flight before it waits for another's: this prevents deadlock.
    """

    cdef lattice_object_lock _lock
    cdef dict _flights
    cdef object __weakref__

    def __cinit__(self):
        self._flights = {}

    def claim(self, keys):
        """Return a flight, the keys that it must work on, and the flights that work on the others.

        The last is a mapping by key.
        """
        flight = Flight()
        mine = []
        theirs = {}
        for key in keys:
            other = self._flights.setdefault(key, flight)
            if other is flight:
                mine.append(key)
            else:
                other.board()
                theirs[key] = other
        return flight, mine, theirs

    cpdef finish(self, Flight flight, keys, dict results):
        """End a flight.

        What is not in ``results`` has failed; the calls that wait for it may compute it themselves.
        """
        lattice_lock(&self._lock)
        try:
            for key in keys:
                if self._flights.get(key) is flight:  # after a fork it may belong to no flight, or another one
                    del self._flights[key]
        finally:
            lattice_unlock(&self._lock)
        flight.land(results)

    cdef Flight claim_one(self, key):
        """Return a flight for the key, or None where somebody else works on it."""
        flight = Flight()
        return flight if self._flights.setdefault(key, flight) is flight else None

    def forget(self):
        """Forget every flight: a forked child does not have the leaders of its parent."""
        self._flights = {}


cdef class Landing:
    """One unknown text between its look-up and its vector. It must be kept or given up."""

    cdef bytes _key
    cdef Shard _shard
    cdef SingleFlight _flights
    cdef Flight _flight

    def keep(self, cnp.ndarray vectors not None, cnp.ndarray token_counts not None, cnp.ndarray truncated not None, origin, bytes owner not None):
        """Keep the only row of a result and pass it to the waiting calls.

        The arrays are those of EmbeddingResult. Returns False, and does nothing, if the row holds NaN or infinity.
        """
        cdef const float* numbers = <const float*>cnp.PyArray_DATA(vectors)
        cdef Py_ssize_t place
        cdef float zero = 0
        if cnp.PyArray_SIZE(token_counts) != 1 or cnp.PyArray_SIZE(truncated) != 1:
            raise ValueError("a result of one text was expected")
        for place in range(cnp.PyArray_SIZE(vectors)):
            zero += numbers[place] * 0  # NaN, if any of them is no number or infinite
        if not isfinite(zero):
            return False
        entry = <CachedEmbedding>CachedEmbedding.__new__(CachedEmbedding)
        entry.data = PyBytes_FromStringAndSize(<const char*>numbers, 4 * cnp.PyArray_SIZE(vectors))
        entry.token_count = (<const int32_t*>cnp.PyArray_DATA(token_counts))[0]
        entry.truncated = (<const uint8_t*>cnp.PyArray_DATA(truncated))[0] != 0
        entry.origin = origin
        entry.owner = owner
        self._shard.put(self._key, entry)
        self._land({self._key: entry})
        return True

    def give_up(self):
        """Tell waiting calls that there is no vector, unless it was kept."""
        if self._flight is not None:
            self._land({})

    cdef _land(self, dict results):
        cdef dict flights
        lattice_lock(&self._flights._lock)
        try:
            flights = self._flights._flights
            if PyDict_GetItem(flights, self._key) == <PyObject*>self._flight:  # not so after a fork
                PyDict_DelItem(flights, self._key)
        finally:
            lattice_unlock(&self._flights._lock)
        flight, self._flight = self._flight, None
        flight.land(results)


def find(TextKeys keys not None, str text not None, list shards not None, bytes owner not None):
    """Return the entry of a known text, else None.

    None, and nothing is counted, also for a text that was truncated for another service.
    """
    key = keys.key(text)
    shard = <Shard>shards[(<uint8_t>PyBytes_AS_STRING(key)[0]) & (len(shards) - 1)]
    entry = shard.peek(key)
    return None if entry is None or (entry.truncated and entry.owner != owner) else shard.get(key)


def find_or_claim(TextKeys keys not None, str text not None, list shards not None, bytes owner not None, SingleFlight flights not None):
    """Look a text up and return its entry, or claim it.

    None if that would have to wait for another call.
    """
    key = keys.key(text)
    shard = <Shard>shards[(<uint8_t>PyBytes_AS_STRING(key)[0]) & (len(shards) - 1)]
    entry = shard.get(key)
    if entry is not None:
        return None if entry.truncated and entry.owner != owner else entry
    flight = flights.claim_one(key)
    if flight is None:
        return None
    landing = <Landing>Landing.__new__(Landing)
    landing._key = key
    landing._shard = shard
    landing._flights = flights
    landing._flight = flight
    entry = shard.peek(key)  # another call may have finished between the look-up and the claim
    if entry is not None:
        landing._land({key: entry})
        return None if entry.truncated and entry.owner != owner else entry
    return landing
