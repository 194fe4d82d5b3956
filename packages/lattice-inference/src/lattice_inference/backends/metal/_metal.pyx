"""Apple's Metal for ``device.py``: a device, its buffers, and steps.

Steps are encoded, run and waited for without the GIL.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef extern from "metal_device.h" nogil:
    ctypedef struct lattice_metal:
        pass
    ctypedef struct lattice_metal_facts:
        char name[128]
        char system[64]
        char library[4096]
        uint64_t most_buffer_bytes
        uint64_t working_set_bytes
        int32_t has_residency
    ctypedef struct lattice_metal_call:
        void *kernel
        uint64_t record
        uint32_t groups
        uint32_t count
        void *buffers[3]
        uint64_t offsets[3]
    ctypedef struct lattice_metal_copying:
        void *source
        void *target
        uint64_t source_offset
        uint64_t target_offset
        uint64_t bytes
    enum:
        METAL_OK
        METAL_NO_DEVICE
        METAL_UNSUITED
        METAL_REFUSED
        METAL_NO_MEMORY
        METAL_FAILED
        METAL_OWN_BUFFERS
        METAL_MESSAGE_BYTES
    int lattice_metal_open(const char *library, const char *source, lattice_metal **device, lattice_metal_facts *facts,
                           char *message)
    void lattice_metal_close(lattice_metal *device)
    void lattice_metal_release(void *thing)
    uint64_t lattice_metal_allocated(lattice_metal *device)
    int lattice_metal_buffer(lattice_metal *device, void *pages, uint64_t bytes, void **buffer)
    void *lattice_metal_contents(void *buffer)
    void lattice_metal_keep(lattice_metal *device, void *buffer)
    void lattice_metal_forget(lattice_metal *device, void *buffer)
    int lattice_metal_kernel(lattice_metal *device, const char *function, const uint32_t *indices,
                             const uint32_t *values, uint32_t constants, uint32_t threads, void **kernel, char *message)
    int lattice_metal_encode_calls(lattice_metal *device, void *arena, void *words, void *records, uint32_t threads,
                                   const lattice_metal_call *calls, uint64_t count, void **commands)
    int lattice_metal_encode_copies(lattice_metal *device, const lattice_metal_copying *copies, uint64_t count,
                                    void **commands)
    void lattice_metal_commit(lattice_metal *device, void *commands)
    int32_t lattice_metal_has_ended(void *commands)
    int lattice_metal_wait(void *commands, char *message)

NO_DEVICE = METAL_NO_DEVICE
UNSUITED = METAL_UNSUITED
REFUSED = METAL_REFUSED
NO_MEMORY = METAL_NO_MEMORY
FAILED = METAL_FAILED
MOST_BUFFERS = METAL_OWN_BUFFERS


class MetalError(Exception):
    """What Metal said; ``status`` says of what kind it is."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


cdef str _text(const char *characters):
    return (<bytes>characters).decode("utf-8", "replace")


cdef class Device:
    """The system's device and its library of kernels.

    Raises:
        MetalError: there is no device, or it is too old, or both the built library and the source are refused.
    """

    cdef lattice_metal *handle
    cdef readonly str name
    cdef readonly str system
    cdef readonly str library
    cdef readonly object most_buffer_bytes
    cdef readonly object working_set_bytes
    cdef readonly bint has_residency

    def __init__(self, library, source):
        cdef bytes path = None if library is None else library.encode()
        cdef bytes text = source.encode()
        cdef const char *path_text = NULL if path is None else <const char *>path
        cdef const char *source_text = text
        cdef lattice_metal_facts facts
        cdef char message[4096]
        cdef int status
        if self.handle != NULL:
            raise RuntimeError("this device is open")
        with nogil:
            status = lattice_metal_open(path_text, source_text, &self.handle, &facts, message)
        if status != METAL_OK:
            raise MetalError(status, _text(message))
        self.name, self.system, self.library = _text(facts.name), _text(facts.system), _text(facts.library)
        self.most_buffer_bytes, self.working_set_bytes = facts.most_buffer_bytes, facts.working_set_bytes
        self.has_residency = facts.has_residency

    def __dealloc__(self):
        lattice_metal_close(self.handle)

    def allocated_bytes(self):
        """Return the bytes that buffers and kernels take now."""
        return lattice_metal_allocated(self.handle)

    def kernel(self, str function, values, uint32_t threads):
        """Return a kernel: the function of that name, for ``values`` of constants by their index."""
        cdef Kernel kernel = Kernel()
        cdef bytes name = function.encode()
        cdef const char *characters = name
        cdef uint32_t indices[64]
        cdef uint32_t numbers[64]
        cdef uint32_t count = len(values)
        cdef char message[4096]
        cdef int status
        if count > 64:
            raise ValueError("a kernel has at most 64 constants")
        for i, (index, value) in enumerate(values):
            indices[i], numbers[i] = index, value
        with nogil:
            status = lattice_metal_kernel(self.handle, characters, indices, numbers, count, threads, &kernel.handle,
                                          message)
        if status != METAL_OK:
            raise MetalError(status, _text(message))
        kernel.device = self
        return kernel

    def copy(self, copies):
        """Return commands that copy: each is of source, its offset, target, its offset, and bytes."""
        cdef Commands commands = Commands()
        cdef uint64_t count = len(copies)
        cdef lattice_metal_copying *rows = <lattice_metal_copying *>calloc(max(count, 1), sizeof(lattice_metal_copying))
        cdef Buffer source, target
        cdef int status
        if rows == NULL:
            raise MemoryError
        try:
            for i, (source, first, target, begin, nbytes) in enumerate(copies):
                _check_range(source, first, nbytes)
                _check_range(target, begin, nbytes)
                rows[i].source, rows[i].source_offset = source.handle, first
                rows[i].target, rows[i].target_offset = target.handle, begin
                rows[i].bytes = nbytes
            with nogil:
                status = lattice_metal_encode_copies(self.handle, rows, count, &commands.handle)
        finally:
            free(rows)
        if status != METAL_OK:
            raise MetalError(status, "Metal gives no command buffer")
        commands.device = self
        commands.things = copies
        return commands


cdef int _check_range(Buffer buffer, uint64_t first, uint64_t nbytes) except -1:
    if first > buffer.nbytes or nbytes > buffer.nbytes - first:
        raise ValueError(f"bytes {first} to {first + nbytes} are not in a buffer of {buffer.nbytes}")
    return 0


@cython.no_gc_clear  # what it is of must be there when it is let go
cdef class Kernel:
    """A compiled kernel. Use :meth:`Device.kernel`."""

    cdef void *handle
    cdef Device device

    def __dealloc__(self):
        if self.handle != NULL:
            lattice_metal_release(self.handle)


@cython.no_gc_clear  # what it is of must be there when it is let go
cdef class Buffer:
    """Memory that the device and the CPU share: new, or whole pages that are there.

    ``pages`` begins with the latter. They keep ``pages`` alive. Its bytes are those of Python's buffer protocol.

    Raises:
        MetalError: there is no room.
    """

    cdef void *handle
    cdef Device device
    cdef object pages
    cdef bint is_kept
    cdef object __weakref__
    cdef readonly uint64_t nbytes

    def __init__(self, Device device, uint64_t nbytes, pages=None, *, bint keep=False):
        cdef const unsigned char[::1] view
        cdef void *address = NULL
        cdef int status
        if self.handle != NULL:
            raise RuntimeError("this buffer is made")
        if pages is not None:
            view = pages
            address = <void *>&view[0]
        with nogil:
            status = lattice_metal_buffer(device.handle, address, nbytes, &self.handle)
        if status != METAL_OK:
            raise MetalError(status, f"no buffer of {nbytes} bytes")
        self.device, self.nbytes, self.pages, self.is_kept = device, nbytes, pages, keep
        if keep:
            lattice_metal_keep(device.handle, self.handle)

    def __dealloc__(self):
        if self.handle != NULL:
            if self.is_kept:
                lattice_metal_forget(self.device.handle, self.handle)
            lattice_metal_release(self.handle)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, lattice_metal_contents(self.handle), self.nbytes, self.pages is not None, flags)


@cython.no_gc_clear  # what it is of must be there when it is let go
cdef class Calls:
    """Launches of kernels, made once for all steps that run them.

    Each is of a kernel, its own buffers with their offsets, where its record begins, and how many threadgroups it has.
    """

    cdef lattice_metal_call *rows
    cdef uint64_t count
    cdef object things

    def __init__(self, calls):
        cdef Kernel kernel
        cdef Buffer buffer
        if self.rows != NULL:
            raise RuntimeError("these calls are made")
        self.things = tuple(calls)  # the handles below are theirs
        self.count = len(self.things)
        self.rows = <lattice_metal_call *>calloc(max(self.count, 1), sizeof(lattice_metal_call))
        if self.rows == NULL:
            raise MemoryError
        for i, (kernel, buffers, record, groups) in enumerate(self.things):
            if len(buffers) > METAL_OWN_BUFFERS:
                raise ValueError(f"a kernel has at most {METAL_OWN_BUFFERS} buffers beside those of the step")
            self.rows[i].kernel, self.rows[i].record, self.rows[i].groups = kernel.handle, record, groups
            self.rows[i].count = len(buffers)
            for k, (buffer, offset) in enumerate(buffers):
                _check_range(buffer, offset, 0)
                self.rows[i].buffers[k], self.rows[i].offsets[k] = buffer.handle, offset

    def __dealloc__(self):
        free(self.rows)

    def __len__(self):
        return self.count

    def encode(self, Buffer arena not None, Buffer words not None, Buffer records not None, uint32_t threads):
        """Return commands that run the calls one after the other, in threadgroups of ``threads``."""
        cdef Commands commands = Commands()
        cdef int status
        with nogil:
            status = lattice_metal_encode_calls(arena.device.handle, arena.handle, words.handle, records.handle, threads,
                                                self.rows, self.count, &commands.handle)
        if status != METAL_OK:
            raise MetalError(status, "Metal gives no command buffer")
        commands.device = arena.device
        commands.things = self
        return commands


@cython.no_gc_clear  # what it is of must be there when it is let go
cdef class Commands:
    """A command buffer that was encoded. It keeps what it uses until it has ended."""

    cdef void *handle
    cdef Device device
    cdef object things

    def __dealloc__(self):
        if self.handle != NULL:
            lattice_metal_release(self.handle)

    def commit(self):
        """Let it run after those that were committed before."""
        with nogil:
            lattice_metal_commit(self.device.handle, self.handle)

    @property
    def has_ended(self):
        """Whether it has ended, well or in an error."""
        return lattice_metal_has_ended(self.handle) != 0

    def wait(self):
        """Wait for its end.

        Raises:
            MetalError: it ended in an error.
        """
        cdef char message[4096]
        cdef int status
        with nogil:
            status = lattice_metal_wait(self.handle, message)
        if status != METAL_OK:
            raise MetalError(status, _text(message))
