"""Which texts are being labeled right now, among all processes that share a store.

A claim is a lock of one byte of a file beside the store; the byte's place is drawn from the answer's key. The system takes
the locks of a killed process back, so no claim outlives its process.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

__all__ = ["Claims"]

MOST_OFFSET = 2**62 - 1
SUFFIX = "-claims"


class _File:
    """One open file of claims in this process.

    A process has at most one descriptor of it: closing another one would give up all of the process's locks.
    """

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        self.users = 0
        self.held: set[int] = set()


_files: dict[Path, _File] = {}
_lock = threading.Lock()


class Claims:
    """The claims of a store. Thread-safe.

    Args:
        store: the store's file.

    Raises:
        OSError: the file of claims cannot be opened.
    """

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(store.name + SUFFIX).absolute()
        with _lock:
            self._file = _files.get(self._path) or _files.setdefault(self._path, _File(self._path))
            self._file.users += 1
        self._mine: set[int] = set()

    def take(self, key: bytes) -> bool:
        """Claim a key; False where another process, or another store of this one, has it."""
        place = _place(key)
        with _lock:
            if place in self._file.held:
                return False
            try:
                fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                return False
            self._file.held.add(place)
            self._mine.add(place)
            return True

    def release(self, key: bytes) -> None:
        """Give a claim up."""
        place = _place(key)
        with _lock:
            if place in self._mine:
                fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, place)
                self._mine.discard(place)
                self._file.held.discard(place)

    def close(self) -> None:
        """Give all claims up."""
        with _lock:
            for place in self._mine:
                fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, place)
            self._file.held -= self._mine
            self._mine.clear()
            self._file.users -= 1
            if not self._file.users and _files.get(self._path) is self._file:
                del _files[self._path]
                os.close(self._file.descriptor)


def _place(key: bytes) -> int:
    return int.from_bytes(key[:8], "little") & MOST_OFFSET


def _forget_after_fork() -> None:
    """Begin without claims in a child: locks stay with the parent."""
    global _lock
    _lock = threading.Lock()
    _files.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
