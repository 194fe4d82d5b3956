"""Memory for steps: taken for each, kept for the next, given back after a burst."""

from __future__ import annotations

from lattice_inference.backends.cpu._cpu import HUGE_PAGE, Memory

__all__ = ["ArenaPool"]

GRANULE = 1 << 18
"""Arenas grow in steps of this many bytes, so that batches of nearly one size share them."""


class ArenaPool:
    """Lends arenas to concurrent steps. Thread-safe without a lock: a child forked while another thread holds one could
    never take it. The list's ``append`` and ``remove`` are atomic, and whoever removes an arena owns it.

    At most ``keep_bytes`` of idle memory stay here; what a larger step needed goes back to the operating system when it
    ends.
    """

    def __init__(self, *, keep_bytes: int = 64 << 20) -> None:
        self.keep_bytes = keep_bytes
        self._idle: list[Memory] = []

    def take(self, nbytes: int) -> Memory:
        """Return an arena of at least ``nbytes``: the smallest idle one that is large enough, else a new one."""
        for arena in sorted(self._idle, key=len):
            if arena.nbytes >= nbytes:
                try:
                    self._idle.remove(arena)
                except ValueError:  # another thread was faster
                    continue
                return arena
        return Memory(-(-nbytes // GRANULE) * GRANULE, huge_pages=nbytes >= 2 * HUGE_PAGE)

    def give_back(self, arena: Memory) -> None:
        """Keep ``arena`` for a later step, or let it go when enough is kept: the largest goes first."""
        self._idle.append(arena)
        if len(self._idle) == 1 and arena.nbytes <= self.keep_bytes:
            return
        for largest in sorted(self._idle, key=len, reverse=True):
            if self.idle_bytes <= self.keep_bytes:
                break
            self._remove(largest)

    def _remove(self, arena: Memory) -> bool:
        """Take ``arena`` out of the idle ones; False when another thread was faster."""
        try:
            self._idle.remove(arena)
        except ValueError:
            return False
        return True

    def trim(self) -> None:
        """Give all idle memory back to the operating system."""
        for arena in tuple(self._idle):
            self._remove(arena)

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept for later steps."""
        return sum(arena.nbytes for arena in self._idle)
