"""Transport between Gaussians, in closed form: the Bures-Wasserstein distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_transport.arrays import as_numbers
from lattice_transport.checks import check_kind
from lattice_transport.costs import as_points, differences_that_fit, points_that_fit
from lattice_transport.errors import DimensionMismatchError, InvalidInputError, TooFewSamplesError
from lattice_transport.measures import check_weights

__all__ = ["Gaussian", "fit_gaussian", "gaussian_wasserstein"]

_MOST_SCALE = 1e150  # of a variance: products of two stay finite

_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A mean (dimension,) and a covariance (dimension, dimension), symmetric and not negative.

    Raises:
        InvalidInputError: another shape, values that are not finite, or no covariance.
    """

    mean: _Float64
    covariance: _Float64

    def __post_init__(self) -> None:
        mean = np.atleast_1d(as_numbers(self.mean, "the mean")).astype(np.float64)
        covariance = np.atleast_2d(as_numbers(self.covariance, "the covariance")).astype(np.float64)
        if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
            raise DimensionMismatchError("covariance", expected=(len(mean), len(mean)), actual=covariance.shape)
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise InvalidInputError("the mean and the covariance must be finite")
        if mean.size == 0:
            raise InvalidInputError("a Gaussian needs at least one dimension")
        if not (float(np.abs(covariance).max()) < _MOST_SCALE and float(np.abs(mean).max()) < _MOST_SCALE):
            raise InvalidInputError(f"the mean and the covariance must be below {_MOST_SCALE:g}; scale the points")
        scale = float(np.abs(covariance).max())
        if not float(np.abs(covariance - covariance.T).max()) <= 1e-8 * scale:
            raise InvalidInputError("the covariance is not symmetric")
        covariance = 0.5 * (covariance + covariance.T)
        if not float(np.linalg.eigvalsh(covariance)[0]) >= -1e-8 * scale:
            raise InvalidInputError("the covariance has a negative eigenvalue")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)


def fit_gaussian(points: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Gaussian:
    """Return the Gaussian with mean and covariance of points (n, dimension).

    The covariance is unbiased for equal weights.

    Raises:
        TooFewSamplesError: fewer than two points.
        InvalidInputError: and its kinds, for points or weights that are none.
    """
    array = as_points(points, "the points").astype(np.float64)
    if len(array) < 2:
        raise TooFewSamplesError("the points", len(array), 2)
    masses = check_weights(weights, len(array), 0)
    points_that_fit(array, "the points", "sqeuclidean")
    differences_that_fit(array, array, "sqeuclidean")
    masses = masses / masses.sum()
    mean = masses @ array
    centred = array - mean
    unbiased = 1.0 - float(masses @ masses)
    with np.errstate(over="ignore"):  # what is not finite is refused
        covariance = (centred * masses[:, None]).T @ centred / max(unbiased, float(np.finfo(float).tiny))
    return Gaussian(mean, covariance)


def _scaled(covariance: _Float64) -> tuple[_Float64, float]:
    """Return the covariance in units of about a deviation, and this unit, a power of two.

    Products of such covariances stay in the range of float64.
    """
    exponent = math.frexp(float(np.abs(covariance).max()))[1] // 2
    return np.ldexp(covariance, -2 * exponent), math.ldexp(1.0, exponent)


def _root(matrix: _Float64) -> _Float64:
    values, vectors = np.linalg.eigh(matrix)
    result: _Float64 = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return result


def gaussian_wasserstein(first: Gaussian, second: Gaussian) -> float:
    """Return the 2-Wasserstein distance between two Gaussians.

    W^2 = |m1 - m2|^2 + trace(S1 + S2 - 2 (S1^1/2 S2 S1^1/2)^1/2). Covariances may be singular.
    """
    check_kind("first", first, Gaussian)
    check_kind("second", second, Gaussian)
    if len(first.mean) != len(second.mean):
        raise DimensionMismatchError("dimension of the Gaussians", expected=len(first.mean), actual=len(second.mean))
    (one, one_unit), (other, other_unit) = _scaled(first.covariance), _scaled(second.covariance)
    root = _root(one)
    middle = root @ other @ root
    cross = float(np.sqrt(np.maximum(np.linalg.eigvalsh(0.5 * (middle + middle.T)), 0.0)).sum()) * one_unit * other_unit
    gap = first.mean - second.mean
    squared = float(gap @ gap) + float(np.trace(first.covariance) + np.trace(second.covariance)) - 2.0 * cross
    return math.sqrt(max(squared, 0.0))
