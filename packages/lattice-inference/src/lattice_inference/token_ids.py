"""Checks token ids given by a caller: ordered integers.

Values that could merely be converted are refused.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

__all__ = ["MOST_TOKEN_ID", "as_token_id", "checked_token_ids", "in_order"]

MOST_TOKEN_ID = 2**31 - 1
"""The largest number that is not refused out of hand."""

_NOT_IDS = (str, bytes, bytearray, memoryview)
"""Sequences whose elements are characters or bytes."""


def as_token_id(value: Any) -> int | None:
    """Return an integer of Python or NumPy as an ``int``, and ``None`` for anything else.

    A bool is no id.
    """
    if type(value) is int:
        return value
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def checked_token_ids(given: Any, what: str, expected: str = "token ids") -> list[int]:
    """Return token ids as a list.

    Args:
        given: what the caller gave: a list, a tuple or another sequence of integers, or an array of them with one axis.
        what: how an error calls it.
        expected: what an error says may be given.

    Raises:
        InvalidInputError: it is none of these, or a number is negative or above :data:`MOST_TOKEN_ID`.
    """
    ids = []
    for place, value in enumerate(in_order(given, what, expected)):
        token_id = as_token_id(value)
        if token_id is None:
            raise InvalidInputError(
                f"{what} holds {value_text(value)} at {place}; expected {expected}: ids are integers, and no bools"
            )
        ids.append(token_id)
    for token_id in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token_id <= MOST_TOKEN_ID:
            shown = f"{token_id:,}" if token_id.bit_length() < 128 else value_text(token_id)
            raise InvalidInputError(f"{what} holds {shown}, which is no token id")
    return ids


def in_order(given: Any, what: str, expected: str = "token ids") -> Sequence[Any]:
    """Return what may be a list of ids by its kind; the elements of a list are not looked at.

    Raises:
        InvalidInputError: its kind is another one, or an array is not of integers along one axis.
    """
    if type(given) in (list, tuple):
        return given  # type: ignore[no-any-return]
    if hasattr(given, "__array__") and not isinstance(given, Sequence):
        if isinstance(given, np.ma.MaskedArray):
            raise InvalidInputError(f"{what} is a masked array; pass the ids that are to count, given.compressed()")
        ids = np.asarray(given)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidInputError(
                f"{what} is an array of {ids.dtype} of shape {ids.shape}; expected {expected}: integers along one axis"
            )
        return ids.tolist()  # type: ignore[no-any-return]
    if isinstance(given, _NOT_IDS) or not isinstance(given, (Sequence, array)):
        raise InvalidInputError(
            f"{what} is a {type(given).__name__}; expected {expected} (a list of integers, or an array of them)"
        )
    return given
