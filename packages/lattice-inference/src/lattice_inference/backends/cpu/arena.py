"""Memory for steps: taken for each, kept for the next, given back after a burst."""

from __future__ import annotations

import threading

from lattice_inference.backends.cpu._cpu import Memory

__all__ = ["ArenaPool"]

GRANULE = 1 << 18
"""Arenas grow in steps of this many bytes, so that batches of nearly one size share them."""


class ArenaPool:
    """Lends arenas to concurrent steps. Thread-safe.

    At most ``keep_bytes`` of idle memory stay here; what a larger step needed goes back to the operating system when it
    ends.
    """

    def __init__(self, *, keep_bytes: int = 64 << 20) -> None:
        self.keep_bytes = keep_bytes
        self._idle: list[Memory] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Memory:
        """Return an arena of at least ``nbytes``: the smallest idle one that is large enough, else a new one."""
        with self._lock:
            fitting = [arena for arena in self._idle if arena.nbytes >= nbytes]
            if fitting:
                chosen = min(fitting, key=len)
                self._idle.remove(chosen)
                return chosen
        return Memory(-(-nbytes // GRANULE) * GRANULE)

    def give_back(self, arena: Memory) -> None:
        """Keep ``arena`` for a later step, or let it go when enough is kept: the largest goes first."""
        with self._lock:
            self._idle.append(arena)
            self._idle.sort(key=len)
            while self._idle and self.idle_bytes > self.keep_bytes:
                self._idle.pop()

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept for later steps."""
        return sum(arena.nbytes for arena in self._idle)
