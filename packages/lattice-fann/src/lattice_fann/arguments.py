"""Checks of single arguments: numbers, flags and members.

An error shows the value and its limits.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, TypeVar

import numpy as np

from lattice_fann.errors import FannError, InvalidInputError

__all__ = ["flag", "instance", "listed", "real", "shown", "whole"]

Kind = TypeVar("Kind")

_LONGEST = 80


def shown(value: Any) -> str:
    """Return ``repr(value)`` on one line, truncated if it is long.

    The type alone if the repr fails.
    """
    try:
        text = repr(value)
    except Exception:  # integers of over 4,300 digits have none, and a class may do anything
        return f"a value of type {type(value).__name__}"
    if "\n" in text:  # of an array, say: a message is one line
        text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def whole(
    value: Any, name: str, *, least: int = 0, most: int | None = None, refusal: type[FannError] = InvalidInputError
) -> int:
    """Return ``value`` as an int from ``least`` to ``most``; booleans and floats are none.

    Raises:
        refusal: it is no such number.
    """
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise refusal(f"{name} is {shown(value)}; it must be an integer {limits}")
    return int(value)


def real(
    value: Any,
    name: str,
    wanted: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    refusal: type[FannError] = InvalidInputError,
) -> float:
    """Return ``value`` as a finite float within the limits, which ``wanted`` says in words.

    Raises:
        refusal: it is no such number.
    """
    try:
        is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        number = float(value) if is_real else math.nan
    except OverflowError:
        number = math.nan
    if not (math.isfinite(number) and least <= number <= most and above < number < below):
        raise refusal(f"{name} is {shown(value)}; it must be a finite number {wanted}".rstrip())
    return number


def flag(value: Any, name: str) -> bool:
    """Return ``value`` if it is True or False.

    Raises:
        InvalidInputError: it is something else, though it may count as one of them.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def listed(value: Any, name: str, of: str) -> list[Any]:
    """Return the elements of ``value`` as a list.

    Raises:
        InvalidInputError: it has none, or is a text.
    """
    try:
        if isinstance(value, (str, bytes, dict)):
            raise TypeError
        return list(value)
    except TypeError:
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a list of {of}") from None


def instance(value: Any, name: str, kind: type[Kind], advice: str = "") -> Kind:
    """Return ``value`` if it is an instance of ``kind``.

    Raises:
        InvalidInputError: it is not.
    """
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be of type {kind.__name__}{advice}")
    return value
