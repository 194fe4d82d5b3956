"""A lock for what a forked child may use as well."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType

__all__ = ["ProcessLock"]


class ProcessLock:
    """A lock that a thread may take again while it holds it, and that is free in a forked child.

    A thread of the parent that held it when the child was forked is not there to release it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _live_locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Take another lock in place of the parent's."""
        self._lock = threading.RLock()


_live_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _renew_after_fork() -> None:
    for lock in _live_locks:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)
