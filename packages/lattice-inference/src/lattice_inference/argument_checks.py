"""Checks of arguments by kind: a flag, a choice, a whole number, a list. What fails is said with name, value and remedy."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from lattice_inference.errors import InvalidInputError

__all__ = [
    "check_callable",
    "check_choice",
    "check_flag",
    "check_instance",
    "check_items",
    "check_path",
    "check_whole_number",
    "shown",
]

Item = TypeVar("Item")

MOST_SHOWN = 60


def shown(value: object) -> str:
    """Return ``value`` as a message shows it: short, and also where its ``repr`` fails, as that of huge integers does."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def check_flag(name: str, value: object) -> bool:
    """Return ``value`` if it is true or false.

    Raises:
        InvalidInputError: it is no bool.
    """
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise InvalidInputError(f"{name} is {shown(value)}; expected True or False")


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises:
        InvalidInputError: it is not.
    """
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidInputError(f"{name} is {shown(value)}; expected {' or '.join(map(repr, choices))}")


def check_path(name: str, value: object) -> Path:
    """Return ``value`` as a path.

    Raises:
        InvalidInputError: it is neither a string nor a path, is empty, or holds what no name of a file can.
    """
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str) and text and "\0" not in text:
            return Path(text)
    raise InvalidInputError(f"{name} is {shown(value)}; expected the path of a file or directory")


def check_instance(name: str, value: object, kind: type[object]) -> None:
    """Check that ``value`` is a ``kind``.

    Raises:
        InvalidInputError: it is not.
    """
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} is {shown(value)}; expected a {kind.__name__}")


def check_callable(name: str, value: object) -> None:
    """Check that ``value`` can be called, or is ``None``.

    Raises:
        InvalidInputError: it cannot.
    """
    if value is not None and not callable(value):
        raise InvalidInputError(f"{name} is {shown(value)}; expected a function or None")


def check_whole_number(name: str, value: object, lowest: int, highest: int) -> int:
    """Return ``value`` as an ``int`` if it is an integer, NumPy's included, within the limits.

    Raises:
        InvalidInputError: it is not.
    """
    if not isinstance(value, (bool, np.bool_, np.ndarray)):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if lowest <= number <= highest:
                return number
    raise InvalidInputError(f"{name} is {shown(value)}; expected an integer from {lowest:,} to {highest:,}")


def check_items(name: str, values: Iterable[Item], what: str) -> tuple[Item, ...]:
    """Return the items of ``values``.

    Args:
        name: of the argument.
        values: a sequence or other iterable.
        what: what the items are, in the plural.

    Raises:
        InvalidInputError: it has no items, as a number, a string, an array without dimensions or a masked array.
    """
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise InvalidInputError(f"{name} is {shown(values)}; pass a list of {what}")
    if isinstance(values, np.ndarray) and (values.ndim == 0 or isinstance(values, np.ma.MaskedArray)):
        raise InvalidInputError(
            f"{name} is a {type(values).__name__} of {values.ndim} dimensions; pass a list of {what}"
        )
    return tuple(values)
