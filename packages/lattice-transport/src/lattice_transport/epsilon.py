"""The strength of the entropic term where none is given: a part of the median cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.costs import Cost, PointClouds, cost_matrix

__all__ = ["RELATIVE_EPSILON", "default_epsilon"]

RELATIVE_EPSILON = 0.05
"""Of the median cost."""

_MOST_ENTRIES = 1_000_000  # of all costs together: above, a fixed sample of rows and columns is looked at


def default_epsilon(*costs: Cost) -> float:
    """Return 0.05 of the median of all these costs: one value for problems that belong together.

    If the median is not above 0, the absolute values of the costs that are not 0 take the place of the costs; without
    any, the result is 0.05. Above a million costs, the median is that of a fixed sample.
    """
    most = _MOST_ENTRIES // len(costs)
    values = np.concatenate([_sample(cost, most) for cost in costs])
    scale = _median(values)
    if not scale > 0.0:
        present = np.abs(values[values != 0.0])
        scale = _median(present) if present.size else 1.0
    # of costs near the least number that there is, a twentieth may be none
    return max(RELATIVE_EPSILON * scale, float(np.finfo(np.float64).tiny))


def _median(values: npt.NDArray[np.float64]) -> float:
    """The middle value, or the mean of the two, whose sum may overflow."""
    low, high = (values.size - 1) // 2, values.size // 2
    parts = np.partition(values, (low, high))
    return 0.5 * float(parts[low]) + 0.5 * float(parts[high])


def _sample(cost: Cost, most: int) -> npt.NDArray[np.float64]:
    n, m = cost.rows, cost.columns
    if n * m <= most and cost.matrix is not None:
        return np.asarray(cost.matrix, np.float64).ravel()
    side = max(int(most**0.5), 1)
    columns = min(m, max(side, most // n))
    rows = min(n, max(most // columns, 1))
    random = np.random.default_rng(0)  # even steps could meet a pattern of the costs
    of_rows, of_columns = _some(n, rows, random), _some(m, columns, random)
    if cost.matrix is not None:
        part = cost.matrix[of_rows[:, None], of_columns]
    else:
        assert isinstance(cost.clouds, PointClouds)
        x, y = np.asarray(cost.clouds.x), np.asarray(cost.clouds.y)
        part = cost_matrix(x[of_rows], y[of_columns], cost.clouds.metric)
    return np.asarray(part, np.float64).ravel()


def _some(count: int, wanted: int, random: np.random.Generator) -> npt.NDArray[Any]:
    return np.sort(random.choice(count, wanted, replace=False))
