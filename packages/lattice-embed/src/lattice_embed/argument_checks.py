"""Checks of single arguments: flags, numbers, names, paths.

Errors show the value and the limit.
"""

from __future__ import annotations

import math
import operator
import os
from pathlib import Path
from typing import Any

import numpy as np

from lattice_embed.errors import InvalidInputError

__all__ = [
    "check_flag",
    "check_integer",
    "check_kind",
    "check_list",
    "check_number",
    "check_path",
    "check_word",
    "shown",
]


def check_flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False.

    Raises:
        InvalidInputError: it is not.
    """
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise InvalidInputError(f"{name} is {shown(value)}; it must be True or False")


def check_integer(name: str, value: object, *, lowest: int, highest: int) -> int:
    """Return ``value`` if it is an integer, NumPy's included, from ``lowest`` to ``highest``.

    Raises:
        InvalidInputError: it is not.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not lowest <= number <= highest:
        raise InvalidInputError(f"{name} is {shown(value)}; it must be an integer from {lowest:,} to {highest:,}")
    return number


def check_number(name: str, value: object, *, lowest: float = -math.inf, highest: float = math.inf) -> float:
    """Return ``value`` if it is a finite number from ``lowest`` to ``highest``.

    Raises:
        InvalidInputError: it is not.
    """
    number = math.nan
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not (math.isfinite(number) and lowest <= number <= highest):
        limits = [f"of at least {lowest:g}"] if lowest > -math.inf else []
        limits += [f"of at most {highest:g}"] if highest < math.inf else []
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a finite number {' and '.join(limits)}".rstrip())
    return number


def check_word(name: str, value: object) -> str:
    """Return ``value`` if it is a str.

    Raises:
        InvalidInputError: it is not.
    """
    if not isinstance(value, str):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a str")
    return value


def check_path(name: str, value: object) -> Path:
    """Return ``value`` as a path.

    Raises:
        InvalidInputError: it is neither a str nor a path, or holds a NUL.
    """
    if not isinstance(value, str | os.PathLike):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a path")
    try:
        path = Path(value)
        os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        path = Path("\0")
    if "\0" in str(path):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a path without NUL and lone surrogates")
    return path


def check_list(name: str, value: object) -> list[Any]:
    """Return the parts of ``value`` as a list.

    Raises:
        InvalidInputError: it is a single str or bytes, or cannot be iterated over.
    """
    if not isinstance(value, str | bytes):
        try:
            return list(value)  # type: ignore[call-overload,no-any-return]
        except TypeError:
            pass
    raise InvalidInputError(f"{name} is {shown(value)}; it must be a list")


def check_kind(name: str, value: object, kind: type[Any]) -> None:
    """Raise InvalidInputError unless ``value`` is of ``kind``."""
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be of the class {kind.__name__}")


def shown(value: object) -> str:
    """Describe a value in few words.

    Works for integers of thousands of digits too, which Python does not print.
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length():,} bits"
    try:
        text = repr(value)
    except Exception:  # of a class of the caller's, which may do anything
        return f"a {type(value).__name__}"
    if len(text) <= 80 and "\n" not in text:
        return text
    return f"a {type(value).__name__}"
