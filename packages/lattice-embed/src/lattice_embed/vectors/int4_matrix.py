"""Vectors in four bits a dimension."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from lattice_embed.arrays import row_index, without_mask
from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors import _vectors
from lattice_embed.vectors.int8_matrix import inverse, lengths
from lattice_embed.vectors.stored_matrix import (
    Float32Array,
    StoredMatrix,
    StoredVector,
    as_rows,
    rows_of_lengths,
    stored_dims,
)
from lattice_embed.vectors.tier import QuantizationTier

__all__ = ["Int4Matrix", "Int4Vector"]


class Int4Matrix(StoredMatrix):
    """Vectors as int4: sixteen steps from -largest to +largest of each vector.

    ``scale = 15 / (2 * largest)`` and ``q = round((v + largest) * scale)`` in [0, 15]; stored a component is
    ``q / scale - largest``, off by at most largest / 15. Two components lie in a byte, the even one in the high nibble; an
    odd number of dimensions leaves the last low nibble zero.

    A float32 query is compared in eight bits: its error is at most a sixteenth of the rows' own.

    Args:
        data: uint8 (n, (dims + 1) // 2).
        dims: dimensions of a vector.
        scales: float32 (n,), above zero.
        max_abs: float32 (n,): the largest magnitude of each vector.
        norms: float32 (n,), lengths of the original vectors; those of the stored ones if not given.

    Raises:
        InvalidInputError: a wrong shape or dtype, or values out of range.
    """

    tier: ClassVar[QuantizationTier] = QuantizationTier.INT4
    metrics: ClassVar[tuple[str, ...]] = ("cosine", "dot", "euclidean", "sqeuclidean")

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        dims: int,
        scales: npt.ArrayLike,
        max_abs: npt.ArrayLike,
        norms: npt.ArrayLike | None = None,
    ) -> None:
        dims = stored_dims(dims)
        wanted = (dims + 1) // 2
        data = without_mask(data, "data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != wanted:
            raise InvalidInputError(f"data must be a uint8 array of shape (n, {wanted}) for {dims} dimensions")
        if dims % 2 and (data[:, -1] & 15).any():
            raise InvalidInputError("the unused low nibble of the last byte must be zero")
        super().__init__(dims)
        count = len(data)
        self.data: npt.NDArray[np.uint8] = np.ascontiguousarray(data)
        """uint8 (n, (dims + 1) // 2)."""
        self.scales: Float32Array = rows_of_lengths("scales", scales, count, least=float(np.finfo(np.float32).tiny))
        """float32 (n,)."""
        self.max_abs: Float32Array = rows_of_lengths("max_abs", max_abs, count)
        """float32 (n,)."""
        self.norms: Float32Array = rows_of_lengths("norms", np.sqrt(self._squares()) if norms is None else norms, count)
        """float32 (n,): lengths of the vectors before they were quantized."""

    @classmethod
    def quantize(cls, vectors: npt.ArrayLike) -> Self:
        """Quantize float32 vectors, (n, dims) or (dims,).

        Raises:
            InvalidInputError: a wrong shape, or NaN or infinity.
        """
        rows = as_rows(vectors)
        data, scales, max_abs = _vectors._to_int4(rows)
        return cls(data, rows.shape[1], scales, max_abs, lengths(rows))._coming_from(vectors)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept for the rows."""
        return self.data.nbytes + self.scales.nbytes + self.max_abs.nbytes + self.norms.nbytes

    @property
    def codes(self) -> npt.NDArray[np.uint8]:
        """The components' integers, unpacked: uint8 (n, dims), 0 to 15."""
        codes = np.empty((len(self), 2 * self.data.shape[1]), np.uint8)
        codes[:, 0::2] = self.data >> 4
        codes[:, 1::2] = self.data & 15
        return codes[:, : self.dims]

    def dequantize(self) -> Float32Array:
        """Return the vectors as stored, float32 (n, dims)."""
        rows: Float32Array = self.codes.astype(np.float32) / self.scales[:, None] - self.max_abs[:, None]
        return rows

    def take(self, rows: npt.ArrayLike | slice) -> Self:
        """Return the matrix of some rows: a slice, a mask or positions."""
        index = row_index(rows, len(self))
        return type(self)(
            self.data[index], self.dims, self.scales[index], self.max_abs[index], self.norms[index]
        )._coming_from(self)

    def _steps(self) -> Float32Array:
        steps: Float32Array = (1.0 / self.scales.astype(np.float64)).astype(np.float32)
        return steps

    def _squares(self) -> npt.NDArray[np.float64]:
        rows = self.codes * self._steps().astype(np.float64)[:, None] - self.max_abs.astype(np.float64)[:, None]
        squares: npt.NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows)
        return squares

    def _make_rows(self, *, squares: bool) -> _vectors.StoredRows:
        sums = (self.data >> 4).sum(axis=1, dtype=np.int32) + (self.data & 15).sum(axis=1, dtype=np.int32)
        return _vectors.StoredRows(
            _vectors.INT4,
            self.dims,
            self.data,
            steps=self._steps(),
            offsets=self.max_abs,
            sums=sums,
            inverse_norms=inverse(self.norms),
            squares=self._squares() if squares else None,
        )

    def _vector(self, index: int) -> Int4Vector:
        return Int4Vector(self, index)


class Int4Vector(StoredVector):
    """One int4 vector: a row of an :class:`Int4Matrix`."""

    matrix: Int4Matrix
    _tier = QuantizationTier.INT4

    @classmethod
    def quantize(cls, vector: npt.ArrayLike) -> Self:
        """Quantize a float32 vector (dims,)."""
        return cls(Int4Matrix.quantize(_vectors.as_float32(vector, 1, "the vector")), 0)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """uint8 ((dims + 1) // 2,)."""
        row: npt.NDArray[np.uint8] = self.matrix.data[self.index]
        return row

    @property
    def scale(self) -> float:
        """15 / (2 * largest magnitude)."""
        return float(self.matrix.scales[self.index])

    @property
    def max_abs(self) -> float:
        """The largest magnitude."""
        return float(self.matrix.max_abs[self.index])

    @property
    def norm(self) -> float:
        """Length of the vector before it was quantized."""
        return float(self.matrix.norms[self.index])
