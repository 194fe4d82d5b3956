"""Exact optimal transport: the linear program by network simplex, and closed forms in 1D."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport import _transport
from lattice_transport.arrays import as_real, large_matrix
from lattice_transport.checks import check_count, check_flag, check_number, check_seed
from lattice_transport.costs import PointClouds, as_cost, as_points
from lattice_transport.errors import (
    CostOverflowError,
    DimensionMismatchError,
    EmptyProblemError,
    InvalidInputError,
    NonFinitePointError,
    NumericalError,
    PivotLimitError,
    shown,
)
from lattice_transport.measures import balanced_marginals
from lattice_transport.units import Units, common_units, rounded_units

__all__ = ["EmdResult", "emd", "sliced_wasserstein", "wasserstein_1d"]

_Array = npt.NDArray[Any]
_Float64 = npt.NDArray[np.float64]
_MOST_FLOAT = sys.float_info.max
_COUNTS = 1e-11  # of the cost of a plan: what rounding of the masses may add to it


@dataclass(frozen=True, eq=False)
class EmdResult:
    """An optimal plan, as the few entries that carry mass.

    Attributes:
        cost: the earth mover's distance: sum of P C.
        sources, targets, masses: the entries of the plan, at most n + m - 1 of them, by source.
        u, v: dual potentials: u[i] + v[j] <= C[i, j], with equality where mass flows. NaN for points without mass.
        converged: whether the plan is optimal; False only when the pivots ran out.
        pivots: steps of the simplex.
        gap: what the cost may be above the optimum, by the dual objective; rounding may keep it from being 0. Infinite
            for a plan that does not carry all of the mass, which is never converged.
    """

    cost: float
    sources: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    masses: _Float64
    u: _Float64
    v: _Float64
    converged: bool
    pivots: int
    gap: float

    def plan(self) -> _Float64:
        """Return the dense plan (n, m)."""
        result = large_matrix("a transport plan", len(self.u), len(self.v))
        result[self.sources, self.targets] = self.masses
        return result

    def __float__(self) -> float:
        return self.cost


def emd(
    a: npt.ArrayLike | None,
    b: npt.ArrayLike | None,
    cost: npt.ArrayLike | PointClouds,
    *,
    max_pivots: int | None = None,
    error_on_non_convergence: bool = True,
) -> EmdResult:
    """Return an exact optimal transport plan (earth mover's distance) by network simplex.

    Meant for up to a few thousand points a side: memory is the cost matrix in float64, time grows faster than n m.

    Args:
        a, b: weights of equal mass; None for uniform. They are rounded to about 2^-52 of the mass, unless they are
            multiples of one unit. Mass of that size is left out where its cost would outweigh that of the rest.
        cost: (n, m) matrix or point clouds. Costs may differ by any factor: large ones for forbidden pairs do not make
            the plan over the others less exact.
        max_pivots: the most steps; None allows 50 (n + m) plus 100,000.
        error_on_non_convergence: raise PivotLimitError when the pivots run out; else the result says so.

    Raises:
        CostOverflowError: sums of the costs would leave the range of float64.
        InvalidInputError: and its kinds, for what cannot be solved.
        PivotLimitError: the pivots ran out; a NotConvergedError.
    """
    if max_pivots is not None:
        check_count("max_pivots", max_pivots)
    check_flag("error_on_non_convergence", error_on_non_convergence)
    checked = as_cost(cost.matrix() if isinstance(cost, PointClouds) else cost)
    assert checked.matrix is not None
    marginals = balanced_marginals(a, b, checked.rows, checked.columns)
    part = checked.restricted(marginals.rows, marginals.columns)
    assert part.matrix is not None
    matrix = np.ascontiguousarray(part.matrix, np.float64)
    points = matrix.shape[0] + matrix.shape[1]
    limit = 50 * points + 100_000 if max_pivots is None else min(max_pivots, 2**62)
    largest = max(abs(part.least), abs(part.most))
    mass = float(marginals.a.sum())
    most = _MOST_FLOAT / (8.0 * points * max(mass, 1.0))
    if not largest <= most:
        raise CostOverflowError(largest, most)
    flow = _flow(matrix, rounded_units(marginals.a, marginals.b), limit)
    if flow.converged and flow.exact and _rounding_counts(flow, largest):
        units = common_units(marginals.a, marginals.b, single=_any_single(a, b))
        flow = _without_dust(flow) if units is None else _flow(matrix, units, limit)
    scale = mass / flow.units[2]
    gap = flow.shortfall * scale
    if not flow.converged and error_on_non_convergence:
        raise PivotLimitError(flow.pivots, gap)
    masses = np.multiply(flow.masses, scale, dtype=np.float64)
    value = math.fsum(masses * flow.costs) if flow.exact else float(masses @ flow.costs)
    return EmdResult(
        cost=value,
        sources=_positions(flow.rows, marginals.rows),
        targets=_positions(flow.columns, marginals.columns),
        masses=masses,
        u=_spread(flow.u, marginals.rows, checked.rows),
        v=_spread(flow.v, marginals.columns, checked.columns),
        converged=flow.converged,
        pivots=flow.pivots,
        gap=gap,
    )


@dataclass(slots=True, eq=False)
class _Flow:
    """What the simplex found: entries by row, masses in units, potentials."""

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    masses: npt.NDArray[np.int64]
    costs: _Float64
    u: _Float64
    v: _Float64
    pivots: int
    converged: bool
    exact: bool  # the potentials
    shortfall: float
    units: Units


def _flow(matrix: _Float64, units: Units, limit: int) -> _Flow:
    rows, columns, masses, u, v, pivots, status, exact, shortfall = _transport.network_simplex(
        matrix, units[0], units[1], limit
    )
    order = np.lexsort((columns, rows))
    rows, columns, masses = rows[order], columns[order], masses[order]
    return _Flow(rows, columns, masses, matrix[rows, columns], u, v, pivots, status == 0, exact, shortfall, units)


def _rounding_counts(flow: _Flow, largest: float) -> bool:
    """Whether a rounding error of the masses could add cost over the most expensive pair."""
    return not largest * len(flow.masses) <= _COUNTS * float(flow.masses @ np.abs(flow.costs))


def _without_dust(flow: _Flow) -> _Flow:
    """Leave out entries whose mass may be rounding error, if their cost outweighs the rest."""
    supply, demand, _ = flow.units
    most = len(supply) + len(demand)
    small = (flow.masses <= most) & (np.minimum(supply[flow.rows], demand[flow.columns]) > 4096 * most)
    spent = flow.masses * np.abs(flow.costs)
    dust = small & (spent > _COUNTS * float(spent[~small].sum()))
    if not dust.any():
        return flow
    kept = ~dust
    return dataclasses.replace(
        flow, rows=flow.rows[kept], columns=flow.columns[kept], masses=flow.masses[kept], costs=flow.costs[kept]
    )


def _any_single(*weights: npt.ArrayLike | None) -> bool:
    return any(getattr(part, "dtype", None) in (np.float32, np.float16) for part in weights)


def _positions(found: npt.NDArray[np.int64], kept: _Array | None) -> npt.NDArray[np.int64]:
    return found if kept is None else kept[found]


def _spread(values: _Float64, kept: _Array | None, size: int) -> _Float64:
    if kept is None:
        return values
    result = np.full(size, np.nan)
    result[kept] = values
    return result


def _check_order(p: float) -> float:
    order = check_number("the order p", p)
    if not order >= 1.0:
        raise InvalidInputError(f"the order p must be at least 1 and finite, not {shown(p)}")
    return order


def _finite(value: float, what: str) -> float:
    if not value < math.inf:
        raise NumericalError(f"{what} left the range of float64; scale the points, or take a smaller order p")
    return value


def _on_line(values: npt.ArrayLike, name: str) -> _Float64:
    points = as_real(values, name, 1).astype(np.float64)
    if points.size == 0:
        raise EmptyProblemError(f"{name} has no points")
    finite = np.isfinite(points)
    if not finite.all():
        index = int(np.argmin(finite))
        raise NonFinitePointError(name, index, 0, float(points[index]))
    return points


def wasserstein_1d(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    a: npt.ArrayLike | None = None,
    b: npt.ArrayLike | None = None,
    *,
    p: float = 1.0,
) -> float:
    """Return the p-Wasserstein distance between weighted points on the line, in closed form.

    W_p^p is the integral over t in (0, 1) of |F^-1(t) - G^-1(t)|^p; for p = 1 the area between the distribution
    functions. Masses must agree and count as 1.

    Raises:
        InvalidInputError: and its kinds, for what has no distance.
    """
    order = _check_order(p)
    source, target = _on_line(x, "x"), _on_line(y, "y")
    marginals = balanced_marginals(a, b, len(source), len(target))
    if marginals.rows is not None:
        source = source[marginals.rows]
    if marginals.columns is not None:
        target = target[marginals.columns]
    total = marginals.a.sum()
    with np.errstate(over="ignore", invalid="ignore"):
        distance = _line_distance(source, target, marginals.a / total, marginals.b / total, order)
    return _finite(distance, "the distance")


def _power_mean(values: _Float64, shares: _Float64, p: float) -> float:
    """Return (sum shares values^p)^(1/p), computed in units of the largest value."""
    largest = float(values.max())
    if p == 1.0 or not 0.0 < largest < math.inf:
        return float(shares @ values)
    power = float(shares @ (values / largest) ** p)
    return largest * math.pow(power, 1.0 / p)


def _line_distance(x: _Float64, y: _Float64, a: _Float64, b: _Float64, p: float) -> float:
    """W_p of points on the line with weights that sum to 1."""
    x_order, y_order = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    x, y = x[x_order], y[y_order]
    x_levels, y_levels = np.cumsum(a[x_order]), np.cumsum(b[y_order])
    x_levels[-1] = y_levels[-1] = 1.0
    levels = np.sort(np.concatenate([x_levels, y_levels]))
    widths = np.diff(levels, prepend=0.0)
    # the value of a quantile function on (level before, level]
    x_at = x[np.minimum(np.searchsorted(x_levels, levels, side="left"), len(x) - 1)]
    y_at = y[np.minimum(np.searchsorted(y_levels, levels, side="left"), len(y) - 1)]
    return _power_mean(np.abs(x_at - y_at), widths, p)


def sliced_wasserstein(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    a: npt.ArrayLike | None = None,
    b: npt.ArrayLike | None = None,
    *,
    p: float = 2.0,
    projections: int = 128,
    seed: int = 0,
) -> float:
    """Return the sliced p-Wasserstein distance.

    It is the p-mean over random directions of the distance along each. O(projections (n + m) log(n + m)); it sees
    less than the full distance, and never more than it.

    Args:
        x, y: points (n, dimension), (m, dimension).
        projections: how many directions, drawn uniformly from the sphere.
        seed: of the directions: equal seeds give equal values.

    Raises:
        InvalidInputError: and its kinds, for what has no distance.
    """
    order = _check_order(p)
    projections, seed = check_count("projections", projections), check_seed(seed)
    source, target = as_points(x, "x"), as_points(y, "y")
    if source.shape[1] != target.shape[1]:
        raise DimensionMismatchError("dimension of the points", expected=source.shape[1], actual=target.shape[1])
    marginals = balanced_marginals(a, b, len(source), len(target))
    if marginals.rows is not None:
        source = source[marginals.rows]
    if marginals.columns is not None:
        target = target[marginals.columns]
    total = marginals.a.sum()
    weights_a, weights_b = marginals.a / total, marginals.b / total
    directions = np.random.default_rng(seed).standard_normal((projections, source.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    distances = np.empty(projections)
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, projections, 64):
            block = directions[first : first + 64].T
            along_x, along_y = source @ block, target @ block
            for k in range(block.shape[1]):
                distances[first + k] = _line_distance(
                    along_x[:, k].astype(np.float64), along_y[:, k].astype(np.float64), weights_a, weights_b, order
                )
        mean = _power_mean(distances, np.full(projections, 1.0 / projections), order)
    return _finite(mean, "the distance")
