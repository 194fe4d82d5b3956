/* A lock for what Python's global lock guards: nothing where there is one.
 *
 * A critical section of Python would not do: it may be let go of while an object is released, for example. */
#ifndef LATTICE_OBJECT_LOCK_H
#define LATTICE_OBJECT_LOCK_H

#include <Python.h>

#ifdef Py_GIL_DISABLED
typedef PyMutex lattice_object_lock;
#define lattice_lock(lock) PyMutex_Lock(lock)
#define lattice_unlock(lock) PyMutex_Unlock(lock)
#else
typedef char lattice_object_lock;
#define lattice_lock(lock) ((void)(lock))
#define lattice_unlock(lock) ((void)(lock))
#endif

#endif
