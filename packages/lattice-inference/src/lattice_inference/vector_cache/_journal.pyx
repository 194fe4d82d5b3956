"""Binding of the journal's mapped memory: finds and stores vectors without a system call.

Python's lock keeps threads apart here. In a Python without that lock each journal has its own.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Update
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

cimport numpy as cnp

from hashlib import blake2b

import numpy as np

cnp.import_array()


cdef extern from "journal.h" nogil:
    int LJ_GENERATION
    int LJ_END
    int LJ_MOVED
    int LJ_HEADER_BYTES
    int LJ_EPOCH
    int LJ_CHANGES
    int LJ_KEY_BYTES
    int LJ_RECORD_HEADER_BYTES
    int LJ_FILTER_BITS_A_KEY
    ctypedef struct lj_block:
        pass
    uint64_t lj_load(const uint8_t* memory)
    void lj_store(uint8_t* memory, uint64_t value)
    uint64_t lj_add_one(uint8_t* memory)
    int64_t lj_milliseconds()
    uint32_t lj_checksum(const uint8_t* key, const uint8_t* vector, size_t vector_bytes)
    size_t lj_record_bytes(size_t vector, size_t space)
    void lj_write_record(
        uint8_t* place, const uint8_t* key, const uint8_t* vector, size_t vector_bytes,
        const uint8_t* space, size_t space_bytes
    )
    void lj_filter_add(lj_block* filter, size_t blocks, const uint8_t* key)
    bint lj_filter_may_hold(const lj_block* filter, size_t blocks, const uint8_t* key)


cdef extern from "lattice/object_lock.h":
    ctypedef struct lattice_object_lock:
        pass
    void lattice_lock(lattice_object_lock*) noexcept
    void lattice_unlock(lattice_object_lock*) noexcept


HEADER_BYTES = LJ_HEADER_BYTES
cdef int KEY_PLACE = LJ_RECORD_HEADER_BYTES - LJ_KEY_BYTES  # in a record
MOVED_OFFSET = LJ_MOVED


def record_bytes(size_t vector, size_t space):
    """Return the length of a record."""
    return lj_record_bytes(vector, space)


cpdef uint32_t checksum(bytes key, bytes vector) except? 0:
    """Return a record's checksum."""
    if PyBytes_GET_SIZE(key) != LJ_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return lj_checksum(
        <const uint8_t*>PyBytes_AS_STRING(key), <const uint8_t*>PyBytes_AS_STRING(vector), PyBytes_GET_SIZE(vector)
    )


def read_records(bytes data not None):
    """Return key, vector and space of the records in ``data``, up to the first invalid one.

    Damaged vectors are left out.
    """
    cdef const uint8_t* place = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef size_t left = PyBytes_GET_SIZE(data)
    cdef uint32_t fields[4]
    cdef size_t length, vector_bytes, space_bytes
    cdef const char* vector
    cdef bytes space = b""
    name = ""
    records = []
    while left >= <size_t>LJ_RECORD_HEADER_BYTES:
        memcpy(fields, place, sizeof(fields))
        length, vector_bytes, space_bytes = fields[0], fields[1], fields[3]
        if length > left or LJ_RECORD_HEADER_BYTES + vector_bytes + space_bytes > length:
            break
        vector = <const char*>place + LJ_RECORD_HEADER_BYTES
        if lj_checksum(place + KEY_PLACE, <const uint8_t*>vector, vector_bytes) == fields[2]:
            if <size_t>PyBytes_GET_SIZE(space) != space_bytes or memcmp(
                PyBytes_AS_STRING(space), vector + vector_bytes, space_bytes
            ):
                space = PyBytes_FromStringAndSize(vector + vector_bytes, space_bytes)
                name = space.decode(errors="replace")
            records.append((
                PyBytes_FromStringAndSize(<const char*>place + KEY_PLACE, LJ_KEY_BYTES),
                PyBytes_FromStringAndSize(vector, vector_bytes),
                name,
            ))
        place += length
        left -= length
    return records


cdef class MappedJournal:
    """A journal of this process and the board of all, in mapped memory.

    :meth:`find` and :meth:`append` may be called at any time from any thread: nothing in them lets go of the lock. The rest
    is for one thread at a time.

    It answers for a key from its own records, those of others that it was given, and a filter of what the database holds.
    It gives no answer if the board shows another process's change, or when the files' places must be checked again.

    Attributes:
        changes: the board's counter as of the last :meth:`see`.
        epoch: that of what takes away instead of adding.
        hits, misses: keys that :meth:`find` has answered for, found or not.
        filter_room: how many more keys the filter takes; 0 without a filter, which then answers for nothing.
    """

    cdef lattice_object_lock _lock
    cdef Py_buffer _board_view
    cdef Py_buffer _journal_view
    cdef uint8_t* _board
    cdef uint8_t* _journal
    cdef size_t _capacity
    cdef size_t _end
    cdef dict _own
    cdef dict _others
    cdef lj_block* _filter
    cdef size_t _blocks
    cdef int64_t _look_at
    cdef bint _stopped
    cdef readonly int64_t hits
    cdef readonly int64_t misses
    cdef readonly uint64_t changes
    cdef readonly uint64_t epoch
    cdef readonly int64_t filter_room

    def __cinit__(self, board, journal):
        PyObject_GetBuffer(board, &self._board_view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self._board = <uint8_t*>self._board_view.buf
        PyObject_GetBuffer(journal, &self._journal_view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self._journal = <uint8_t*>self._journal_view.buf
        self._capacity = self._journal_view.len
        self._own = {}
        self._others = {}
        self._end = LJ_HEADER_BYTES

    def __dealloc__(self):
        if self._board != NULL:
            PyBuffer_Release(&self._board_view)
        if self._journal != NULL:
            PyBuffer_Release(&self._journal_view)
        free(self._filter)

    def stop(self):
        """Answer for nothing and store nothing from now on."""
        self._stopped = True

    def begin(self, uint64_t generation, size_t moved):
        """Begin the journal anew if it ends where what was moved ends. Returns whether it does."""
        lattice_lock(&self._lock)
        try:
            if moved != self._end:
                return False
            lj_store(self._journal + LJ_END, LJ_HEADER_BYTES)
            lj_store(self._journal + LJ_MOVED, LJ_HEADER_BYTES)
            lj_store(self._journal + LJ_GENERATION, generation)
            self._end = LJ_HEADER_BYTES
            self._own.clear()
            return True
        finally:
            lattice_unlock(&self._lock)

    def forget_own(self):
        """Answer no more from the records that were written so far; they stay in the journal."""
        lattice_lock(&self._lock)
        try:
            self._own.clear()
        finally:
            lattice_unlock(&self._lock)

    def answer_from(self, dict others):
        """Answer from these records of others' journals, vectors by key, from now on."""
        lattice_lock(&self._lock)
        try:
            self._others = others
        finally:
            lattice_unlock(&self._lock)

    def see(self):
        """Note the board's state, before the data that it describes is read.

        Returns whether the epoch changed.
        """
        cdef uint64_t epoch
        lattice_lock(&self._lock)
        try:
            self.changes = lj_load(self._board + LJ_CHANGES)  # first: a remover counts the epoch before the change
            epoch = lj_load(self._board + LJ_EPOCH)
            changed = epoch != self.epoch
            self.epoch = epoch
            return changed
        finally:
            lattice_unlock(&self._lock)

    def is_current(self):
        """Whether nothing has changed since the last :meth:`see`."""
        return lj_load(self._board + LJ_CHANGES) == self.changes

    def tell(self, bint taken_away=False):
        """Tell the others that something was added, or taken away."""
        lattice_lock(&self._lock)
        try:
            if taken_away:
                lj_add_one(self._board + LJ_EPOCH)
            if lj_add_one(self._board + LJ_CHANGES) == self.changes and not taken_away:
                self.changes += 1
        finally:
            lattice_unlock(&self._lock)

    def look_in(self, int64_t milliseconds):
        """Give answers for so long, then ask to be looked after."""
        self._look_at = lj_milliseconds() + milliseconds

    cpdef bint is_due(self) noexcept:
        """Whether it is time to look whether the files are where they were."""
        return lj_milliseconds() >= self._look_at

    def find(self, keys, bint ask=False):
        """Return the vector or None for each key; or None if that takes a look at the database.

        With ``ask`` a list is returned in any case, with True for each key to look up in the database.
        """
        cdef Py_ssize_t missing
        lattice_lock(&self._lock)
        try:
            missing = 0
            if not ask and (self._stopped or lj_load(self._board + LJ_CHANGES) != self.changes or self.is_due()):
                return None
            found = []
            for key in keys:
                vector = self._own.get(key)
                if vector is not None:
                    vector = self._read(vector, key)
                if vector is None:
                    vector = self._others.get(key)
                if vector is None and (
                    self._filter == NULL
                    or not isinstance(key, bytes)
                    or PyBytes_GET_SIZE(key) != LJ_KEY_BYTES
                    or lj_filter_may_hold(self._filter, self._blocks, <const uint8_t*>PyBytes_AS_STRING(key))
                ):
                    if not ask:
                        return None
                    vector = True
                missing += vector is None
                found.append(vector)
            if not ask:
                self.misses += missing
                self.hits += len(found) - missing
            return found
        finally:
            lattice_unlock(&self._lock)

    cdef object _read(self, Py_ssize_t offset, bytes key):
        cdef uint32_t fields[4]
        memcpy(fields, self._journal + offset, sizeof(fields))
        if offset + LJ_RECORD_HEADER_BYTES + <size_t>fields[1] > self._end:
            return None
        vector = PyBytes_FromStringAndSize(<const char*>self._journal + offset + LJ_RECORD_HEADER_BYTES, fields[1])
        return vector if checksum(key, vector) == fields[2] else None

    def append(self, entries, bytes space not None, bint answering=True):
        """Store keys and vectors (bytes or arrays), all or none.

        Returns whether there was room, no need to look around first, and no array that is not contiguous.
        """
        cdef size_t space_bytes
        cdef size_t end
        cdef size_t needed
        cdef const uint8_t* name
        cdef bytes key
        cdef object vector
        cdef const uint8_t* numbers
        cdef size_t size
        lattice_lock(&self._lock)
        try:
            space_bytes = PyBytes_GET_SIZE(space)
            end = self._end
            name = <const uint8_t*>PyBytes_AS_STRING(space)
            if self._stopped or (answering and self.is_due()):
                return False
            places = self._own if len(entries) == 1 else {}  # in the table at once only if nothing can go wrong after it
            for key, vector in entries:
                if isinstance(vector, bytes):
                    numbers, size = <const uint8_t*>PyBytes_AS_STRING(vector), PyBytes_GET_SIZE(vector)
                else:
                    if not isinstance(vector, cnp.ndarray) or not cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>vector):
                        return False  # it is stored as its bytes lie
                    numbers, size = <const uint8_t*>cnp.PyArray_DATA(<cnp.ndarray>vector), cnp.PyArray_NBYTES(<cnp.ndarray>vector)
                needed = lj_record_bytes(size, space_bytes)
                if PyBytes_GET_SIZE(key) != LJ_KEY_BYTES or needed > self._capacity - end:
                    return False
                lj_write_record(
                    self._journal + end, <const uint8_t*>PyBytes_AS_STRING(key), numbers, size, name, space_bytes
                )
                places[key] = end
                end += needed
            lj_store(self._journal + LJ_END, end)
            self._end = end
            if places is not self._own:
                PyDict_Update(self._own, places)
            if lj_add_one(self._board + LJ_CHANGES) == self.changes:
                self.changes += 1
            return True
        finally:
            lattice_unlock(&self._lock)

    def make_filter(self, size_t keys):
        """Begin a filter with room for so many keys; 0 for none.

        Returns whether there was memory for it.
        """
        lattice_lock(&self._lock)
        try:
            return self._new_filter(keys)
        finally:
            lattice_unlock(&self._lock)

    cdef bint _new_filter(self, size_t keys) noexcept:
        free(self._filter)
        self._filter = NULL
        self._blocks = 0
        self.filter_room = 0
        if keys:
            self._blocks = (keys * LJ_FILTER_BITS_A_KEY + 511) // 512
            self._filter = <lj_block*>calloc(self._blocks, sizeof(lj_block))
            if self._filter != NULL:
                self.filter_room = keys
        return self._filter != NULL

    def add_to_filter(self, keys):
        """Add keys that the database holds. A filter that would be too full is dropped."""
        lattice_lock(&self._lock)
        try:
            if self._filter == NULL:
                return
            for key in keys:
                if isinstance(key, bytes) and PyBytes_GET_SIZE(key) == LJ_KEY_BYTES:
                    lj_filter_add(self._filter, self._blocks, <const uint8_t*>PyBytes_AS_STRING(key))
            self.filter_room -= len(keys)
            if self.filter_room <= 0:
                self._new_filter(0)
        finally:
            lattice_unlock(&self._lock)


cdef cnp.ndarray _plain(cnp.ndarray array):
    """Return the numbers as they are read here: int32, end to end."""
    if cnp.PyArray_TYPE(array) == cnp.NPY_INT32 and cnp.PyArray_ISCARRAY_RO(array):
        return array
    return np.ascontiguousarray(array, np.int32)


cdef bint any_set(const int32_t* values, Py_ssize_t count) noexcept:
    cdef Py_ssize_t place
    for place in range(count):
        if values[place]:
            return True
    return False


cdef class TextDigests:
    """Digests (BLAKE2b, 32 bytes) of texts as tokens, after a shared prefix."""

    cdef object _copy

    def __cinit__(self, bytes prefix not None):
        self._copy = blake2b(prefix, digest_size=LJ_KEY_BYTES).copy

    def of(self, cnp.ndarray ids, cnp.ndarray type_ids, cnp.ndarray bounds):
        """Return the digest of each text's ids, preceded by their length in bytes.

        Types are included where one is not zero.

        Args:
            ids, type_ids: (tokens,) int32.
            bounds: (texts + 1,) int32.
        """
        ids, type_ids, bounds = _plain(ids), _plain(type_ids), _plain(bounds)
        if cnp.PyArray_SIZE(ids) != cnp.PyArray_SIZE(type_ids) or cnp.PyArray_SIZE(bounds) < 1:
            raise ValueError("each token has a type, and bounds begin with 0")
        cdef const int32_t* id_data = <const int32_t*>cnp.PyArray_DATA(ids)
        cdef const int32_t* type_data = <const int32_t*>cnp.PyArray_DATA(type_ids)
        cdef const int32_t* ends = <const int32_t*>cnp.PyArray_DATA(bounds)
        cdef Py_ssize_t tokens = cnp.PyArray_SIZE(ids)
        cdef Py_ssize_t text, start, count
        cdef uint64_t size
        cdef bytes hashed
        cdef char* memory
        cdef bint typed
        digests = []
        for text in range(cnp.PyArray_SIZE(bounds) - 1):
            start = ends[text]
            count = ends[text + 1] - start
            if start < 0 or count < 0 or start + count > tokens:
                raise ValueError(f"text {text} lies outside of the {tokens} tokens")
            size = 4 * count
            typed = any_set(type_data + start, count)
            hashed = PyBytes_FromStringAndSize(NULL, 8 + size + (size if typed else 0))
            memory = PyBytes_AS_STRING(hashed)
            memcpy(memory, &size, 8)
            memcpy(memory + 8, id_data + start, size)
            if typed:
                memcpy(memory + 8 + size, type_data + start, size)
            digest = self._copy()
            digest.update(hashed)
            digests.append(digest.digest())
        return digests
