"""A lock that another thread holds at a fork is free in the child."""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref

import pytest

from lattice_inference.process_lock import ProcessLock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def test_it_keeps_other_threads_out_and_lets_its_holder_in_again():
    lock, entered = ProcessLock(), []

    def enter():
        with lock:
            entered.append(True)

    with lock, lock:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(0.05)
        assert not entered
    thread.join()
    assert entered


def test_a_child_takes_a_lock_that_a_thread_of_its_parent_held():
    lock, held, release = ProcessLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python tells of threads at a fork
        child = os.fork()
    if child == 0:
        os._exit(0 if lock._lock.acquire(timeout=10) else 1)
    status = os.waitpid(child, 0)[1]
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_no_list_keeps_a_lock():
    lock = ProcessLock()
    reference = weakref.ref(lock)
    del lock
    gc.collect()
    assert reference() is None
