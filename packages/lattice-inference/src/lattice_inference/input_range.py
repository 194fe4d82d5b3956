"""The range that the input of a linear was seen to have, by which its elements become integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lattice_inference.errors import InvalidInputError

__all__ = ["RANGE_SUFFIX", "InputRange"]

RANGE_SUFFIX = "_input_range"
"""The range of what multiplies a tensor NAME of a file is its tensor NAME + this, float32: low and high."""

_LEVELS = np.float32(255)
_LEAST_EXTENT = np.float32(2.0**-100)


@dataclass(frozen=True)
class InputRange:
    """What a linear's input is rounded within: x ~ scale * (q - zero_point) with q from 0 to 255; beyond it q is an end.

    Attributes:
        low: at most 0, as float32.
        high: at least 0, as float32.

    Raises:
        InvalidInputError: the ends are not finite, do not enclose 0, or lie too far apart for float32.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            low, high = np.float32(self.low), np.float32(self.high)
            sound = low <= 0 <= high and bool(np.isfinite(high - low))
        if not sound:
            raise InvalidInputError(f"an input's range must be finite and enclose 0, not {self.low!r} to {self.high!r}")
        object.__setattr__(self, "low", float(low))
        object.__setattr__(self, "high", float(high))

    @property
    def scale(self) -> float:
        """What one step of an integer stands for; 0 where every input was 0."""
        return 0.0 if self._is_flat else float(self._extent / _LEVELS)

    @property
    def zero_point(self) -> int:
        """The integer that stands for 0."""
        return 0 if self._is_flat else int(np.rint(-np.float32(self.low) * (_LEVELS / self._extent)))

    @property
    def _extent(self) -> np.float32:
        return np.float32(self.high) - np.float32(self.low)

    @property
    def _is_flat(self) -> bool:
        return not self._extent >= _LEAST_EXTENT
