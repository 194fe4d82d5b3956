"""Checkpoints of the database's log in a thread, so that storing need not wait for the disk."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

__all__ = ["WalCheckpoints"]

_WRITTEN_BYTES = 2**23  # of vectors, from one checkpoint to the next: the log is about twice as long


class WalCheckpoints:
    """The checkpoints of one process, in a thread that lives as long as each takes.

    Where none can be made, the log grows until SQLite makes one itself.

    Args:
        path: the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = 0
        self._thread: threading.Thread | None = None

    def written(self, size: int) -> None:
        """Count bytes of vectors that were written, and begin a checkpoint when there are enough."""
        self._written += size
        if self._written < _WRITTEN_BYTES or (self._thread is not None and self._thread.is_alive()):
            return
        self._written = 0
        thread = threading.Thread(target=self._checkpoint, name="lattice-checkpoint")
        with contextlib.suppress(RuntimeError):  # Python ends, or the system has no more threads
            thread.start()
            self._thread = thread

    def wait(self) -> None:
        """Return when no checkpoint is being made any more."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _checkpoint(self) -> None:
        with contextlib.suppress(sqlite3.Error, UnicodeError):  # a damaged file is found out by those who read it
            connection = sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, isolation_level=None)
            with contextlib.closing(connection):
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # blocks no other process
