"""What a cache on disk says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Mode", "VectorCacheStats", "VectorCacheWarning"]

Mode = Literal["closed", "read-write", "read-only", "off"]


class VectorCacheWarning(UserWarning):
    """The cache on disk cannot be used as requested.

    Vectors are correct; they are only not kept.
    """


@dataclass(frozen=True, kw_only=True)
class VectorCacheStats:
    """What a cache holds, and what this object has seen since it was made.

    Attributes:
        path: the database.
        mode: ``"read-write"``, ``"read-only"`` (nothing is stored), or ``"off"`` (it cannot be used at all).
        entries: vectors in it.
        bytes: size of its pages in use.
        max_bytes: what ``bytes`` may grow to.
        models: vectors by the name of what made them.
        hits, misses: keys that were looked up through this object and found, or not.
    """

    path: Path
    mode: Mode
    entries: int
    bytes: int
    max_bytes: int
    models: dict[str, int]
    hits: int
    misses: int
