"""Checks of single arguments.

Each error names the argument, the value and what is expected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lattice_inference.errors import InvalidInputError, LatticeError
from lattice_inference.token_ids import as_token_id
from lattice_inference.value_text import value_text

__all__ = [
    "as_number",
    "check_callable",
    "check_choice",
    "check_count",
    "check_integer",
    "check_limit",
    "check_number",
    "check_path",
    "check_provides",
    "checked_flag",
    "checked_mapping",
]


def check_integer(name: str, value: object, least: int, most: int) -> None:
    """Refuse what is neither ``None`` nor an integer in [least, most]; a bool is none."""
    if value is None:
        return
    number = as_token_id(value)
    if number is None or not least <= number <= most:
        raise InvalidInputError(f"{name} is {value_text(value)}; expected an integer from {least} to {most:,}")


def check_count(name: str, value: object, *, least: int, most: int) -> int:
    """Return an integer in [least, most]; NumPy's are taken, bools and floats are not."""
    number = as_token_id(value)
    if number is None:
        raise InvalidInputError(f"{name} must be an int, not {value_text(value)} of type {type(value).__name__}")
    if not least <= number <= most:
        raise InvalidInputError(f"{name} must be from {least:,} to {most:,}, not {value_text(number)}")
    return number


def check_limit(value: object, *, least: int, most: int) -> int:
    """Return ``max_tokens`` of a loader.

    Args:
        value: what the caller passed.
        least: the tokens of the shortest text that is worth its special tokens.
        most: the model's own limit, above which the option would not count.

    Raises:
        InvalidInputError: it is no int, leaves no room for a text, or is above the model's own limit.
    """
    limit = check_count("max_tokens", value, least=0, most=2**63)
    if not limit >= least:
        raise InvalidInputError(
            f"max_tokens is {limit}: it must leave room for a token beside the special ones, so be at least {least}"
        )
    if not limit <= most:
        raise InvalidInputError(
            f"max_tokens is {limit:,} and the model takes {most:,} tokens: pass at most that, or leave the option out"
        )
    return limit


def check_number(name: str, value: object, least: float, most: float) -> None:
    """Refuse what is neither ``None`` nor a number in [least, most]; NaN is in no such range."""
    if value is None:
        return
    number = as_number(value)
    if number is None or not least <= number <= most:
        raise InvalidInputError(f"{name} is {value_text(value)}; expected a number from {least:g} to {most:g}")


def as_number(value: Any) -> float | None:
    """Return a number of Python or NumPy as a float.

    ``None`` for anything that is no number, or is beyond all floats.
    """
    if isinstance(value, (bool, np.bool_, np.ndarray, np.complexfloating, str)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def checked_flag(name: str, value: object) -> bool:
    """Return True or False; NumPy's are as good, and anything else is refused."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise InvalidInputError(f"{name} must be True or False, not {value_text(value)}")


def checked_mapping(name: str, value: object, *, of_texts: bool = False) -> dict[str, Any]:
    """Return a mapping as a dict, an empty one for ``None``.

    With ``of_texts`` its values must be strings too.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{name} is {value_text(value)}; expected a mapping, or None")
    for key, part in value.items():
        if not isinstance(key, str) or (of_texts and not isinstance(part, str)):
            expected = "strings by name" if of_texts else "values by name"
            raise InvalidInputError(f"{name} holds {value_text(key)}: {value_text(part)}; expected {expected}")
    return dict(value)


def check_choice(
    name: str, value: object, choices: Sequence[object], error: type[LatticeError] = InvalidInputError
) -> None:
    """Refuse what is not one of ``choices``, which are strings or integers."""
    if not isinstance(value, (str, int)) or isinstance(value, bool) or value not in choices:
        raise error(f"{name} must be one of {', '.join(map(str, choices))}, not {value_text(value)}")


def check_callable(name: str, value: object) -> None:
    """Refuse what is neither ``None`` nor a function."""
    if value is not None and not callable(value):
        raise InvalidInputError(f"{name} is {value_text(value)}; expected a function, or None")


def check_provides(name: str, value: object, attribute: str, expected: str) -> None:
    """Refuse an object without ``attribute``, which every ``expected`` has."""
    if isinstance(value, type) or not hasattr(value, attribute):
        raise InvalidInputError(f"{name} is {value_text(value)}; expected {expected}")


def check_path(name: str, value: object) -> None:
    """Refuse what is no path."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise InvalidInputError(f"{name} is {value_text(value)}; expected a path, as a str or a pathlib.Path")
