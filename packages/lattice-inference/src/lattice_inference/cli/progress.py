"""A progress bar on standard error, for long work at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Bar", "progress_bar"]


class Bar(Protocol):
    """What advances."""

    def update(self, count: int) -> object:
        """Note that ``count`` more are done."""


class _NoBar:
    def update(self, count: int) -> None:
        """Do nothing."""


@contextmanager
def progress_bar(total: int | None, *, unit: str, least: int = 0) -> Iterator[Bar]:
    """Show progress over ``total`` of ``unit`` if stderr is a terminal and tqdm is installed.

    Work of less than ``least`` is not worth a bar. ``None`` is an unknown total.
    """
    if (total is not None and total < least) or not sys.stderr.isatty():
        yield _NoBar()
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield _NoBar()
        return
    with tqdm(total=total, unit=unit, file=sys.stderr, leave=False) as bar:
        yield bar
