"""Vectors in sixteen bits a dimension: bfloat16 or float16."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from lattice_embed.arrays import row_index, without_mask
from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors import _vectors
from lattice_embed.vectors.metric import FLOAT_METRICS
from lattice_embed.vectors.stored_matrix import Float32Array, StoredMatrix, as_rows
from lattice_embed.vectors.tier import QuantizationTier

__all__ = ["BFloat16Matrix", "Float16Matrix", "HalfMatrix"]

LARGEST_FLOAT16 = 65504.0


class HalfMatrix(StoredMatrix):
    """Vectors in half the memory of float32.

    Scores are bit-identical to those of ``dequantize()``. Indexing gives float32 vectors.

    Args:
        data: uint16 (n, dims): the bit patterns.

    Raises:
        InvalidInputError: a wrong shape or dtype.
    """

    metrics: ClassVar[tuple[str, ...]] = FLOAT_METRICS
    _kind: ClassVar[int]
    _is_integer_query = False

    def __init__(self, data: npt.NDArray[np.uint16]) -> None:
        data = without_mask(data, "data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint16 or data.ndim != 2:
            raise InvalidInputError("data must be a uint16 array of shape (n, dims)")
        super().__init__(data.shape[1])
        self.data: npt.NDArray[np.uint16] = np.ascontiguousarray(data)
        """uint16 (n, dims)."""

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept for the rows."""
        return self.data.nbytes

    def take(self, rows: npt.ArrayLike | slice) -> Self:
        """Return the matrix of some rows: a slice, a mask or positions."""
        return type(self)(self.data[row_index(rows, len(self))])._coming_from(self)

    def _make_rows(self, *, squares: bool) -> _vectors.StoredRows:
        return _vectors.StoredRows(self._kind, self.dims, self.data)

    def _vector(self, index: int) -> Float32Array:
        row: Float32Array = self.take(slice(index, index + 1)).dequantize()[0]
        return row


class BFloat16Matrix(HalfMatrix):
    """Vectors as bfloat16: range of float32, eight bits of precision.

    Rounded to nearest, ties to even.
    """

    tier: ClassVar[QuantizationTier] = QuantizationTier.BFLOAT16
    _kind: ClassVar[Literal[1]] = _vectors.BFLOAT16

    @classmethod
    def quantize(cls, vectors: npt.ArrayLike) -> Self:
        """Round float32 vectors, (n, dims) or (dims,).

        Raises:
            InvalidInputError: a wrong shape, NaN or infinity, or a value that would round to infinity.
        """
        rows = as_rows(vectors)
        _vectors._check_finite(rows)
        bits = rows.view(np.uint32)
        rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
            np.uint16
        )
        if ((rounded & 0x7F80) == 0x7F80).any():
            raise InvalidInputError("a value is too large for bfloat16, whose largest is about 3.39e38")
        return cls(rounded)._coming_from(vectors)

    def dequantize(self) -> Float32Array:
        """Return the vectors as stored, float32 (n, dims)."""
        return (self.data.astype(np.uint32) << np.uint32(16)).view(np.float32)


class Float16Matrix(HalfMatrix):
    """Vectors as IEEE float16: eleven bits of precision, magnitudes up to 65,504.

    Rounded to nearest, ties to even.
    """

    tier: ClassVar[QuantizationTier] = QuantizationTier.FLOAT16
    _kind: ClassVar[Literal[2]] = _vectors.FLOAT16

    @classmethod
    def quantize(cls, vectors: npt.ArrayLike) -> Self:
        """Round float32 vectors, (n, dims) or (dims,).

        Raises:
            InvalidInputError: a wrong shape, NaN or infinity, or a magnitude above 65,504.
        """
        rows = as_rows(vectors)
        _vectors._check_finite(rows)
        largest = float(np.abs(rows).max(initial=0.0))
        if not largest <= LARGEST_FLOAT16:
            raise InvalidInputError(f"a magnitude of {largest:g} does not fit float16 (65,504): use bfloat16")
        return cls(rows.astype(np.float16).view(np.uint16))._coming_from(vectors)

    def dequantize(self) -> Float32Array:
        """Return the vectors as stored, float32 (n, dims)."""
        with np.errstate(invalid="ignore"):  # a stored NaN may be a signalling one, of which some processors tell
            rows: Float32Array = self.data.view(np.float16).astype(np.float32)
        return rows
