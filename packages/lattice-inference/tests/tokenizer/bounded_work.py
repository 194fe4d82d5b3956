"""Tells work in proportion to an input from work that grows with its square, on any machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["bounded_work"]

LIMIT_SECONDS = 30.0


@contextmanager
def bounded_work() -> Iterator[None]:
    """Fail when the block takes half a minute of this process's processor time.

    No statement of speed: what grows with the square of the inputs in these tests takes many minutes, what grows in
    proportion a fraction of a second, so the bound is far from both. Speed is measured by benchmarks/tokenizing.py.
    """
    started = time.process_time()
    yield
    assert time.process_time() - started < LIMIT_SECONDS
