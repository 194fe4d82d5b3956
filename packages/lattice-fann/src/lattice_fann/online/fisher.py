"""Elastic weight consolidation: keeps what was learned before [Kirkpatrick et al. 2017]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lattice_fann.arguments import real, whole
from lattice_fann.arrays import float32_of, number_array
from lattice_fann.errors import InvalidInputError, SizeMismatchError
from lattice_fann.layer import MAX_ALLOWED_ELEMENTS, Float32Array

__all__ = ["DiagonalFisher"]

_NEGLIGIBLE = 1e-8


class DiagonalFisher:
    """The diagonal of the Fisher information, and an anchor.

    The diagonal is a moving average of squared gradients. Vectors are laid out as :meth:`Network.parameter_vector`;
    one of another length is refused.

    Args:
        size: number of parameters.
        decay: of the moving average, in (0, 1).

    Attributes:
        values: (size,) float32, the average.
        anchor: (size,) float32, the parameters that the penalty pulls towards; None until set.
    """

    def __init__(self, size: int, decay: float = 0.99) -> None:
        whole(size, "size", least=1, most=64 * MAX_ALLOWED_ELEMENTS)
        self.decay: float = real(decay, "decay", "in (0, 1)", above=0, below=1)
        self.values: Float32Array = np.zeros(size, dtype=np.float32)
        self.anchor: Float32Array | None = None

    def observe_gradient(self, gradient: npt.ArrayLike) -> None:
        """Take a gradient into the average: values = decay * values + (1 - decay) * gradient^2.

        Raises:
            InvalidInputError: it holds a value that is not finite, or whose square is not.
        """
        vector = self._vector(gradient, "gradient")
        with np.errstate(over="ignore"):
            updated = np.float32(self.decay) * self.values + np.float32(1 - self.decay) * vector * vector
        if not np.isfinite(updated).all():
            raise InvalidInputError("the square of a gradient entry is beyond float32")
        self.values = updated

    def set_anchor(self, parameters: npt.ArrayLike) -> None:
        """Make ``parameters`` what the penalty pulls towards."""
        self.anchor = self._vector(parameters, "parameters").copy()

    def penalty(self, parameters: npt.ArrayLike, strength: float) -> float:
        """Return strength / 2 * sum of values * (parameters - anchor)^2; 0 before an anchor is set."""
        vector, factor = self._vector(parameters, "parameters"), self._strength(strength)
        if self.anchor is None:
            return 0.0
        distance = vector.astype(np.float64) - self.anchor
        with np.errstate(all="ignore"):
            penalty = float(0.5 * factor * (self.values * distance * distance).sum())
        if not np.isfinite(penalty):
            raise InvalidInputError(f"the penalty at strength {factor} is not finite: make the strength smaller")
        return penalty

    def penalty_gradient(self, parameters: npt.ArrayLike, strength: float) -> Float32Array:
        """Return the penalty's gradient, strength * values * (parameters - anchor).

        Zeros before an anchor is set.
        """
        vector, factor = self._vector(parameters, "parameters"), self._strength(strength)
        if self.anchor is None:
            return np.zeros_like(self.values)
        with np.errstate(all="ignore"):
            pull = np.asarray(np.float32(factor) * self.values * (vector - self.anchor), dtype=np.float32)
        if not np.isfinite(pull).all():
            raise InvalidInputError(f"the penalty's gradient at strength {factor} is beyond float32")
        return pull

    def project_delta(self, delta: npt.ArrayLike) -> Float32Array:
        """Return a step with each entry scaled by 1 - values / max(values).

        Important parameters change least. With no information yet (max below 1e-8) the step is returned as it is.
        Observe the gradient after projecting, not before: otherwise a fresh average always blocks the largest entry
        of the very step at hand.
        """
        vector = self._vector(delta, "delta")
        largest = float(self.values.max())
        if largest < _NEGLIGIBLE:
            return vector.copy()
        freedom = np.maximum(np.float32(0), np.float32(1) - self.values / np.float32(largest))
        return np.asarray(vector * freedom, dtype=np.float32)

    def _vector(self, values: npt.ArrayLike, name: str) -> Float32Array:
        vector = float32_of(number_array(values, name))
        if vector.shape != self.values.shape:
            raise SizeMismatchError(f"{name} has shape {vector.shape}, the Fisher information {self.values.shape}")
        if not np.isfinite(vector).all():
            raise InvalidInputError(f"{name} holds a value that is not finite")
        return vector

    @staticmethod
    def _strength(strength: float) -> float:
        return real(strength, "strength", "of at least 0", least=0)
