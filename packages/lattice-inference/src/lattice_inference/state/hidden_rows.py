"""The last rows of a sequence's tokens, kept for a layer that predicts further tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["HiddenRows"]

Float32Array = npt.NDArray[np.float32]


class HiddenRows:
    """Rows of the last tokens that were run, by position and without gaps.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._first = 0
        self._parts: list[Float32Array] = []
        self._count = 0

    @property
    def first(self) -> int:
        """The position of the first row."""
        return self._first

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self._first + self._count

    def put(self, position: int, rows: Float32Array) -> None:
        """Add rows from ``position`` on; they replace what is there and later.

        What lies before a gap is dropped.
        """
        self._cut(position)
        if position != self.end:
            self._first, self._parts, self._count = position, [], 0
        self._parts.append(rows)
        self._count += len(rows)

    def between(self, first: int, end: int) -> Float32Array:
        """Return the rows from ``first`` to ``end``, with zeros for those that are not held.

        ``end`` is at most :attr:`end`.
        """
        rows = np.concatenate(self._parts)
        missing = max(0, min(self._first, end) - first)
        held = rows[max(0, first - self._first) : max(0, end - self._first)]
        return np.concatenate([np.zeros((missing, rows.shape[1]), np.float32), held]) if missing else held

    def drop_before(self, position: int) -> None:
        """Forget the rows before ``position``."""
        while self._parts and self._first + len(self._parts[0]) <= position:
            gone = len(self._parts.pop(0))
            self._first += gone
            self._count -= gone

    def _cut(self, position: int) -> None:
        while self._parts and self.end > position:
            last = self._parts.pop()
            self._count -= len(last)
            if self.end < position:
                self._parts.append(last[: position - self.end])
                self._count = position - self._first
                return
