"""Memory for steps: each step takes an arena, and idle arenas stay for later steps."""

from __future__ import annotations

from lattice_inference.backends.cpu._cpu import HUGE_PAGE, Memory

__all__ = ["ArenaPool"]

GRANULE = 1 << 18
"""Sizes of arenas are multiples of this many bytes, so that batches of similar size share arenas."""


class ArenaPool:
    """Lends arenas to concurrent steps. Thread-safe.

    It has no lock: if a thread holds a lock during a fork, the child can never take it. The list's ``append`` and
    ``remove`` are atomic, and the thread that removes an arena owns it.

    At most ``keep_bytes`` of idle memory stay here. The operating system gets the rest back when a step ends.
    """

    def __init__(self, *, keep_bytes: int = 64 << 20) -> None:
        self.keep_bytes = keep_bytes
        self._idle: list[Memory] = []

    def take(self, nbytes: int) -> Memory:
        """Return an arena of at least ``nbytes``.

        It is the smallest idle one that is large enough, or a new one.
        """
        for arena in sorted(self._idle, key=len):
            if arena.nbytes >= nbytes:
                try:
                    self._idle.remove(arena)
                except ValueError:  # another thread was faster
                    continue
                return arena
        return Memory(-(-nbytes // GRANULE) * GRANULE, huge_pages=nbytes >= 2 * HUGE_PAGE)

    def give_back(self, arena: Memory) -> None:
        """Keep ``arena`` for a later step.

        If the idle arenas exceed ``keep_bytes``, release the largest ones.
        """
        self._idle.append(arena)
        if len(self._idle) == 1 and arena.nbytes <= self.keep_bytes:
            return
        for largest in sorted(self._idle, key=len, reverse=True):
            if self.idle_bytes <= self.keep_bytes:
                break
            self._remove(largest)

    def _remove(self, arena: Memory) -> bool:
        """Remove ``arena`` from the idle ones; return False if another thread was faster."""
        try:
            self._idle.remove(arena)
        except ValueError:
            return False
        return True

    def trim(self) -> None:
        """Return all idle memory to the operating system."""
        for arena in tuple(self._idle):
            self._remove(arena)

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept for later steps."""
        return sum(arena.nbytes for arena in self._idle)
