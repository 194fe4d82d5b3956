"""Vectors that were delivered to calls that then failed, kept until the call is made again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from lattice_embed.result import Float32Array

__all__ = ["PaidVectors"]


class PaidVectors:
    """Holds the newest vectors up to a number. Thread-safe.

    Args:
        most: vectors that are kept; the oldest go first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._vectors: dict[str, Float32Array] = {}
        self._lock = threading.Lock()

    def put(self, vectors: Mapping[str, Float32Array]) -> None:
        """Keep the vectors of these texts."""
        with self._lock:
            for text, vector in vectors.items():
                self._vectors.pop(text, None)
                self._vectors[text] = vector.copy()  # a row alone, not the matrix that it lies in
            for text in list(self._vectors)[: max(0, len(self._vectors) - self._most)]:
                del self._vectors[text]

    def take(self, texts: Iterable[str]) -> dict[str, Float32Array]:
        """Remove and return the vectors of those texts that there are."""
        with self._lock:
            return {text: self._vectors.pop(text) for text in texts if text in self._vectors} if self._vectors else {}
