"""Checks of arguments that are no arrays: numbers, choices, kinds of objects."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from lattice_transport.errors import InvalidEpsilonError, InvalidInputError, shown

__all__ = [
    "check_callable",
    "check_choice",
    "check_count",
    "check_flag",
    "check_kind",
    "check_list",
    "check_number",
    "check_positive",
    "check_seed",
]

MOST_COUNT = 1 << 53

_T = TypeVar("_T")


def check_number(name: str, value: Any) -> float:
    """Return ``value`` as a finite float, or raise InvalidInputError."""
    number = _number(value)
    if number is None or not abs(number) < math.inf:
        raise InvalidInputError(f"{name} must be a finite number, not {shown(value)}")
    return number


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    if isinstance(value, (bool, str, bytes)) or type(value).__name__ == "bool" or getattr(value, "ndim", 0) != 0:
        return None
    try:
        return float(value)
    except Exception:  # whatever its conversion raises, it is no number
        return None


def check_positive(name: str, value: Any) -> float:
    """Return ``value`` as a float that is positive and finite.

    Raises InvalidEpsilonError for any other.
    """
    number = _number(value)
    if number is None or not 0.0 < number < math.inf:
        raise InvalidEpsilonError(name, value)
    return number


def check_count(name: str, value: Any, *, least: int = 1, most: int = MOST_COUNT) -> int:
    """Return ``value`` as an int from ``least`` to ``most``.

    Raises InvalidInputError for any other.
    """
    if type(value) is int and least <= value <= most:
        return value
    try:
        count = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = None
    if count is None or not least <= count <= most:
        bounds = f"of at least {least}" if most == MOST_COUNT else f"from {least} to {most}"
        raise InvalidInputError(f"{name} must be an integer {bounds}, not {shown(value)}")
    return count


def check_seed(value: Any) -> int:
    """Return a seed for random numbers: an integer from 0 to 2^128 - 1."""
    return check_count("seed", value, least=0, most=(1 << 128) - 1)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return ``value``, or raise InvalidInputError unless it is one of ``choices``."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise InvalidInputError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return True or False, or the 1 or 0 that stands for it, or raise InvalidInputError."""
    if value is True or value is False:
        return value
    if isinstance(value, (int, np.bool_, np.integer)) and value in (0, 1):
        return bool(value)
    raise InvalidInputError(f"{name} must be True or False, not {shown(value)}")


def check_kind(name: str, value: Any, kind: type[_T]) -> _T:
    """Return ``value``, or raise InvalidInputError unless it is a ``kind``."""
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} must be a {kind.__name__}, not {shown(value)}")
    return value


def check_list(name: str, value: Any) -> list[Any]:
    """Return the parts of a sequence or another iterable.

    Raises InvalidInputError for any other value.
    """
    if not isinstance(value, (str, bytes, dict)):
        try:
            return list(value)
        except TypeError:
            pass
    raise InvalidInputError(f"{name} must be a sequence, not {shown(value)}")


def check_callable(name: str, value: Any) -> None:
    """Raise InvalidInputError unless ``value`` is None or can be called."""
    if value is not None and not callable(value):
        raise InvalidInputError(f"{name} must be a function or None, not {shown(value)}")
