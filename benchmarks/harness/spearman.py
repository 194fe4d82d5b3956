"""Spearman's rank correlation, equal values sharing the mean of their ranks.

rho = Pearson's correlation of the ranks (Spearman 1904, "The proof and measurement of association between two things").
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["average_ranks", "spearman"]

Float64Array = npt.NDArray[np.float64]


def average_ranks(values: npt.ArrayLike) -> Float64Array:
    """Return the ranks 1 to n of n values; ties get the mean of their ranks."""
    array = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Float64Array = (last - (counts - 1) / 2)[inverse]
    return ranks


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return the rank correlation of two sequences of equal length, from -1 to 1.

    Raises:
        ValueError: lengths differ, there are fewer than two values, one is NaN, or all of one sequence are equal.
    """
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if first.shape != second.shape or first.ndim != 1 or len(first) < 2:
        raise ValueError(
            f"two sequences of one length of at least 2 are needed, not shapes {first.shape}, {second.shape}"
        )
    if np.isnan(first).any() or np.isnan(second).any():
        raise ValueError("a value is NaN, which has no rank")
    a, b = average_ranks(first), average_ranks(second)
    a -= a.mean()
    b -= b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    if not scale > 0:
        raise ValueError("all values of one sequence are equal: their correlation with anything is not defined")
    return float(a @ b) / scale
