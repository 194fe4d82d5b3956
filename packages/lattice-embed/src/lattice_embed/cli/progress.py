"""A progress bar on standard error, for long work at a terminal."""

from __future__ import annotations

from contextlib import AbstractContextManager

from lattice_inference.cli import progress
from lattice_inference.cli.progress import Bar

__all__ = ["progress_bar"]

LONG_WORK = 256
"""Texts from which a bar is worth showing."""


def progress_bar(total: int | None = None) -> AbstractContextManager[Bar]:
    """Show progress over ``total`` texts if standard error is a terminal.

    Only long work, or work of unknown length, is shown.
    """
    return progress.progress_bar(total, unit=" texts", least=LONG_WORK)
