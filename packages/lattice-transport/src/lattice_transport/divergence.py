"""The debiased Sinkhorn divergence: zero for equal sets, positive for different ones.

    S(a, b) = OT(a, b) - OT(a, a) / 2 - OT(b, b) / 2

on the regularized costs (Feydy et al. 2019). The plain entropic cost of a set with itself is not zero; this is.
Unbalanced problems measure entropy against the product of the weights and add epsilon / 2 (mass of a - mass of b)^2
(Sejourne et al. 2019).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.checks import check_kind
from lattice_transport.config import Observer, SinkhornConfig, config_or_settings
from lattice_transport.costs import Cost, Metric, PointClouds, as_cost
from lattice_transport.errors import DimensionMismatchError, InvalidInputError, MarginalMassMismatchError, shown
from lattice_transport.measures import Marginals, balanced_marginals, free_marginals
from lattice_transport.result import SinkhornResult
from lattice_transport.sinkhorn import SCHEDULE_BELOW, epsilon_of, run
from lattice_transport.unbalanced import check_tau

__all__ = ["DivergenceResult", "SelfTerm", "self_term", "sinkhorn_divergence"]

_Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class SelfTerm:
    """OT of a set with itself, for use in many divergences against that set."""

    result: SinkhornResult
    points: _Array | None
    weights: npt.NDArray[np.float64] | None
    metric: str
    taus: tuple[float, float]

    @property
    def value(self) -> float:
        """The dual objective."""
        return self.result.dual_objective


@dataclass(frozen=True, eq=False)
class DivergenceResult:
    """A Sinkhorn divergence and the three problems it is made of.

    Attributes:
        value: the divergence; rounding below zero is cut off.
        raw_value: the same before that: as far below zero as the solves are inexact.
        converged: whether all three problems converged.
        cross, source, target: the problems (a, b), (a, a) and (b, b).
    """

    value: float
    raw_value: float
    converged: bool
    cross: SinkhornResult
    source: SinkhornResult
    target: SinkhornResult

    @property
    def epsilon(self) -> float:
        """Strength of the entropic term, the same in all three problems."""
        return self.cross.epsilon

    def __float__(self) -> float:
        return self.value


def self_term(
    points: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    metric: Metric = "sqeuclidean",
    config: SinkhornConfig | None = None,
    tau: float = math.inf,
) -> SelfTerm:
    """Solve a set against itself by the symmetric iteration, which converges in a few steps.

    Args:
        points: (n, dimension).
        weights: n weights; None for uniform.
        tau: penalty of the marginals; infinity holds them.

    Without an epsilon in ``config``, it is 0.05 of the median cost within the set.
    """
    config = SinkhornConfig() if config is None else check_kind("config", config, SinkhornConfig)
    clouds = PointClouds(points, points, metric)
    return _self_term(as_cost(clouds), np.asarray(clouds.x), weights, metric, config, check_tau("tau", tau))


def _self_term(
    cost: Cost,
    points: _Array | None,
    weights: npt.ArrayLike | None,
    metric: str,
    config: SinkhornConfig,
    tau: float,
    observer: Observer | None = None,
    place: tuple[int, int] = (0, 1),
) -> SelfTerm:
    marginals = free_marginals(weights, weights, cost.rows, cost.columns)
    result = run(
        cost,
        marginals,
        config,
        taus=(tau, tau),
        product=tau != math.inf,
        symmetric=True,
        observer=observer,
        place=place,
    )
    kept = None if weights is None else np.asarray(weights, np.float64)
    return SelfTerm(result, points, kept, metric, (tau, tau))


@config_or_settings
def sinkhorn_divergence(
    a: npt.ArrayLike | None,
    b: npt.ArrayLike | None,
    cost: PointClouds | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    *,
    epsilon: float | None = None,
    config: SinkhornConfig | None = None,
    tau: float = math.inf,
    source_term: SelfTerm | None = None,
    target_term: SelfTerm | None = None,
    observer: Observer | None = None,
) -> DivergenceResult:
    """Return the debiased Sinkhorn divergence between two weighted sets.

    Args:
        a, b: weights; None for uniform.
        cost: point clouds, or the three matrices (between the sets, within the first, within the second).
        epsilon: strength of the entropic term; not beside ``config``. None takes that of a given self
            term, else 0.05 of the median cost between the sets, for all three problems.
        tau: penalty of the marginals for an unbalanced divergence (Sejourne et al. 2019); infinity: balanced.
        source_term, target_term: self terms computed before by :func:`self_term` with the same settings.
        observer: as for :func:`~lattice_transport.solve`; the problems are 0 (a, a), 1 (b, b) and 2 (a, b) of 3.

    Raises:
        What :func:`~lattice_transport.solve` raises.
    """
    config = SinkhornConfig(epsilon=epsilon) if config is None else check_kind("config", config, SinkhornConfig)
    tau = check_tau("tau", tau)
    for name, kept in (("source_term", source_term), ("target_term", target_term)):
        if kept is not None:
            check_kind(name, kept, SelfTerm)
    metric = "matrix"
    x = y = None
    if isinstance(cost, PointClouds):
        metric = cost.metric
        x, y = np.asarray(cost.x), np.asarray(cost.y)
        cross_cost = as_cost(cost)
        source_cost = None if source_term else as_cost(PointClouds(x, x, cost.metric))
        target_cost = None if target_term else as_cost(PointClouds(y, y, cost.metric))
    else:
        if not isinstance(cost, (tuple, list)) or len(cost) != 3:
            raise InvalidInputError(f"the cost must be PointClouds or three matrices, not {shown(cost)}")
        cross_cost, source_cost, target_cost = (as_cost(part) for part in cost)
        for name, within, size in (
            ("source", source_cost, cross_cost.rows),
            ("target", target_cost, cross_cost.columns),
        ):
            if (within.rows, within.columns) != (size, size):
                raise DimensionMismatchError(
                    f"cost within the {name}", expected=(size, size), actual=(within.rows, within.columns)
                )
    marginals: Marginals
    if tau == math.inf:
        marginals = balanced_marginals(a, b, cross_cost.rows, cross_cost.columns, config.min_marginal)
    else:
        marginals = free_marginals(a, b, cross_cost.rows, cross_cost.columns)
    given = next((term for term in (source_term, target_term) if term is not None), None)
    if config.epsilon is None and given is not None:
        config = dataclasses.replace(config, epsilon=given.result.epsilon)
    between = epsilon_of(config, cross_cost.restricted(marginals.rows, marginals.columns))
    config = dataclasses.replace(config, epsilon=between)
    terms = []
    for index, (term, part, points, weights) in enumerate(
        ((source_term, source_cost, x, a), (target_term, target_cost, y, b)), start=1
    ):
        if term is None:
            assert part is not None
            # both marginals must weigh what the cross problem's do
            scaled = weights if weights is None or tau != math.inf else _scaled(weights, marginals, index)
            term = _self_term(part, points, scaled, metric, config, tau, observer, (index - 1, 3))
        elif term.result.epsilon != between:
            raise DimensionMismatchError("epsilon of a self term", expected=between, actual=term.result.epsilon)
        size = cross_cost.rows if index == 1 else cross_cost.columns
        if term.result.shape != (size, size):
            raise DimensionMismatchError("points of a self term", expected=size, actual=term.result.shape[0])
        terms.append(term)
    source, target = terms
    # the sets' own potentials solve the cross problem of a set with itself: a start that near sets profit from
    near = config.epsilon_schedule is None or between >= SCHEDULE_BELOW * cross_cost.range
    cross = run(
        cross_cost,
        marginals,
        config,
        taus=(tau, tau),
        product=tau != math.inf,
        warm_start=(source.result.log_u, target.result.log_v) if near else None,
        observer=observer,
        place=(2, 3),
    )
    raw = cross.dual_objective - 0.5 * (source.value + target.value)
    if tau != math.inf:
        raw += 0.5 * between * (float(marginals.a.sum()) - float(marginals.b.sum())) ** 2
    return DivergenceResult(
        value=max(raw, 0.0),
        raw_value=raw,
        converged=cross.converged and source.result.converged and target.result.converged,
        cross=cross,
        source=source.result,
        target=target.result,
    )


def _scaled(weights: npt.ArrayLike, marginals: Marginals, index: int) -> npt.NDArray[np.float64]:
    array = np.asarray(weights, np.float64)
    wanted = float((marginals.a if index == 1 else marginals.b).sum())
    total = float(array.sum())
    if not total > 0.0:
        raise MarginalMassMismatchError(wanted, total, 0.0)
    return array * (wanted / total)
