"""Keeps connections from crossing a fork: closed before it, opened again on next use."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

__all__ = ["close_at_forks"]


class _Closable(Protocol):
    def close(self) -> None: ...


_open: weakref.WeakKeyDictionary[_Closable, threading.RLock] = weakref.WeakKeyDictionary()
_held: list[threading.RLock] = []


def close_at_forks(owner: _Closable, lock: threading.RLock) -> None:
    """Close ``owner`` before every fork, and hold ``lock`` until the fork is done.

    This ends with the owner's life.

    Args:
        owner: what has a connection; hashed by identity.
        lock: what it opens its connection under.
    """
    _open[owner] = lock


def _before_fork() -> None:
    for owner, lock in list(_open.items()):
        lock.acquire()
        _held.append(lock)
        owner.close()


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
