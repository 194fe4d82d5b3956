"""Checks of options that several loaders take: a value that is none, or that would not count, is refused by name."""

from __future__ import annotations

import numpy as np

from lattice_inference.errors import InvalidInputError

__all__ = ["check_count", "check_flag", "check_limit"]


def check_count(name: str, value: object, *, least: int, most: int) -> int:
    """Return an int within limits; an int of NumPy is one, ``True`` and ``1.0`` are none.

    Raises:
        InvalidInputError: ``value`` is none, or lies outside.
    """
    index = getattr(type(value), "__index__", None)
    if isinstance(value, bool) or index is None:
        raise InvalidInputError(f"{name} must be an int, not {value!r:.60} of type {type(value).__name__}")
    try:
        number = int(index(value))
    except TypeError as cause:  # an array has the method, too
        raise InvalidInputError(f"{name} must be an int, not {value!r:.60}") from cause
    if not least <= number <= most:
        shown = f"{number:,}" if number.bit_length() <= 64 else f"one of {number.bit_length():,} bits"
        raise InvalidInputError(f"{name} must be from {least:,} to {most:,}, not {shown}")
    return number


def check_flag(name: str, value: object) -> bool:
    """Return True or False; NumPy's are as good.

    Raises:
        InvalidInputError: ``value`` is neither.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInputError(f"{name} must be True or False, not {value!r:.60} of type {type(value).__name__}")
    return bool(value)


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
