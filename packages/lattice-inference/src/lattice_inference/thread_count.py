"""What a number of threads may be, wherever one is given."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

__all__ = ["MAX_THREADS", "check_thread_count"]

MAX_THREADS = 256
"""The most threads that the process's pool may have."""


def check_thread_count(threads: Any, name: str = "threads") -> int:
    """Return ``threads`` as an ``int``; integers of NumPy are taken, booleans are not.

    Args:
        threads: what the caller gave.
        name: what the caller calls it, for the message.

    Raises:
        InvalidInputError: it is no integer from 1 to :data:`MAX_THREADS`.
    """
    count = 0
    if not isinstance(threads, bool):
        with contextlib.suppress(TypeError):
            count = operator.index(threads)
    if not 1 <= count <= MAX_THREADS:
        raise InvalidInputError(f"{name} is {value_text(threads)}; it must be an integer from 1 to {MAX_THREADS}")
    return count
