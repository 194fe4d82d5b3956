"""What a caller may give as several texts: anything in a defined order, but no single text and no bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from lattice_inference.errors import InvalidInputError

__all__ = ["check_text_list"]


def check_text_list(texts: Any, name: str = "texts", element: str = "texts") -> Iterable[Any]:
    """Return ``texts``, whose elements are not looked at.

    Args:
        texts: what the caller gave.
        name: the argument, for an error.
        element: what its elements are.

    Raises:
        InvalidInputError: it is one ``str``, bytes, or has no order.
    """
    if type(texts) in (list, tuple):
        return texts  # type: ignore[no-any-return]  # what nearly every caller has
    if isinstance(texts, str):
        raise InvalidInputError(f"{name} is one str, which would be read letter by letter; pass a list of {element}")
    if isinstance(texts, (bytes, bytearray, memoryview)):
        raise InvalidInputError(f"{name} is bytes; decode them, and pass a list of {element}")
    if isinstance(texts, (Set, Mapping)):
        raise InvalidInputError(
            f"{name} is a {type(texts).__name__}, whose order means nothing; pass a list of {element}"
        )
    if not isinstance(texts, Iterable) or (isinstance(texts, np.ndarray) and texts.ndim == 0):
        raise InvalidInputError(f"{name} is a {type(texts).__name__}; pass a list of {element}")
    return texts
