"""Means of distributions under transport, over a fixed or a free support.

A fixed support takes Bregman projections.

    minimise over p   sum over k of lambda[k] OT(a[k], p)

(Benamou et al. 2015; debiased: Janati et al. 2020; free support: Cuturi and Doucet 2014.) One half-step of each problem
an iteration, in the log domain and float64.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_transport import _transport
from lattice_transport.checks import (
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_list,
    check_positive,
)
from lattice_transport.config import SinkhornConfig, config_or_settings
from lattice_transport.costs import METRICS, Cost, Metric, PointClouds, as_cost, as_points, points_that_fit
from lattice_transport.epsilon import default_epsilon
from lattice_transport.errors import (
    CancelledError,
    DimensionMismatchError,
    EmptyProblemError,
    InvalidInputError,
    NotConvergedError,
    NumericalError,
)
from lattice_transport.measures import check_weights, normalize_weights, uniform_weights
from lattice_transport.plans import barycentric_projection
from lattice_transport.sinkhorn import epsilon_of, solve

__all__ = ["BarycenterResult", "FreeSupportResult", "barycenter", "free_support_barycenter"]

_Float64 = npt.NDArray[np.float64]
_LN_2 = math.log(2.0)


@dataclass(frozen=True, eq=False)
class BarycenterResult:
    """Weights of a barycentre over its support.

    Attributes:
        weights: (s,), sum 1.
        converged: whether ``last_error`` is at most the threshold.
        last_error: the largest L1 distance between a plan's marginal on the support and ``weights``; debiased: also
            that of the plan of the barycentre with itself.
        iterations: how many were done.
        objective: sum of lambda times the regularized cost.
        epsilon: strength of the entropic term, in units of the costs.
    """

    weights: _Float64
    converged: bool
    last_error: float
    iterations: int
    objective: float
    epsilon: float


@dataclass(frozen=True, eq=False)
class FreeSupportResult:
    """A barycentre whose points were moved.

    Attributes:
        points: (s, dimension).
        weights: (s,), sum 1, as given.
        converged: whether the last move was within the tolerance and all problems of it converged.
        last_move: the largest distance that a point moved in the last update.
        updates: how many were done.
        objective: sum of lambda times the transport cost at the last update.
        epsilon: strength of the entropic term, in units of the costs.
    """

    points: _Float64
    weights: _Float64
    converged: bool
    last_move: float
    updates: int
    objective: float
    epsilon: float


def _check_lambdas(lambdas: npt.ArrayLike | None, count: int) -> _Float64:
    if lambdas is None:
        return uniform_weights(count)
    return normalize_weights(check_weights(lambdas, count, 0))


class _Measure:
    """One of the measures: its costs to the support, and a solver over them."""

    def __init__(self, cost: Cost, weights: _Float64) -> None:
        kept = np.flatnonzero(weights > 0.0)
        part = cost if len(kept) == len(weights) else cost.restricted(kept, None)
        self.cost = part
        self.weights = weights[kept] / weights.sum()
        self.solver = _transport.Solver(part.rows, part.columns, double_precision=True, clouds=part.tiled)
        part.bind(self.solver)
        self.solver.set_weights(self.weights, np.ones(part.columns))
        self.rows, self.columns = part.rows, part.columns

    def half_step(self) -> _Float64:
        """Fit the rows; return log2 of the sum over i of 2^(u[i] - C[i, j] scale).

        The columns are fitted to that.
        """
        self.solver.run(1, 0.0, adapt=False)
        return -self.solver.v_next[: self.columns]


def barycenter(
    costs: Sequence[npt.ArrayLike | PointClouds],
    weights: Sequence[npt.ArrayLike | None] | None = None,
    *,
    lambdas: npt.ArrayLike | None = None,
    epsilon: float | None = None,
    debiased: bool = False,
    support_cost: npt.ArrayLike | PointClouds | None = None,
    max_iterations: int = 2000,
    convergence_threshold: float = 1e-6,
    error_on_non_convergence: bool = False,
    observer: Callable[[int, float], bool | None] | None = None,
) -> BarycenterResult:
    """Return the weights over a fixed support that are closest to several measures.

    Args:
        costs: for each measure, the costs (n_k, s) between its points and the support, or clouds whose ``y`` is the
            support.
        weights: for each measure its n_k weights; None for uniform. Each is scaled to mass 1; zeros are left out.
        lambdas: importance of the measures, scaled to sum 1; None for equal.
        epsilon: strength of the entropic term, in units of the costs; None takes 0.05 of the median of all of them. It
            blurs the barycentre...
        debiased: ... unless this takes the blur off again; ``support_cost`` is then needed.
        support_cost: the costs (s, s) within the support, symmetric.
        observer: called with (iteration, error) every 10 iterations; returning False cancels.

    Raises:
        InvalidInputError: and its kinds, for what has no barycentre.
        NotConvergedError: not converged, and ``error_on_non_convergence`` is set.
    """
    if epsilon is not None:
        check_positive("epsilon", epsilon)
    check_positive("convergence_threshold", convergence_threshold)
    check_count("max_iterations", max_iterations)
    check_callable("observer", observer)
    debiased = check_flag("debiased", debiased)
    check_flag("error_on_non_convergence", error_on_non_convergence)
    checked = [as_cost(cost) for cost in check_list("costs", costs)]
    if not checked:
        raise EmptyProblemError("a barycentre needs at least one measure")
    size = checked[0].columns
    for cost in checked:
        if cost.columns != size:
            raise DimensionMismatchError("points of the support", expected=size, actual=cost.columns)
    given = [None] * len(checked) if weights is None else check_list("weights", weights)
    if len(given) != len(checked):
        raise DimensionMismatchError("measures with weights", expected=len(checked), actual=len(given))
    importance = _check_lambdas(lambdas, len(checked))
    measures = [
        _Measure(cost, check_weights(masses, cost.rows, 0)) for cost, masses in zip(checked, given, strict=True)
    ]
    if epsilon is None:
        epsilon = default_epsilon(*(measure.cost for measure in measures))
    with np.errstate(all="ignore"):  # what leaves the range of its numbers is found by its value
        return _projections(
            measures,
            importance,
            float(epsilon),
            support_cost=support_cost if debiased else None,
            debiased=debiased,
            max_iterations=max_iterations,
            convergence_threshold=convergence_threshold,
            error_on_non_convergence=error_on_non_convergence,
            observer=observer,
        )


def _projections(
    measures: list[_Measure],
    importance: _Float64,
    epsilon: float,
    *,
    support_cost: npt.ArrayLike | PointClouds | None,
    debiased: bool,
    max_iterations: int,
    convergence_threshold: float,
    error_on_non_convergence: bool,
    observer: Callable[[int, float], bool | None] | None,
) -> BarycenterResult:
    size = measures[0].columns
    for measure in measures:
        measure.solver.configure(epsilon)
    inner = _support_solver(support_cost, size, epsilon) if debiased else None
    log_d = np.zeros(size)
    log_p = np.full(size, -math.log2(size))
    error = math.inf
    iterations = 0
    while iterations < max_iterations and error > convergence_threshold:
        logs = [measure.half_step() for measure in measures]
        iterations += 1
        log_p = np.einsum("k,kj->j", importance, logs) + log_d
        if not np.isfinite(log_p).all():
            raise NumericalError(
                "a weight of the barycentre left the range of float64; raise epsilon or rescale the costs"
            )
        p = np.exp2(log_p)
        error = abs(float(p.sum()) - 1.0)
        if inner is not None:
            # d <- sqrt(d p / (K d)), in logarithms, until p = d (K d); u is -log2(K d) after one fit of the rows
            inner.v[:size] = log_d
            inner.run(1, 0.0, adapt=False)
            error = max(error, float(np.abs(np.exp2(log_d - inner.u[:size]) - p).sum()))
            log_d = 0.5 * (log_d + log_p + inner.u[:size])
        for measure, log_sum in zip(measures, logs, strict=True):
            marginal = np.exp2(measure.solver.v[:size] + log_sum)
            error = max(error, float(np.abs(marginal - p).sum()))
            measure.solver.v[:size] = log_p - log_sum
        if observer is not None and iterations % 10 == 0 and observer(iterations, error) is False:
            raise CancelledError(f"the observer cancelled the barycentre after {iterations} iterations")
    converged = error <= convergence_threshold
    if not converged and error_on_non_convergence:
        raise NotConvergedError(iterations, error, convergence_threshold)
    p = np.exp2(log_p - log_p.max())
    p /= p.sum()
    objective = sum(float(importance[k]) * epsilon * _dual_value(measure, p) for k, measure in enumerate(measures))
    return BarycenterResult(p, converged, error, iterations, objective, epsilon)


def _dual_value(measure: _Measure, p: _Float64) -> float:
    u, v = measure.solver.u[: measure.rows], measure.solver.v[: measure.columns]
    return float(_LN_2 * (measure.weights @ u + p @ v)) - 1.0


def _support_solver(cost: npt.ArrayLike | PointClouds | None, size: int, epsilon: float) -> _transport.Solver:
    if cost is None:
        raise InvalidInputError("a debiased barycentre needs support_cost, the costs within the support")
    checked = as_cost(cost)
    if (checked.rows, checked.columns) != (size, size):
        raise DimensionMismatchError(
            "costs within the support", expected=(size, size), actual=(checked.rows, checked.columns)
        )
    solver = _transport.Solver(size, size, double_precision=True, clouds=checked.tiled)
    checked.bind(solver)
    solver.set_weights(np.ones(size), np.ones(size))
    solver.configure(epsilon)
    return solver


@config_or_settings
def free_support_barycenter(
    measures: Sequence[npt.ArrayLike],
    initial: npt.ArrayLike,
    weights: Sequence[npt.ArrayLike | None] | None = None,
    *,
    masses: npt.ArrayLike | None = None,
    lambdas: npt.ArrayLike | None = None,
    metric: Metric = "sqeuclidean",
    epsilon: float | None = None,
    max_updates: int = 1000,
    tolerance: float = 1e-4,
    config: SinkhornConfig | None = None,
) -> FreeSupportResult:
    """Return weighted points that are closest to several point clouds.

    The weights are given. Plans and means alternate.

    Each update solves the transport from the points to every measure, and moves each point to the mean of its
    targets. This is a descent step for the squared Euclidean cost only. It ends in a local
        optimum.

    Args:
        measures: for each measure its points (n_k, dimension).
        initial: where the points start, (s, dimension).
        weights: for each measure its weights; None for uniform.
        masses: weights of the points; None for uniform.
        lambdas: importance of the measures; None for equal.
        epsilon: strength of the entropic term, in units of the costs; None takes 0.05 of the median cost between the
            points at the start and the measures.
        tolerance: the move of a point, as a fraction of the spread of the measures, below which the points rest.

    Raises:
        InvalidInputError: and its kinds, for what has no barycentre.
    """
    check_choice("metric", metric, METRICS)
    if metric != "sqeuclidean":
        raise InvalidInputError(f"means of points minimise squared Euclidean costs only, not {metric!r}")
    check_positive("tolerance", tolerance)
    check_count("max_updates", max_updates)
    clouds = [
        as_points(points, f"measure {k}").astype(np.float64)
        for k, points in enumerate(check_list("measures", measures))
    ]
    if not clouds:
        raise EmptyProblemError("a barycentre needs at least one measure")
    points = as_points(initial, "initial").astype(np.float64)
    for cloud in clouds:
        if cloud.shape[1] != points.shape[1]:
            raise DimensionMismatchError("dimension of the measures", expected=points.shape[1], actual=cloud.shape[1])
    given = [None] * len(clouds) if weights is None else check_list("weights", weights)
    if len(given) != len(clouds):
        raise DimensionMismatchError("measures with weights", expected=len(clouds), actual=len(given))
    importance = _check_lambdas(lambdas, len(clouds))
    own = normalize_weights(check_weights(masses, len(points), 0))
    if not (own > 0.0).all():
        raise InvalidInputError("every point of a free support needs mass")
    scaled = [normalize_weights(check_weights(part, len(cloud), 0)) for part, cloud in zip(given, clouds, strict=True)]
    if config is None:
        config = SinkhornConfig(epsilon=epsilon, max_iterations=5000)
    check_kind("config", config, SinkhornConfig)
    used = epsilon_of(config, *(as_cost(PointClouds(points, cloud)) for cloud in clouds))
    config = dataclasses.replace(config, epsilon=used)  # the same while the points move
    for cloud in (*clouds, points):
        points_that_fit(cloud, "the points", metric)
    spread = math.sqrt(max(float(cloud.var(axis=0).sum()) for cloud in clouds)) or 1.0
    warm: list[tuple[_Float64, _Float64] | None] = [None] * len(clouds)
    move, updates, settled, objective = math.inf, 0, False, math.inf
    while updates < max_updates and not (settled and move <= tolerance * spread):
        target = np.zeros_like(points)
        settled, objective = True, 0.0
        for k, (cloud, part) in enumerate(zip(clouds, scaled, strict=True)):
            result = solve(own, part, PointClouds(points, cloud), config=config, warm_start=warm[k])
            warm[k] = (np.nan_to_num(result.log_u, neginf=0.0), np.nan_to_num(result.log_v, neginf=0.0))
            target += importance[k] * barycentric_projection(result, cloud)
            settled = settled and result.converged
            objective += float(importance[k]) * result.transport_cost
        move = float(np.sqrt(((target - points) ** 2).sum(axis=1)).max())
        points = target
        updates += 1
    return FreeSupportResult(points, own, settled and move <= tolerance * spread, move, updates, objective, used)
