"""Which tokens may be drawn: each function takes scaled logits and returns the indices to keep, in ascending order.

The logits of the kept tokens stand for a distribution again, so the next function sees probabilities that add up to 1.
Nothing sorts the whole vocabulary: the best few are selected first, and more only if they do not suffice.
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
"""How many tokens are looked at first for a probability mass; usually they hold it."""

SELECTION_GROWTH = 8

BLOCK = 64
"""How many neighbours stand for themselves by their best one when a few of many are selected."""


def keep_top_k(logits: Floats, k: int) -> Indices:
    """Return the ``k`` greatest, exactly so many: of equals the lower index. 0 keeps all."""
    if k == 0 or k >= logits.size:
        return np.arange(logits.size)
    return _least(-logits, k)


def keep_top_p(logits: Doubles, mass: float) -> Indices:
    """Return the shortest row of the most probable that together reach ``mass``, at least one. 1 keeps all."""
    if mass >= 1:
        return np.arange(logits.size)
    return np.sort(_shortest_row(-logits, _probabilities(logits), mass))


def keep_min_p(logits: Doubles, share: float) -> Indices:
    """Return those at least ``share`` times as probable as the most probable. 0 keeps all."""
    if share <= 0:
        return np.arange(logits.size)
    return np.flatnonzero(logits >= logits.max() + math.log(share))


def keep_typical(logits: Doubles, mass: float) -> Indices:
    """Return those whose surprise is nearest to the entropy, until they reach ``mass``. 1 keeps all."""
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
    """Return the indices of the ``count`` least keys, of equals the lower ones, in ascending order."""
    blocks = keys.size // BLOCK
    if count < blocks:
        # At least `count` keys are no greater than the count-th least of the blocks' minima: the others are out.
        minima = keys[: blocks * BLOCK].reshape(blocks, BLOCK).min(axis=1)
        candidates = np.flatnonzero(keys <= np.partition(minima, count - 1)[count - 1])
        if candidates.size < keys.size:
            return np.asarray(candidates[_least(keys[candidates], count)])
    limit = np.partition(keys, count - 1)[count - 1]
    taken = keys < limit
    taken[np.flatnonzero(keys == limit)[: count - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)


def _shortest_row(keys: Doubles, probabilities: Doubles, mass: float) -> Indices:
    """Return the first indices in the order of ``keys`` (of equals the lower index) that together reach ``mass``."""
    count = min(FIRST_SELECTION, keys.size)
    while True:
        row = _least(keys, count) if count < keys.size else np.arange(keys.size)
        row = row[np.argsort(keys[row], kind="stable")]
        cumulative = np.cumsum(probabilities[row])
        reached = int(np.searchsorted(cumulative, mass, side="left"))
        if reached < count or count == keys.size:
            return row[: reached + 1]
        count = min(count * SELECTION_GROWTH, keys.size)
