"""One line of progress on standard error, where that is a terminal or the user asks for it."""

from __future__ import annotations

import sys

__all__ = ["ask_for_progress", "report"]

_asked = False


def ask_for_progress() -> None:
    """Let :func:`report` print where standard error is no terminal too, a line each time."""
    global _asked
    _asked = True


def report(text: str = "") -> None:
    """Replace the line by ``text``; without one, clear it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif _asked and text:
        print(text, file=sys.stderr, flush=True)
