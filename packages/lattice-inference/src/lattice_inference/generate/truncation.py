"""Truncation of distributions: top-k, top-p, min-p and typical sampling, in a readable form.

Each function takes the tokens' surpluses (see :mod:`~lattice_inference.generate.exact_weights`) and returns the indices to
keep, in ascending order. The tokens that are kept define a new distribution for the next function.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lattice_inference.generate.exact_weights import Weights, reached_at, weights_of

__all__ = ["keep_min_p", "keep_top_k", "keep_top_p", "keep_typical"]

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


def keep_top_k(surplus: Doubles, k: int) -> Indices:
    """Return exactly the ``k`` largest; of equal ones the lower index. 0 keeps all."""
    if k == 0 or k >= surplus.size:
        return np.arange(surplus.size)
    return np.sort(np.argsort(-surplus, kind="stable")[:k])


def keep_typical(surplus: Doubles, mass: float, bits: int) -> Indices:
    """Return those whose surprise is nearest to the entropy until they reach ``mass``.

    A ``mass`` of 1 keeps all. Surprise is a constant minus the surplus, and entropy is the mean surprise, so the constant
    cancels out. The mean is a quotient of two sums of whole numbers.
    """
    if mass >= 1:
        return np.arange(surplus.size)
    weights = weights_of(surplus, bits)
    products = np.rint(weights.astype(np.float64) * -surplus).astype(np.int64)
    mean = float(int(products.sum())) / float(int(weights.sum()))
    return _shortest_row(np.abs(-surplus - mean), weights, mass)


def keep_top_p(surplus: Doubles, mass: float, bits: int) -> Indices:
    """Return the most probable ones until the sum of their probabilities reaches ``mass``.

    At least one is kept. A ``mass`` of 1 keeps all.
    """
    if mass >= 1:
        return np.arange(surplus.size)
    return _shortest_row(-surplus, weights_of(surplus, bits), mass)


def keep_min_p(surplus: Doubles, share: float, bits: int) -> Indices:
    """Return those at least ``share`` times as probable as the most probable one. 0 keeps all."""
    if share <= 0:
        return np.arange(surplus.size)
    return np.flatnonzero(weights_of(surplus, bits) >= reached_at(1 << bits, share))


def _shortest_row(keys: Doubles, weights: Weights, mass: float) -> Indices:
    """Return the first indices in the order of ``keys`` until they reach ``mass``.

    Of equal keys the lower index comes first.
    """
    row = np.argsort(keys, kind="stable")
    cumulative = np.cumsum(weights[row])
    reached = int(np.searchsorted(cumulative, reached_at(int(cumulative[-1]), mass), side="left"))
    return np.sort(row[: reached + 1])
