"""Vectors in eight bits a dimension."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_kind
from lattice_embed.arrays import row_index, without_mask
from lattice_embed.errors import DimensionMismatchError, InvalidInputError
from lattice_embed.vectors import _vectors
from lattice_embed.vectors.int8_calibration import Int8Calibration
from lattice_embed.vectors.stored_matrix import (
    Float32Array,
    StoredMatrix,
    StoredVector,
    as_rows,
    rows_of_lengths,
    stored_dims,
)
from lattice_embed.vectors.tier import QuantizationTier

__all__ = ["Int8Matrix", "QuantizedVector"]


class Int8Matrix(StoredMatrix):
    """Vectors as int8, with one scale each or the :class:`Int8Calibration` of a corpus.

    By itself a vector has ``scale = 127 / largest magnitude`` and components ``q = round(v * scale)``, halves away from
    zero, in [-127, 127]; stored they are ``q / scale``, off by at most largest / 254. Cosines divide by the length of the
    vector that was quantized, which is kept.

    A float32 query is compared in sixteen bits (in fewer from 513 dimensions on, in 14 at 1,024), not quantized to eight:
    what error there is comes from the rows.

    Args:
        data: int8 (n, dims) without -128.
        scales: float32 (n,), above zero. With a calibration: None.
        norms: float32 (n,), lengths of the original vectors; those of the stored ones if not given.
        calibration: what the rows were quantized with, if it was that.

    Raises:
        InvalidInputError: a wrong shape or dtype, or values out of range.

    >>> from lattice_embed.vectors import quantize, top_k
    >>> matrix = quantize([[3.0, -4.0], [0.5, 1.0]], "int8")
    >>> matrix.data.tolist()
    [[95, -127], [64, 127]]
    >>> top_k([0.0, 1.0], matrix, 1).indices.tolist()
    [1]
    """

    tier: ClassVar[QuantizationTier] = QuantizationTier.INT8
    metrics: ClassVar[tuple[str, ...]] = ("cosine", "dot", "euclidean", "sqeuclidean")

    def __init__(
        self,
        data: npt.NDArray[np.int8],
        scales: npt.ArrayLike | None,
        norms: npt.ArrayLike | None = None,
        *,
        calibration: Int8Calibration | None = None,
    ) -> None:
        data = without_mask(data, "data")
        if not isinstance(data, np.ndarray) or data.dtype != np.int8 or data.ndim != 2:
            raise InvalidInputError(f"data must be an int8 array of shape (n, dims), not {_described(data)}")
        if (data == -128).any():
            raise InvalidInputError("data holds -128; stored components lie in [-127, 127]")
        if calibration is not None:
            check_kind("calibration", calibration, Int8Calibration)
        if (scales is None) == (calibration is None):
            raise InvalidInputError("give scales, one a row, or a calibration")
        super().__init__(stored_dims(data.shape[1]))
        if calibration is not None and calibration.dims != self.dims:
            raise DimensionMismatchError(expected=calibration.dims, actual=self.dims)
        self.data: npt.NDArray[np.int8] = np.ascontiguousarray(data)
        """int8 (n, dims)."""
        self.calibration = calibration
        """What the rows share, or None."""
        count = len(self.data)
        smallest = float(np.finfo(np.float32).tiny)
        self.scales: Float32Array | None
        self.scales = None if scales is None else rows_of_lengths("scales", scales, count, least=smallest)
        """float32 (n,), or None with a calibration."""
        if norms is None:
            norms = np.sqrt(self._squares())
        self.norms: Float32Array = rows_of_lengths("norms", norms, count)
        """float32 (n,): lengths of the vectors before they were quantized."""

    @classmethod
    def quantize(cls, vectors: npt.ArrayLike, *, calibration: Int8Calibration | None = None) -> Self:
        """Quantize float32 vectors, (n, dims) or (dims,).

        Raises:
            InvalidInputError: a wrong shape, or NaN or infinity.
            DimensionMismatchError: the calibration has other dimensions.
        """
        if calibration is not None:
            check_kind("calibration", calibration, Int8Calibration)
        rows = as_rows(vectors)
        norms = lengths(rows)
        if calibration is None:
            data, scales = _vectors._to_int8(rows)
            return cls(data, scales, norms)._coming_from(vectors)
        if calibration.dims != rows.shape[1]:
            raise DimensionMismatchError(expected=calibration.dims, actual=rows.shape[1])
        _vectors._check_finite(rows)
        return cls(calibration.quantize(rows), None, norms, calibration=calibration)._coming_from(vectors)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept for the rows."""
        return self.data.nbytes + self.norms.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def dequantize(self) -> Float32Array:
        """Return the vectors as stored, float32 (n, dims)."""
        if self.calibration is not None:
            return self.calibration.dequantize(self.data)
        assert self.scales is not None
        rows: Float32Array = self.data.astype(np.float32) / self.scales[:, None]
        return rows

    def take(self, rows: npt.ArrayLike | slice) -> Self:
        """Return the matrix of some rows: a slice, a mask or positions."""
        index = row_index(rows, len(self))
        scales = None if self.scales is None else self.scales[index]
        return type(self)(self.data[index], scales, self.norms[index], calibration=self.calibration)._coming_from(self)

    def _squares(self) -> npt.NDArray[np.float64]:
        if self.calibration is not None or self.scales is None:
            rows = self.dequantize().astype(np.float64)
            calibrated: npt.NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows)
            return calibrated
        wide = self.data.astype(np.int32)
        squares: npt.NDArray[np.float64] = np.einsum("ij,ij->i", wide, wide) * self._steps().astype(np.float64) ** 2
        return squares

    def _steps(self) -> Float32Array:
        if self.scales is None:
            return np.ones(len(self), np.float32)
        steps: Float32Array = (1.0 / self.scales.astype(np.float64)).astype(np.float32)
        return steps

    def _make_rows(self, *, squares: bool) -> _vectors.StoredRows:
        shared = self.calibration
        return _vectors.StoredRows(
            _vectors.INT8,
            self.dims,
            self.data,
            steps=self._steps(),
            inverse_norms=inverse(self.norms),
            squares=self._squares() if squares else None,
            column_steps=None if shared is None else shared.steps,
            column_offsets=None if shared is None else shared.offsets,
        )

    def _vector(self, index: int) -> QuantizedVector:
        return QuantizedVector(self, index)

    @property
    def _is_integer_query(self) -> bool:  # type: ignore[override]  # of the others it is a fact of their class
        return self.calibration is None


class QuantizedVector(StoredVector):
    """One int8 vector: a row of an :class:`Int8Matrix`."""

    matrix: Int8Matrix
    _tier = QuantizationTier.INT8

    @classmethod
    def quantize(cls, vector: npt.ArrayLike, *, calibration: Int8Calibration | None = None) -> Self:
        """Quantize a float32 vector (dims,)."""
        return cls(Int8Matrix.quantize(_vectors.as_float32(vector, 1, "the vector"), calibration=calibration), 0)

    @property
    def data(self) -> npt.NDArray[np.int8]:
        """int8 (dims,)."""
        row: npt.NDArray[np.int8] = self.matrix.data[self.index]
        return row

    @property
    def scale(self) -> float | None:
        """127 / largest magnitude, or None with a calibration."""
        return None if self.matrix.scales is None else float(self.matrix.scales[self.index])

    @property
    def norm(self) -> float:
        """Length of the vector before it was quantized."""
        return float(self.matrix.norms[self.index])


def lengths(rows: Float32Array) -> Float32Array:
    """Return the Euclidean length of each row, float32 (n,), taken in double precision."""
    wide = rows.astype(np.float64)
    norms: Float32Array = np.sqrt(np.einsum("ij,ij->i", wide, wide)).astype(np.float32)
    return norms


def inverse(norms: Float32Array) -> Float32Array:
    """Return 1 / norm, and 0 for a norm of 0."""
    out = np.zeros(len(norms), np.float64)
    np.divide(1.0, norms, out=out, where=norms > 0, dtype=np.float64)  # of a subnormal norm it is over float32's range
    limited: Float32Array = np.minimum(out, np.finfo(np.float32).max).astype(np.float32)
    return limited


def _described(data: Any) -> str:
    return f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else f"a {type(data).__name__}"
