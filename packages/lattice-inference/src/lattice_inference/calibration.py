"""Input ranges of a model's linears on real texts, for rounding them to integers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from lattice_inference.errors import InvalidInputError, UnsupportedError

__all__ = ["RANGE_SUFFIX", "Calibration", "InputRange", "check_calibration"]

RANGE_SUFFIX = "_input_range"
"""The range of what multiplies a tensor NAME of a file is its tensor NAME + this, float32: low and high."""

_LEVELS = np.float32(255)
_LEAST_EXTENT = np.float32(2.0**-100)


@dataclass(frozen=True)
class InputRange:
    """The rounding range of a linear's input: x ~ scale * (q - zero_point).

    q lies in 0 to 255; values beyond the range take an end.

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


@dataclass(frozen=True)
class Calibration:
    """Fixed input ranges of linears; see :class:`lattice_inference.quantize.Calibrator`.

    Attributes:
        method: how they were found, in words.
        tokens: how many tokens were seen.
        ranges: the range of what multiplies a weight, by the weight's name.
    """

    method: str
    tokens: int
    ranges: Mapping[str, InputRange] = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", MappingProxyType(dict(self.ranges)))

    def __reduce__(self) -> tuple[type[Calibration], tuple[str, int, dict[str, InputRange]]]:
        return Calibration, (self.method, self.tokens, dict(self.ranges))

    def as_metadata(self) -> str:
        """Return how it came about, as the metadata of a checkpoint have it."""
        return json.dumps({"method": self.method, "tokens": self.tokens})

    def digest(self) -> str:
        """Return the beginning of the ranges' SHA-256, as a fingerprint has it."""
        digest = hashlib.sha256()
        for name in sorted(self.ranges):
            limits = self.ranges[name]
            digest.update(name.encode() + b"\0" + np.array([limits.low, limits.high], "<f4").tobytes())
        return f"calibrated-{digest.hexdigest()[:16]}"

    def range(self, weight: str) -> InputRange:
        """Return the range of what multiplies ``weight``.

        Raises:
            InvalidInputError: it was not observed.
        """
        try:
            return self.ranges[weight]
        except KeyError:
            raise InvalidInputError(
                f"the calibration has no range for {weight}: it was made with another model"
            ) from None


def check_calibration(calibration: Calibration | None, precision: str, activations: str = "int8") -> None:
    """Refuse a ``calibration`` without effect.

    Raises UnsupportedError if nothing would use it, InvalidInputError if it is none.
    """
    if calibration is not None and not isinstance(calibration, Calibration):
        raise InvalidInputError(f"calibration is a {type(calibration).__name__}; pass a Calibration, or None")
    if calibration is not None and (precision != "int8" or activations != "int8"):
        raise UnsupportedError(
            "a calibration fixes how rows are rounded to int8, so it needs precision='int8' and int8 activations, not "
            f"precision={precision!r} and {activations} activations"
        )
