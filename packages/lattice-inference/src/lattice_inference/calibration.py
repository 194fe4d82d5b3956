"""A calibration: the ranges that the inputs of a model's linears have on real texts, which fix their int8 scales."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.input_range import InputRange

__all__ = ["Calibration", "check_calibration"]


@dataclass(frozen=True)
class Calibration:
    """Fixed ranges for the inputs of a model's linears; made by :class:`lattice_inference.quantize.Calibrator`.

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
    """Raise UnsupportedError if nothing would use ``calibration``, InvalidInputError if it is none."""
    if calibration is not None and not isinstance(calibration, Calibration):
        raise InvalidInputError(f"calibration is a {type(calibration).__name__}; pass a Calibration, or None")
    if calibration is not None and (precision != "int8" or activations != "int8"):
        raise UnsupportedError(
            "a calibration fixes how rows are rounded to int8, so it needs precision='int8' and int8 activations, not "
            f"precision={precision!r} and {activations} activations"
        )
