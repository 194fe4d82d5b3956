"""Vectors in one bit a dimension."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_number
from lattice_embed.arrays import LARGEST_FLOAT32, row_index, without_mask
from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors import _vectors
from lattice_embed.vectors.stored_matrix import Float32Array, StoredMatrix, StoredVector, as_rows, stored_dims
from lattice_embed.vectors.tier import QuantizationTier

__all__ = ["BinaryMatrix", "BinaryVector"]


class BinaryMatrix(StoredMatrix):
    """Vectors as bits: 1 for a component of at least the threshold.

    The first component is the highest bit. The last byte's unused bits are zero. ``"cosine"`` is ``1 - 2 * differing
    / dims``, ``"hamming"`` the number of differing bits. A float32 query is cut to bits by the same threshold.

    Args:
        data: uint8 (n, (dims + 7) // 8).
        dims: dimensions of a vector.
        threshold: what float32 queries are compared with.

    Raises:
        InvalidInputError: a wrong shape or dtype, or bits set beyond the dimensions.
    """

    tier: ClassVar[QuantizationTier] = QuantizationTier.BINARY
    metrics: ClassVar[tuple[str, ...]] = ("cosine", "hamming")

    def __init__(self, data: npt.NDArray[np.uint8], dims: int, *, threshold: float = 0.0) -> None:
        dims = stored_dims(dims)
        wanted = (dims + 7) // 8
        data = without_mask(data, "data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != wanted:
            raise InvalidInputError(f"data must be a uint8 array of shape (n, {wanted}) for {dims} dimensions")
        if dims % 8 and (data[:, -1] & (0xFF >> dims % 8)).any():
            raise InvalidInputError(f"the last byte has bits set beyond dimension {dims}")
        threshold = _check_threshold(threshold)
        super().__init__(dims)
        self.data: npt.NDArray[np.uint8] = np.ascontiguousarray(data)
        """uint8 (n, (dims + 7) // 8)."""
        self.threshold = threshold
        """From which value on a bit is set."""

    @classmethod
    def quantize(cls, vectors: npt.ArrayLike, *, threshold: float = 0.0) -> Self:
        """Quantize float32 vectors, (n, dims) or (dims,).

        Raises:
            InvalidInputError: a wrong shape, or NaN or infinity.
        """
        threshold = _check_threshold(threshold)
        rows = as_rows(vectors)
        return cls(_vectors._to_binary(rows, threshold), rows.shape[1], threshold=threshold)._coming_from(vectors)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept for the rows."""
        return self.data.nbytes

    def dequantize(self) -> Float32Array:
        """Return +1 and -1, float32 (n, dims): directions are kept, lengths are not."""
        bits = np.unpackbits(self.data, axis=1, count=self.dims)
        rows: Float32Array = bits.astype(np.float32) * 2 - 1
        return rows

    def take(self, rows: npt.ArrayLike | slice) -> Self:
        """Return the matrix of some rows: a slice, a mask or positions."""
        index = row_index(rows, len(self))
        return type(self)(self.data[index], self.dims, threshold=self.threshold)._coming_from(self)

    def _make_rows(self, *, squares: bool) -> _vectors.StoredRows:
        return _vectors.StoredRows(_vectors.BINARY, self.dims, self.data, threshold=self.threshold)

    def _vector(self, index: int) -> BinaryVector:
        return BinaryVector(self, index)


def _check_threshold(threshold: float) -> float:
    """Return a threshold that float32 holds."""
    return check_number("threshold", threshold, lowest=-LARGEST_FLOAT32, highest=LARGEST_FLOAT32)


class BinaryVector(StoredVector):
    """One binary vector: a row of a :class:`BinaryMatrix`."""

    matrix: BinaryMatrix
    _tier = QuantizationTier.BINARY

    @classmethod
    def quantize(cls, vector: npt.ArrayLike, *, threshold: float = 0.0) -> Self:
        """Quantize a float32 vector (dims,)."""
        return cls(BinaryMatrix.quantize(_vectors.as_float32(vector, 1, "the vector"), threshold=threshold), 0)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """uint8 ((dims + 7) // 8,)."""
        row: npt.NDArray[np.uint8] = self.matrix.data[self.index]
        return row
