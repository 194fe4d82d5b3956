"""A progress bar on standard error, for long work at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["progress_bar"]

LONG_WORK = 256
"""Texts from which a bar is worth showing."""


class Bar(Protocol):
    """What advances."""

    def update(self, count: int) -> object:
        """Note that ``count`` more texts are done."""


class _NoBar:
    def update(self, count: int) -> None:
        """Do nothing."""


@contextmanager
def progress_bar(total: int) -> Iterator[Bar]:
    """Show progress over ``total`` texts if standard error is a terminal and the work is long."""
    if total < LONG_WORK or not sys.stderr.isatty():
        yield _NoBar()
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield _NoBar()
        return
    with tqdm(total=total, unit=" texts", file=sys.stderr, leave=False) as bar:
        yield bar
