"""Unbalanced transport: marginals are penalised instead of held.

The sets may differ in mass, or leave mass unmoved.

    minimise  sum P C + epsilon sum P (log P - 1) + tau_source KL(P 1 | a) + tau_target KL(P' 1 | b)

with KL(x | y) = sum of x log(x / y) - x + y. An infinite tau holds that marginal exactly: the semi-unbalanced problem.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy.typing as npt

from lattice_transport.checks import check_kind, check_positive
from lattice_transport.config import EpsilonSchedule, Observer, Precision, SinkhornConfig, config_or_settings
from lattice_transport.costs import Cost, PointClouds, as_cost
from lattice_transport.measures import balanced_marginals, free_marginals
from lattice_transport.result import SinkhornResult
from lattice_transport.sinkhorn import SinkhornWorkspace, WarmStart, run

__all__ = ["solve_unbalanced"]


def check_tau(name: str, value: float) -> float:
    """Return ``value`` if it is positive, infinity included."""
    if isinstance(value, float) and value == math.inf:
        return value
    return check_positive(name, value)


@config_or_settings
def solve_unbalanced(
    a: npt.ArrayLike | None,
    b: npt.ArrayLike | None,
    cost: npt.ArrayLike | PointClouds | Cost,
    *,
    tau_source: float = 1.0,
    tau_target: float = 1.0,
    epsilon: float | None = None,
    convergence_threshold: float = 1e-5,
    max_iterations: int = 500,
    check_convergence_every: int = 10,
    error_on_non_convergence: bool = False,
    precision: Precision = "auto",
    relaxation: float | Literal["auto"] = 1.0,
    epsilon_schedule: EpsilonSchedule | Literal["auto"] | None = "auto",
    config: SinkhornConfig | None = None,
    warm_start: WarmStart | None = None,
    workspace: SinkhornWorkspace | None = None,
    observer: Observer | None = None,
) -> SinkhornResult:
    """Return the entropic unbalanced plan between two weighted sets.

    Args:
        tau_source, tau_target: the penalty of unmoved mass, in units of the cost; infinity holds the marginal.
        convergence_threshold: the duality gap, as a fraction of the objective and the mass, at which to stop. The plan
            is then within sqrt(2 threshold / epsilon)-like distance of the optimum, the objective within the threshold.

    Other arguments and errors as for :func:`~lattice_transport.solve`. With both taus infinite this is that function.
    """
    taus = check_tau("tau_source", tau_source), check_tau("tau_target", tau_target)
    if config is None:
        config = SinkhornConfig(
            epsilon=epsilon,
            convergence_threshold=convergence_threshold,
            max_iterations=max_iterations,
            check_convergence_every=check_convergence_every,
            error_on_non_convergence=error_on_non_convergence,
            precision=precision,
            relaxation=relaxation,
            epsilon_schedule=epsilon_schedule,
        )
    check_kind("config", config, SinkhornConfig)
    checked = as_cost(cost)
    held = math.isinf(taus[0]) and math.isinf(taus[1])
    marginals = (balanced_marginals if held else free_marginals)(a, b, checked.rows, checked.columns)
    return run(checked, marginals, config, taus=taus, warm_start=warm_start, workspace=workspace, observer=observer)
