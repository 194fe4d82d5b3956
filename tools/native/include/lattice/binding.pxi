# Shared beginning of the Cython bindings: instruction sets by name, and the process's thread pool.
#
# Included as text by each binding, which defines two names for it, the second one before the include:
#
#     cdef bint has_kernels(int isa)    whether its build has kernels for a level
#     REFUSED                           the exception for a level or a number of threads that cannot be

import operator
import os

cdef extern from "lattice/cpu.h":
    int LATTICE_ISA_COUNT
    int lattice_isa_available(int isa)
    int lattice_isa_select(const char *requested)
    const char *lattice_isa_name(int isa)

cdef extern from "lattice/pool_capsule.h":
    ctypedef struct lattice_pool:
        int (*get_threads)(lattice_pool *pool)
        void (*set_threads)(lattice_pool *pool, int threads)
    int LATTICE_MAX_THREADS
    lattice_pool *lattice_pool_shared() except NULL

cdef lattice_pool *shared_pool() except NULL:
    """Return the process's pool.

    A wrong LATTICE_NUM_THREADS is refused as the package refuses arguments.
    """
    try:
        return lattice_pool_shared()
    except ValueError as error:
        raise REFUSED(str(error)) from None


cdef lattice_pool *pool = shared_pool()


cdef int level_of(requested) except -1:
    """Return the number of the instruction set.

    It is ``requested``, else ``LATTICE_ISA``, else the best one.
    """
    name = os.environ.get("LATTICE_ISA", "") if requested is None else requested
    cdef int isa = lattice_isa_select(name.encode(errors="replace")) if isinstance(name, str) else -1
    if isa == -1:
        known = ", ".join(lattice_isa_name(i).decode() for i in range(LATTICE_ISA_COUNT))
        raise REFUSED(f"there is no instruction set named {name!r}; LATTICE_ISA and isa take one of: {known}")
    if isa == -2 or not has_kernels(isa):
        raise REFUSED(f"this CPU cannot run {name!r}; it can run: {', '.join(available_isas())}")
    return isa


def available_isas():
    """Return the names of this CPU's and build's instruction sets, slowest first."""
    return [
        lattice_isa_name(isa).decode()
        for isa in range(LATTICE_ISA_COUNT)
        if lattice_isa_available(isa) and has_kernels(isa)
    ]


def get_num_threads():
    """Return how many threads the process's pool may use."""
    return pool.get_threads(pool)


def set_num_threads(threads):
    """Set how many threads the process's pool may use, from 1 to 256."""
    pool.set_threads(pool, thread_count(threads))


cdef int thread_count(threads) except -1:
    """Return a number of threads given as an integer of Python or NumPy; refuse anything else."""
    count = 0
    if not isinstance(threads, bool):
        try:
            count = operator.index(threads)
        except TypeError:
            pass
    if not 1 <= count <= LATTICE_MAX_THREADS:
        try:
            given = repr(threads)
        except ValueError:  # an integer of more digits than Python writes out
            given = "a huge integer"
        given = given if len(given) <= 80 else f"{given[:77]}..."
        raise REFUSED(f"threads is {given}; it must be an integer from 1 to {LATTICE_MAX_THREADS}")
    return count
