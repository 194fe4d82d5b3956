/* One pool a process: the first Lattice package that is imported makes it, the others adopt it.
 *
 * The pool is published as a capsule in `sys` under a name that carries the layout's version; a package whose header is of
 * another version makes a pool of its own under its own name. Include Python.h before this header.
 */
#ifndef LATTICE_POOL_CAPSULE_H
#define LATTICE_POOL_CAPSULE_H

#include "pool.h"
#include "processors.h"

#define LATTICE_POOL_CAPSULE "_lattice_pool_v1"

/* Reads a thread count from the environment variable `name`; 0 when it is unset, -1 when it is not a usable count. OpenMP's
 * variable is a `list`, whose first number counts. */
static inline int lattice_threads_from_environment(const char *name, int list)
{
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0')
        return 0;
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || (*end != '\0' && !(list && *end == ',')) || value < 1 || value > LATTICE_MAX_THREADS)
        return -1;
    return (int)value;
}

/* Returns the process's pool, or NULL with a Python exception set. Call with the GIL held. */
static inline lattice_pool *lattice_pool_shared(void)
{
    PyObject *capsule = PySys_GetObject(LATTICE_POOL_CAPSULE); /* borrowed */
    if (capsule != NULL) {
        lattice_pool *pool = (lattice_pool *)PyCapsule_GetPointer(capsule, LATTICE_POOL_CAPSULE);
        if (pool != NULL && (pool->abi != LATTICE_POOL_ABI || pool->size != (int)sizeof *pool)) {
            PyErr_SetString(PyExc_ImportError, "two Lattice packages of incompatible versions are installed: upgrade both");
            return NULL;
        }
        return pool;
    }
    int threads = lattice_threads_from_environment("LATTICE_NUM_THREADS", 0);
    if (threads < 0) {
        PyErr_Format(PyExc_ValueError, "LATTICE_NUM_THREADS must be an integer from 1 to %d, not '%s'", LATTICE_MAX_THREADS,
                     getenv("LATTICE_NUM_THREADS"));
        return NULL;
    }
    if (threads == 0)
        threads = lattice_threads_from_environment("OMP_NUM_THREADS", 1);
    if (threads <= 0)
        threads = lattice_usable_processors();
    lattice_pool *pool = lattice_pool_create(threads);
    if (pool == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    capsule = PyCapsule_New(pool, LATTICE_POOL_CAPSULE, NULL);
    if (capsule == NULL || PySys_SetObject(LATTICE_POOL_CAPSULE, capsule) != 0) {
        Py_XDECREF(capsule);
        return NULL;
    }
    Py_DECREF(capsule);
    return pool;
}

#endif
