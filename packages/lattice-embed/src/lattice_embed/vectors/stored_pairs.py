"""Pairs of quantized vectors, under the names of their kinds.

:func:`cosine_similarity`, :func:`dot_product` and the distances of this package take quantized vectors too; these functions
take one kind only.
"""

from __future__ import annotations

from typing import Any

from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors._vectors import dot_product
from lattice_embed.vectors.int4_matrix import Int4Vector
from lattice_embed.vectors.int8_matrix import QuantizedVector

__all__ = ["dot_product_i8", "dot_product_int4"]


def dot_product_i8(a: QuantizedVector, b: QuantizedVector, /) -> float:
    """Return the dot product of two int8 vectors as stored: integers' product / (scale * scale).

    Raises:
        InvalidInputError: an argument is no ``QuantizedVector``.
        DimensionMismatchError: their lengths differ.
    """
    _check(QuantizedVector, a, b)
    return dot_product(a, b)


def dot_product_int4(a: Int4Vector, b: Int4Vector, /) -> float:
    """Return the dot product of two int4 vectors as stored.

    Raises:
        InvalidInputError: an argument is no ``Int4Vector``.
        DimensionMismatchError: their lengths differ.
    """
    _check(Int4Vector, a, b)
    return dot_product(a, b)


def _check(kind: type, *vectors: Any) -> None:
    for vector in vectors:
        if not isinstance(vector, kind):
            raise InvalidInputError(f"expected a {kind.__name__}, not a {type(vector).__name__}")
