"""Checks arguments as lattice_fann does, with the errors of this package."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lattice_fann import FannError, arguments, arrays
from lattice_tune.errors import InvalidInputError, TuneError, shown

__all__ = [
    "callable_of",
    "choice",
    "flag",
    "instance",
    "listed",
    "number",
    "number_rows",
    "path_of",
    "plain_numbers",
    "real",
    "text_of",
    "whole",
]

Kind = TypeVar("Kind")


def whole(
    value: Any, name: str, *, least: int = 0, most: int | None = None, refusal: type[TuneError] = InvalidInputError
) -> int:
    """Return ``value`` as an int from ``least`` to ``most``; booleans and floats are none."""
    return _checked(lambda: arguments.whole(value, name, least=least, most=most), refusal)


def real(
    value: Any,
    name: str,
    wanted: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    refusal: type[TuneError] = InvalidInputError,
) -> float:
    """Return ``value`` as a finite float within the limits, which ``wanted`` says in words."""
    return _checked(
        lambda: arguments.real(value, name, wanted, least=least, above=above, below=below, most=most), refusal
    )


def number(
    value: Any,
    name: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    refusal: type[TuneError] = InvalidInputError,
) -> float:
    """Return ``value`` as a finite float from ``least`` to ``most``."""
    wanted = [f"from {least:g}"] * (least > -math.inf) + [f"to {most:g}"] * (most < math.inf)
    return real(value, name, " ".join(wanted), least=least, most=most, refusal=refusal)


def flag(value: Any, name: str, *, refusal: type[TuneError] = InvalidInputError) -> bool:
    """Return ``value`` if it is True or False."""
    return _checked(lambda: arguments.flag(value, name), refusal)


def instance(value: Any, name: str, kind: type[Kind], *, refusal: type[TuneError] = InvalidInputError) -> Kind:
    """Return ``value`` if it is an instance of ``kind``."""
    return _checked(lambda: arguments.instance(value, name, kind), refusal)


def listed(value: Any, name: str, of: str) -> list[Any]:
    """Return the elements of ``value``, which is no text and no mapping, as a list."""
    return _checked(lambda: arguments.listed(value, name, of), InvalidInputError)


def number_rows(values: Any, name: str) -> npt.NDArray[np.float32]:
    """Return ``values`` as a finite float32 matrix."""
    rows = _checked(lambda: arrays.float32_of(arrays.number_array(values, name)), InvalidInputError)
    if rows.ndim != 2:
        raise InvalidInputError(f"{name} must have shape (rows, columns), not {rows.shape}")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise InvalidInputError(f"{name} has a value that is not finite in float32 at row {row}, column {column}")
    return rows


def plain_numbers(values: Any, name: str) -> npt.NDArray[Any]:
    """Return ``values`` as a plain array of numbers of any shape."""
    return _checked(lambda: arrays.number_array(values, name), InvalidInputError)


def choice(value: Any, name: str, choices: Iterable[str], *, refusal: type[TuneError] = InvalidInputError) -> str:
    """Return ``value`` if it is one of ``choices``."""
    allowed = list(choices)
    if not isinstance(value, str) or value not in allowed:
        raise refusal(f"{name} is {shown(value)}; it must be one of {', '.join(allowed)}")
    return value


def text_of(value: Any, name: str, *, refusal: type[TuneError] = InvalidInputError) -> str:
    """Return ``value`` if it is a text that UTF-8 can hold, without NUL."""
    if not isinstance(value, str):
        raise refusal(f"{name} is {shown(value)}; it must be a str")
    if "\0" in value:
        raise refusal(f"{name} holds a NUL character: remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refusal(f"{name} holds half a surrogate pair, which UTF-8 cannot hold: decode it again") from None
    return value


def callable_of(value: Any, name: str) -> Callable[..., Any]:
    """Return ``value`` if it can be called."""
    if not callable(value) or isinstance(value, type):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a function")
    return value  # type: ignore[no-any-return]


def path_of(value: Any, name: str = "path") -> Path:
    """Return ``value`` as a path that a file can have."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a str or a pathlib.Path")
    given = os.fspath(value)
    try:
        if not given or b"\0" in os.fsencode(given):
            raise InvalidInputError(f"{name} is {shown(given)}; no file has such a name")
    except UnicodeEncodeError:
        raise InvalidInputError(f"{name} is {shown(given)}; no file has such a name") from None
    return Path(given)


def _checked(check: Callable[[], Kind], refusal: type[TuneError]) -> Kind:
    try:
        return check()
    except FannError as error:
        raise refusal(str(error)) from None
