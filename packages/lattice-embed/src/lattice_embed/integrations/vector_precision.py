"""Quantizes as sentence-transformers' ``encode`` does: integer arrays without scales.

For vectors to be stored and compared here, use :func:`lattice_embed.vectors.quantize`, which keeps what is needed to do so.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lattice_embed.errors import InvalidInputError
from lattice_embed.result import Float32Array

__all__ = ["VECTOR_PRECISIONS", "VectorPrecision", "at_precision"]

VectorPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]

VECTOR_PRECISIONS: tuple[VectorPrecision, ...] = ("float32", "int8", "uint8", "binary", "ubinary")


def at_precision(vectors: Float32Array, precision: VectorPrecision) -> npt.NDArray[Any]:
    """Return vectors of shape (n, dim) at a precision.

    ``int8`` and ``uint8`` divide the range of each dimension among these n vectors into 255 steps: they are comparable among
    each other alone. ``binary`` and ``ubinary`` pack one bit a dimension, set where the value is over 0, into
    ceil(dim / 8) bytes; ``binary`` subtracts 128 from each.

    Raises:
        InvalidInputError: one vector alone has no range.
    """
    if precision == "float32":
        return vectors
    if precision in ("binary", "ubinary"):
        packed = np.packbits(vectors > 0, axis=-1)
        return packed if precision == "ubinary" else (packed ^ np.uint8(128)).view(np.int8)
    if len(vectors) == 1:
        raise InvalidInputError(
            f"precision={precision!r} needs the range of several vectors, and this is one: pass more texts"
        )
    if not len(vectors):
        return np.empty(vectors.shape, np.int8 if precision == "int8" else np.uint8)
    lowest = vectors.min(axis=0)
    steps = (vectors.max(axis=0) - lowest) / np.float32(255)
    levels = np.clip(np.floor((vectors - lowest) / np.where(steps == 0, np.float32(1), steps)), 0, 255)
    made: npt.NDArray[Any] = levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)
    return made
