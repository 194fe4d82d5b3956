"""Weights: how much mass each point has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.arrays import as_numbers
from lattice_transport.checks import check_count
from lattice_transport.errors import (
    DimensionMismatchError,
    EmptyProblemError,
    InvalidInputError,
    InvalidMarginalError,
    MarginalMassMismatchError,
)

__all__ = ["Marginals", "balanced_marginals", "check_weights", "free_marginals", "normalize_weights", "uniform_weights"]

_Float64 = npt.NDArray[np.float64]
_LEAST_TOLERANCE = 1e-4
_LEAST_MASS, _MOST_MASS = 1e-250, 1e250  # products with costs and counts stay finite


def uniform_weights(count: int) -> _Float64:
    """Return ``count`` equal weights that sum to 1."""
    if check_count("the number of weights", count, least=0) == 0:
        raise EmptyProblemError("there must be at least one weight")
    return np.full(count, 1.0 / count)


def normalize_weights(weights: npt.ArrayLike) -> _Float64:
    """Return the weights divided by their sum.

    Raises:
        InvalidMarginalError: a weight is negative, infinite or NaN.
        EmptyProblemError: none is above zero.
    """
    array = as_numbers(weights, "the weights")
    if array.ndim != 1:
        raise DimensionMismatchError("dimensions of the weights", expected=1, actual=array.ndim)
    array = check_weights(array, array.size, 0)
    result: _Float64 = array / array.sum()
    return result


def check_weights(weights: npt.ArrayLike | None, count: int, axis: int) -> _Float64:
    """Return ``weights`` (None: uniform) in float64, checked against ``count`` points.

    Raises:
        DimensionMismatchError: another number of weights than of points.
        InvalidMarginalError: a weight is negative, infinite or NaN.
        EmptyProblemError: none is above zero.
    """
    if weights is None:
        return np.full(count, 1.0 / count)
    side = "source" if axis == 0 else "target"
    array = as_numbers(weights, f"the weights of the {side}")
    if array.ndim != 1 or array.shape[0] != count:
        raise DimensionMismatchError(f"weights of the {side}", expected=(count,), actual=array.shape)
    if array.dtype == np.float64:
        array = array.copy()
    else:
        with np.errstate(over="ignore"):  # of longer floats: infinity is refused below
            array = array.astype(np.float64)
    valid = (array >= 0.0) & (array < np.inf)
    if not valid.all():
        index = int(np.argmin(valid))
        raise InvalidMarginalError(axis, index, float(array[index]))
    most = float(array.max()) if count else 0.0
    if most == 0.0:
        raise EmptyProblemError(f"the weights of the {side} are all zero")
    if not _LEAST_MASS <= most <= _MOST_MASS:
        raise InvalidInputError(
            f"the largest weight of the {side} is {most:.3g}; rescale the weights, so that it is from {_LEAST_MASS:g} to "
            f"{_MOST_MASS:g}"
        )
    return array


@dataclass(frozen=True)
class Marginals:
    """Weights without their zeros, and which points those are (None: all of them)."""

    a: _Float64
    b: _Float64
    rows: npt.NDArray[Any] | None
    columns: npt.NDArray[Any] | None


def _pruned(weights: _Float64) -> tuple[_Float64, npt.NDArray[Any] | None]:
    positive = weights > 0.0
    if positive.all():
        return weights, None
    kept = np.flatnonzero(positive)
    return weights[kept], kept


def free_marginals(a: npt.ArrayLike | None, b: npt.ArrayLike | None, rows: int, columns: int) -> Marginals:
    """Return the weights of a problem whose masses may differ."""
    source, kept_rows = _pruned(check_weights(a, rows, 0))
    target, kept_columns = _pruned(check_weights(b, columns, 1))
    return Marginals(source, target, kept_rows, kept_columns)


def balanced_marginals(
    a: npt.ArrayLike | None, b: npt.ArrayLike | None, rows: int, columns: int, min_marginal: float = 1e-12
) -> Marginals:
    """Return the weights of a balanced problem; ``b`` is rescaled to the mass of ``a``.

    Raises:
        MarginalMassMismatchError: the masses differ by more than a ten-thousandth.
    """
    found = free_marginals(a, b, rows, columns)
    source_sum, target_sum = float(found.a.sum()), float(found.b.sum())
    tolerance = max(_LEAST_TOLERANCE, min_marginal * max(rows, columns))
    if not abs(source_sum - target_sum) <= tolerance * max(source_sum, target_sum):
        raise MarginalMassMismatchError(source_sum, target_sum, tolerance)
    if source_sum == target_sum:
        return found
    return Marginals(found.a, found.b * (source_sum / target_sum), found.rows, found.columns)
