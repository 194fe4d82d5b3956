"""What range a linear's inputs have: observers that see them step by step."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from lattice_inference.calibration import InputRange
from lattice_inference.errors import InvalidInputError

__all__ = [
    "CalibrationMethod",
    "EmaObserver",
    "MaxAbsObserver",
    "Observer",
    "PercentileObserver",
]

CalibrationMethod = Literal["max-abs", "ema", "percentile"]
"""How a range is found; see the observers."""

Float32Array = npt.NDArray[np.float32]

_BINS = 2048  # on each side of zero
_MOST_EXPONENT = 127


class Observer(Protocol):
    """Sees the inputs of a linear and tells their range."""

    def observe(self, values: Float32Array) -> None:
        """Take the finite inputs of one step, of any shape."""

    def range(self) -> InputRange:
        """Return the range of what was observed."""


class MaxAbsObserver:
    """The largest magnitude on each side of zero: nothing that was seen is cut off."""

    def __init__(self) -> None:
        self._low = self._high = 0.0

    def observe(self, values: Float32Array) -> None:
        """Take the inputs of one step."""
        self._low = min(self._low, float(values.min(initial=0)))
        self._high = max(self._high, float(values.max(initial=0)))

    def range(self) -> InputRange:
        """Return the range of what was observed."""
        return InputRange(self._low, self._high)


class EmaObserver:
    """The exponential moving average of each step's largest magnitudes.

    So one outlier does not decide.

    Args:
        momentum: from 0 up to but not including 1; what the average keeps of its past at each step. It begins with the
            first step's.

    Raises:
        InvalidInputError: ``momentum`` is out of range.
    """

    def __init__(self, momentum: float) -> None:
        if not 0 <= momentum < 1:
            raise InvalidInputError(f"momentum must be at least 0 and below 1, not {momentum!r}")
        self._momentum = momentum
        self._ends: tuple[float, float] | None = None

    def observe(self, values: Float32Array) -> None:
        """Take the inputs of one step."""
        low, high = float(values.min(initial=0)), float(values.max(initial=0))
        if self._ends is not None:
            past, share = self._ends, 1 - self._momentum
            low, high = self._momentum * past[0] + share * low, self._momentum * past[1] + share * high
        self._ends = low, high

    def range(self) -> InputRange:
        """Return the range of what was observed."""
        return InputRange(*(self._ends or (0.0, 0.0)))


class PercentileObserver:
    """The range that holds ``percentile`` percent of all inputs.

    As many are cut off below as above. Inputs are counted in 2,048 bins on each side of zero, up to a power of two. A
    larger input joins neighbouring bins. So the result does not depend on the order of steps, and each end is at most
    a bin too far out.

    Args:
        percentile: above 50, at most 100.

    Raises:
        InvalidInputError: ``percentile`` is out of range.
    """

    def __init__(self, percentile: float) -> None:
        if not 50 < percentile <= 100:
            raise InvalidInputError(f"percentile must be above 50 and at most 100, not {percentile!r}")
        self._percentile = percentile
        self._exponent = -_MOST_EXPONENT
        self._counts = np.zeros(2 * _BINS, np.int64)

    def observe(self, values: Float32Array) -> None:
        """Take the inputs of one step."""
        if not values.size:
            return
        largest = float(np.abs(values).max())
        exponent = max(int(np.frexp(largest)[1]) if largest else self._exponent, self._exponent)  # largest < 2^exponent
        for _ in range(min(exponent - self._exponent, _BINS.bit_length() + 1)):
            negative, positive = self._counts[:_BINS], self._counts[_BINS:]
            joined = np.zeros_like(self._counts)
            joined[_BINS // 2 : _BINS] = negative.reshape(-1, 2).sum(axis=1)
            joined[_BINS : _BINS + _BINS // 2] = positive.reshape(-1, 2).sum(axis=1)
            self._counts = joined
        self._exponent = exponent
        bins = np.floor(np.ldexp(values.reshape(-1).astype(np.float64), _BINS.bit_length() - 1 - exponent))
        self._counts += np.bincount((bins + _BINS).astype(np.int64), minlength=2 * _BINS)

    def range(self) -> InputRange:
        """Return the range of what was observed."""
        total = int(self._counts.sum())
        if not total:
            return InputRange(0.0, 0.0)
        cut = total * (100 - self._percentile) / 200
        low = int(np.argmax(np.cumsum(self._counts) > cut)) - _BINS  # the bin's lower end
        high = _BINS - int(np.argmax(np.cumsum(self._counts[::-1]) > cut))  # the bin's upper end
        width = 2.0 ** (self._exponent - (_BINS.bit_length() - 1))
        return InputRange(min(low * width, 0.0), max(high * width, 0.0))
