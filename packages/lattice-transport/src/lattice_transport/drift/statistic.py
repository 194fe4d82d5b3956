"""The Sinkhorn divergence between many splits of one pooled sample, for permutation tests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport import _transport

__all__ = ["PooledDivergence", "permutation_p_value", "quantile_threshold"]

_Array = npt.NDArray[Any]
_Float64 = npt.NDArray[np.float64]
_Int64 = npt.NDArray[np.int64]
_THRESHOLD = 1e-5  # L1 residual; the error of the dual objective is of second order in it
_MOST_ITERATIONS = 300


class PooledDivergence:
    """Divergences between subsets of points whose costs (N, N) are all known.

    Every solve starts from the potentials of the pooled sample with itself, which both subsets look like unless they
    differ: a few iterations are enough.
    """

    def __init__(self, costs: _Array, weights: _Float64, epsilon: float, first: int) -> None:
        """``costs`` float32 or float64, symmetric; ``first``: the size of the first subset."""
        self.costs = costs
        self.weights = weights
        self.epsilon = epsilon
        size = len(costs)
        most = max(first, size - first)
        narrow = costs.dtype == np.float32
        self._solver = _transport.Solver(most, most, double_precision=not narrow)
        pooled = _transport.Solver(size, size, double_precision=not narrow)
        pooled.bind_matrix(costs)
        total = weights / weights.sum()
        pooled.set_weights(total, total)
        pooled.configure(epsilon, symmetric=True)
        pooled.run(_MOST_ITERATIONS, _THRESHOLD, adapt=False)
        # without the weights, so that it fits any subset
        self._potential = pooled.v[:size] - np.log2(total)

    def _objective(self, rows: _Int64, columns: _Int64, symmetric: bool) -> tuple[float, bool]:
        solver = self._solver
        a = self.weights[rows]
        b = self.weights[columns]
        a, b = a / a.sum(), b / b.sum()
        solver.bind_matrix(self.costs[rows[:, None], columns])
        solver.set_weights(a, b)
        solver.configure(self.epsilon, symmetric=symmetric)
        solver.u[: len(rows)] = self._potential[rows] + np.log2(a)
        solver.v[: len(columns)] = self._potential[columns] + np.log2(b)
        converged = solver.run(_MOST_ITERATIONS, _THRESHOLD, adapt=not symmetric)
        return self.epsilon * solver.dual, converged

    def between(self, first: _Int64, second: _Int64) -> tuple[float, bool]:
        """Return the divergence between the points at two lists of positions.

        Also returns whether all solves converged.
        """
        cross, cross_done = self._objective(first, second, False)
        source, source_done = self._objective(first, first, True)
        target, target_done = self._objective(second, second, True)
        return cross - 0.5 * (source + target), cross_done and source_done and target_done


def permutation_p_value(value: float, null: _Float64) -> float:
    """Return (1 + number of null values >= ``value``) / (1 + number of null values).

    It is never 0, and calibrated.
    """
    return float((1 + np.count_nonzero(null >= value)) / (1 + len(null)))


def quantile_threshold(null: _Float64, false_alarm_rate: float) -> float:
    """Return an alarm's threshold.

    Null values exceed it with at most the given rate. It is the k-th smallest of the K null values, k = ceil((1 -
    rate) (K + 1)); K must be large enough for that to exist.
    """
    rank = math.ceil((1.0 - false_alarm_rate) * (len(null) + 1) - 1e-9)
    return float(np.sort(null)[rank - 1])
