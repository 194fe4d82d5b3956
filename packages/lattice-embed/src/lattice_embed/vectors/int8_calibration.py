"""One scale a dimension for a whole corpus of int8 vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_number
from lattice_embed.arrays import float32_array, plain_array
from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors.stored_matrix import Float32Array, as_rows

__all__ = ["Int8Calibration"]


@dataclass(frozen=True, eq=False)
class Int8Calibration:
    """How a corpus maps to int8 in each dimension: value = step * q + offset.

    q lies in [-127, 127]. With a calibration no scale is stored a vector, equal components of two vectors are equal
    integers, and dimensions that spread little keep their detail. Where all dimensions spread alike, as in MiniLM's
    vectors, a scale for each vector is a little more exact. Values outside the range that was seen are clipped.

    Attributes:
        steps: float32 (dims,), above zero.
        offsets: float32 (dims,): the middle of each dimension's range.

    Raises:
        InvalidInputError: the arrays do not match, or hold values that are out of range.
    """

    steps: Float32Array
    offsets: Float32Array

    def __post_init__(self) -> None:
        steps = float32_array(self.steps, "steps")
        offsets = float32_array(self.offsets, "offsets")
        if steps.ndim != 1 or steps.shape != offsets.shape:
            raise InvalidInputError(f"steps {steps.shape} and offsets {offsets.shape} must be vectors of one length")
        if not bool(np.all((steps > 0) & np.isfinite(steps) & np.isfinite(offsets))):
            raise InvalidInputError("steps must be finite and above zero, offsets finite")
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "offsets", offsets)

    @classmethod
    def fit(cls, vectors: npt.ArrayLike, *, quantile: float = 1.0) -> Self:
        """Learn the ranges from a sample of the corpus, float32 (n, dims) with n of at least 1.

        Args:
            vectors: the sample; some thousands of vectors are enough.
            quantile: the share of each dimension's values inside its range, in (0, 1]. Below 1, outliers are clipped
                and the rest gets finer steps.

        Raises:
            InvalidInputError: no vectors, NaN or infinity among them, or a quantile out of range.
        """
        rows = as_rows(vectors)
        if len(rows) == 0:
            raise InvalidInputError("a calibration needs at least one vector")
        if not 0 < check_number("quantile", quantile) <= 1:
            raise InvalidInputError(f"quantile is {quantile}; it must be above 0 and at most 1")
        if not bool(np.isfinite(rows).all()):
            raise InvalidInputError("the sample holds NaN or infinity")
        outside = (1 - quantile) / 2
        low, high = np.quantile(rows.astype(np.float64), [outside, 1 - outside], axis=0)
        steps = ((high - low) / 254).astype(np.float32)
        steps[~(steps > 0)] = 1.0
        return cls(steps, ((high + low) / 2).astype(np.float32))

    @property
    def dims(self) -> int:
        """Dimensions of the vectors."""
        return len(self.steps)

    def quantize(self, rows: Float32Array) -> npt.NDArray[np.int8]:
        """Return int8 of float32 rows (n, dims).

        Raises:
            InvalidInputError: rows of another length, or NaN among their values.
        """
        rows = float32_array(rows, "rows")
        self._check_length("rows", rows)
        steps = np.clip(np.rint((rows - self.offsets) / self.steps), -127, 127)
        if np.isnan(steps).any():
            raise InvalidInputError("rows holds NaN, which has no place on int8: leave those rows out")
        data: npt.NDArray[np.int8] = steps.astype(np.int8)
        return data

    def dequantize(self, data: npt.NDArray[np.int8]) -> Float32Array:
        """Return float32 of int8 rows (n, dims).

        Raises:
            InvalidInputError: no int8, or rows of another length.
        """
        data = plain_array(data, "data", kinds="iu")
        self._check_length("data", data)
        if data.dtype != np.int8:
            raise InvalidInputError(f"data is of {data.dtype}; it must be int8")
        rows: Float32Array = data.astype(np.float32) * self.steps + self.offsets
        return rows

    def _check_length(self, name: str, rows: npt.NDArray[Any]) -> None:
        if rows.ndim not in (1, 2) or rows.shape[-1] != self.dims:
            raise InvalidInputError(f"{name} has shape {rows.shape}; its rows must have {self.dims} components")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Int8Calibration):
            return NotImplemented
        return np.array_equal(self.steps, other.steps) and np.array_equal(self.offsets, other.offsets)

    __hash__: ClassVar[None]  # type: ignore[assignment]
