"""Ends engines in a forked child, where their threads do not run."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

__all__ = ["end_in_children"]


class _Endable(Protocol):
    def _end_in_child(self) -> None: ...


_known: weakref.WeakKeyDictionary[_Endable, threading.RLock] = weakref.WeakKeyDictionary()
_forking = threading.RLock()  # two threads that fork at once would each hold a lock that the other one waits for
_held: list[threading.RLock] = []


def end_in_children(owner: _Endable, lock: threading.RLock) -> None:
    """Hold ``lock`` during every fork, and call ``owner._end_in_child()`` in the child.

    Otherwise a child may inherit the lock as taken by a thread that it does not have.

    Args:
        owner: whose thread no child has; hashed by identity.
        lock: what guards it.
    """
    _known[owner] = lock


def _before_fork() -> None:
    _forking.acquire()
    for lock in list(_known.values()):
        lock.acquire()
        _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


def _in_child() -> None:
    for owner in list(_known):
        owner._end_in_child()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
