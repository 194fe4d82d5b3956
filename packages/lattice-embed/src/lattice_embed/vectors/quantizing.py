"""From float32 to a tier, by its name."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy.typing as npt

from lattice_embed.arrays import plain_array
from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors.binary_matrix import BinaryMatrix
from lattice_embed.vectors.half_matrix import BFloat16Matrix, Float16Matrix
from lattice_embed.vectors.int4_matrix import Int4Matrix
from lattice_embed.vectors.int8_calibration import Int8Calibration
from lattice_embed.vectors.int8_matrix import Int8Matrix
from lattice_embed.vectors.stored_matrix import StoredMatrix
from lattice_embed.vectors.tier import QuantizationTier

__all__ = ["quantize"]

Tier = Literal["bfloat16", "float16", "int8", "int4", "binary"]


@overload
def quantize(
    vectors: npt.ArrayLike | StoredMatrix, tier: Literal["int8"], *, calibration: Int8Calibration | None = None
) -> Int8Matrix: ...
@overload
def quantize(vectors: npt.ArrayLike | StoredMatrix, tier: Literal["int4"]) -> Int4Matrix: ...
@overload
def quantize(vectors: npt.ArrayLike | StoredMatrix, tier: Literal["binary"]) -> BinaryMatrix: ...
@overload
def quantize(vectors: npt.ArrayLike | StoredMatrix, tier: Literal["bfloat16"]) -> BFloat16Matrix: ...
@overload
def quantize(vectors: npt.ArrayLike | StoredMatrix, tier: Literal["float16"]) -> Float16Matrix: ...
@overload
def quantize(
    vectors: npt.ArrayLike | StoredMatrix, tier: QuantizationTier, *, calibration: Int8Calibration | None = None
) -> StoredMatrix: ...
def quantize(
    vectors: npt.ArrayLike | StoredMatrix,
    tier: Tier | QuantizationTier,
    *,
    calibration: Int8Calibration | None = None,
) -> StoredMatrix:
    """Store vectors at a lower precision.

    Args:
        vectors: float32 (n, dims) or (dims,), finite; or a stored matrix, which is dequantized first (so that going up a
            tier brings nothing back).
        tier: ``"bfloat16"``, ``"float16"``, ``"int8"``, ``"int4"``, ``"binary"``, or a :class:`QuantizationTier` but FULL.
        calibration: for int8, scales that a whole corpus shares.

    Returns:
        A matrix of n rows, or of one.

    Raises:
        InvalidInputError: a wrong shape, NaN or infinity, an unknown tier, a calibration for another tier than int8.

    >>> matrix = quantize([[3.0, -4.0], [0.5, 1.0]], "int8")
    >>> matrix.data.tolist()
    [[95, -127], [64, 127]]
    """
    try:
        wanted = QuantizationTier(tier)
    except ValueError:
        wanted = QuantizationTier.FULL
    if wanted is QuantizationTier.FULL:
        names = ", ".join(repr(each.value) for each in QuantizationTier if each is not QuantizationTier.FULL)
        raise InvalidInputError(f"tier is {tier!r}; it must be one of {names}")
    if calibration is not None and wanted is not QuantizationTier.INT8:
        raise InvalidInputError(f"a calibration is for int8, not for {wanted.value}")
    rows = vectors.dequantize() if isinstance(vectors, StoredMatrix) else plain_array(vectors, "the vectors")
    return _at_tier(wanted, rows, calibration)._coming_from(vectors)


def _at_tier(tier: QuantizationTier, rows: npt.NDArray[Any], calibration: Int8Calibration | None) -> StoredMatrix:
    match tier:
        case QuantizationTier.INT8:
            return Int8Matrix.quantize(rows, calibration=calibration)
        case QuantizationTier.INT4:
            return Int4Matrix.quantize(rows)
        case QuantizationTier.BINARY:
            return BinaryMatrix.quantize(rows)
        case QuantizationTier.BFLOAT16:
            return BFloat16Matrix.quantize(rows)
        case _:
            return Float16Matrix.quantize(rows)
