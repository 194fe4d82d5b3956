"""Truncation of distributions: top-k, top-p, min-p and typical sampling.

Each function takes scaled logits and returns the indices to keep, in ascending order. The logits that are kept define a
new distribution, so the next function sees probabilities that add up to 1. Nothing sorts the whole vocabulary: a few of
the best tokens are selected first, and more only if needed.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["keep_min_p", "keep_top_k", "keep_top_p", "keep_typical"]

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

FIRST_SELECTION = 128
"""How many tokens are selected first for a probability mass; usually they suffice."""

SELECTION_GROWTH = 8

BLOCK = 64
"""The size of the blocks whose minima limit the candidates when a few of many are selected."""


def keep_top_k(logits: Floats, k: int) -> Indices:
    """Return exactly the ``k`` largest; of equal ones the lower index. 0 keeps all."""
    if k == 0 or k >= logits.size:
        return np.arange(logits.size)
    return _least(-logits, k)


def keep_top_p(logits: Doubles, mass: float) -> Indices:
    """Return the most probable ones until the sum of their probabilities reaches ``mass``.

    At least one is kept. A ``mass`` of 1 keeps all.
    """
    if mass >= 1:
        return np.arange(logits.size)
    return np.sort(_shortest_row(-logits, _probabilities(logits), mass))


def keep_min_p(logits: Doubles, share: float) -> Indices:
    """Return those at least ``share`` times as probable as the most probable one. 0 keeps all."""
    if share <= 0:
        return np.arange(logits.size)
    return np.flatnonzero(logits >= logits.max() + math.log(share))


def keep_typical(logits: Doubles, mass: float) -> Indices:
    """Return those whose surprise is nearest to the entropy until they reach ``mass``.

    A ``mass`` of 1 keeps all.
    """
    if mass >= 1:
        return np.arange(logits.size)
    probabilities = _probabilities(logits)
    surprise = -(logits - logits.max()) + math.log(np.exp(logits - logits.max()).sum())
    entropy = float(probabilities @ surprise)
    return np.sort(_shortest_row(np.abs(surprise - entropy), probabilities, mass))


def _probabilities(logits: Doubles) -> Doubles:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def _least(keys: Floats, count: int) -> Indices:
    """Return the indices of the ``count`` smallest keys, in ascending order.

    Of equal keys the lower indices are taken.
    """
    blocks = keys.size // BLOCK
    if count < blocks:
        # At least `count` keys are no greater than the count-th smallest of the blocks' minima, so only they can be chosen.
        minima = keys[: blocks * BLOCK].reshape(blocks, BLOCK).min(axis=1)
        candidates = np.flatnonzero(keys <= np.partition(minima, count - 1)[count - 1])
        if candidates.size < keys.size:
            return np.asarray(candidates[_least(keys[candidates], count)])
    limit = np.partition(keys, count - 1)[count - 1]
    taken = keys < limit
    taken[np.flatnonzero(keys == limit)[: count - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)


def _shortest_row(keys: Doubles, probabilities: Doubles, mass: float) -> Indices:
    """Return the first indices in the order of ``keys`` until they reach ``mass``.

    Of equal keys the lower index comes first.
    """
    count = min(FIRST_SELECTION, keys.size)
    while True:
        row = _least(keys, count) if count < keys.size else np.arange(keys.size)
        row = row[np.argsort(keys[row], kind="stable")]
        cumulative = np.cumsum(probabilities[row])
        reached = int(np.searchsorted(cumulative, mass, side="left"))
        if reached < count or count == keys.size:
            return row[: reached + 1]
        count = min(count * SELECTION_GROWTH, keys.size)
