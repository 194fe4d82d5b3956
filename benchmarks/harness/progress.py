"""One line of progress on standard error, where that is a terminal."""

from __future__ import annotations

import sys

__all__ = ["report"]


def report(text: str = "") -> None:
    """Replace the line by ``text``; without one, clear it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
