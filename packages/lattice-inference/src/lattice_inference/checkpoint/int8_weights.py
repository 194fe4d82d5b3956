"""Int8 weights: a scale for each output of a linear.

    scale[n] = max over k of |w[n, k]| / 127,  q[n, k] = round(w[n, k] / scale[n]), ties to even,  w ~ scale * q

in float32, so that a weight quantized at load and one quantized into a file are the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import CheckpointError

__all__ = ["SCALE_SUFFIX", "Int8Matrix", "quantize_matrix"]

SCALE_SUFFIX = "_scale"
"""The scales of an int8 tensor NAME of a file are its tensor NAME + this, float32, one for each row."""

Float32Array = npt.NDArray[np.float32]

_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Int8Matrix:
    """``scales[n] * integers[n, k]``.

    Attributes:
        integers: (n, k) int8 from -127 to 127, C-contiguous.
        scales: (n,) float32.
    """

    integers: npt.NDArray[np.int8]
    scales: Float32Array

    def float32(self) -> Float32Array:
        """Return the matrix that the integers stand for."""
        return self.integers * self.scales[:, None]


def quantize_matrix(weight: Float32Array, name: str) -> Int8Matrix:
    """Quantize ``weight`` (n, k) row by row; ``name`` is for messages.

    Raises:
        CheckpointError: an element is NaN or infinite.
    """
    integers = np.empty(weight.shape, np.int8)
    scales = np.empty(len(weight), np.float32)
    for start in range(0, len(weight), _ROWS_AT_A_TIME):
        rows = slice(start, start + _ROWS_AT_A_TIME)
        part = weight[rows]
        largest = np.maximum(part.max(axis=1, initial=0), -part.min(axis=1, initial=0))
        if not np.isfinite(largest).all():
            raise CheckpointError(f"{name} holds NaN or infinity: int8 has no such numbers")
        scales[rows] = largest / np.float32(127)
        # a scale that is zero, or whose quotients would overflow, belongs to a row of nothing
        divisors = np.where(scales[rows] >= np.float32(1e-36), scales[rows], np.float32(np.inf))
        integers[rows] = np.rint(part / divisors[:, None])
        scales[rows] = np.where(np.isinf(divisors), np.float32(0), scales[rows])
    return Int8Matrix(integers, scales)
