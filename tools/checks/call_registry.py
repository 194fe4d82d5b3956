"""Registry of valid calls of public callables, for :mod:`walk_public_callables`.

A call is built where it is needed: it is a pair of the callable and its arguments by name. Names that are digits stand for
arguments by position. Nothing here is checked: a call that does not succeed as it is fails the walk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["CALLS", "Call", "call", "calls", "matrix"]

Call = tuple[Callable[..., Any], dict[str, Any]]

CALLS: dict[str, Callable[[], Call]] = {}


def call(name: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    """Register the call of ``name``, such as ``lattice_fann.Network.load``."""

    def register(build: Callable[[], Call]) -> Callable[[], Call]:
        CALLS[name] = build
        return build

    return register


def calls(prefix: str, subject: Callable[[], Any], arguments: dict[str, dict[str, Any]]) -> None:
    """Register calls of attributes of ``subject``'s result.

    ``""`` is the result itself; callable values are made late.
    """
    for name, given in arguments.items():

        def build(name: str = name, given: dict[str, Any] = given) -> Call:
            made = subject()
            late = {key: value() if callable(value) else value for key, value in given.items()}
            return (getattr(made, name) if name else made), late

        CALLS[f"{prefix}.{name}" if name else prefix] = build


def matrix(rows: int = 4, columns: int = 3) -> np.ndarray:
    """Return a matrix of float32 that is the same at every call."""
    return np.random.RandomState(rows * 100 + columns).standard_normal((rows, columns)).astype(np.float32)
