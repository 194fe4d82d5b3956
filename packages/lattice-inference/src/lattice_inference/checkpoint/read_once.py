"""Reads small files, such as ``config.json``, once per load for several readers."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

__all__ = ["reading_once", "remember", "remembered"]

#: Larger files have one reader, and would only take memory.
MOST_BYTES = 1 << 20

_Identity = tuple[int, int, int, int, int]

_contents: ContextVar[dict[str, tuple[_Identity, bytes]] | None] = ContextVar("contents", default=None)


@contextlib.contextmanager
def reading_once() -> Iterator[None]:
    """Remember small files within the block or the decorated function.

    An inner block adds nothing. A file that was changed since is read again: a fingerprint taken in between is that
    of what is used.
    """
    if _contents.get() is not None:
        yield
        return
    token = _contents.set({})
    try:
        yield
    finally:
        _contents.reset(token)


def remembered(path: Path) -> bytes | None:
    """Return what ``path`` was read as, or None if it must be read now."""
    contents = _contents.get()
    if not contents or (known := contents.get(os.fspath(path))) is None:
        return None
    try:
        return known[1] if _identity(os.stat(path)) == known[0] else None
    except OSError:
        return None


def remember(path: Path, status: os.stat_result, content: bytes) -> None:
    """Keep what ``path`` was read as; ``status`` is that of the open file before."""
    contents = _contents.get()
    if contents is not None and len(content) <= MOST_BYTES and stat.S_ISREG(status.st_mode):
        contents[os.fspath(path)] = _identity(status), content


def _identity(status: os.stat_result) -> _Identity:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino
