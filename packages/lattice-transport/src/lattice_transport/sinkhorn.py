"""Entropic optimal transport of two weighted sets: Sinkhorn's algorithm in the log domain.

    minimise  sum P C + epsilon sum P (log P - 1)   over plans P >= 0 with row sums a and column sums b

(Cuturi 2013; stabilised as in Schmitzer 2019; over-relaxed as in Lehmann et al. 2021; entropic unbalanced problems as
in Chizat et al. 2018.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lattice_transport import _transport
from lattice_transport.arrays import as_numbers
from lattice_transport.checks import check_callable, check_choice, check_count, check_flag, check_kind, check_list
from lattice_transport.config import (
    EpsilonSchedule,
    Observer,
    Precision,
    SinkhornConfig,
    SinkhornProgress,
    config_or_settings,
)
from lattice_transport.costs import Cost, PointClouds, as_cost
from lattice_transport.epsilon import default_epsilon
from lattice_transport.errors import (
    CancelledError,
    DimensionMismatchError,
    InvalidInputError,
    NotConvergedError,
    NumericalError,
    WorkspaceError,
    shown,
)
from lattice_transport.measures import Marginals, balanced_marginals
from lattice_transport.result import SinkhornResult, SinkhornStage

__all__ = ["SinkhornWorkspace", "WarmStart", "solve", "solve_batch"]

_Float64 = npt.NDArray[np.float64]
_LN_2 = math.log(2.0)
_TAME = 1e30  # costs below and epsilons above its inverse: nothing of a balanced problem leaves the range of float64
_FLOAT32_LEAST_EPSILON = 0.02  # of the range of the costs: below, float32 cannot place a plan to 1e-6
_FLOAT32_LEAST_THRESHOLD = 2e-7
SCHEDULE_BELOW = 0.01
_SCHEDULE_START = 0.1
# times epsilon: from further up, potentials would come down with rounding errors that count at epsilon
_MOST_DESCENT = 2.0**24
_MOST_LOGARITHM = 2.0**36  # of a scaling, to base 2: its last bit is then a hundred-thousandth

WarmStart = SinkhornResult | tuple[npt.ArrayLike, npt.ArrayLike]
"""An earlier result, or natural logarithms of the scalings (log_u, log_v)."""


class SinkhornWorkspace:
    """Memory for problems of at most ``rows`` x ``columns``, made once and used by many solves.

    With it, iterations allocate nothing. One solve at a time may use a workspace.

    Args:
        rows: the most source points.
        columns: the most target points.
        precision: what the workspace computes in; it overrides the configuration's.
        clouds: whether costs of point clouds that are too large for a matrix will be computed in it.
    """

    def __init__(
        self, rows: int, columns: int, *, precision: Literal["float32", "float64"] = "float64", clouds: bool = False
    ) -> None:
        rows = check_count("the rows of a workspace", rows)
        columns = check_count("the columns of a workspace", columns)
        check_choice("precision", precision, ("float32", "float64"))
        clouds = check_flag("clouds", clouds)
        self.rows = rows
        self.columns = columns
        self.precision = precision
        self.clouds = clouds
        try:
            self._solver = _transport.Solver(rows, columns, double_precision=precision == "float64", clouds=clouds)
        except (MemoryError, ValueError, OverflowError):
            raise WorkspaceError(f"there is no memory for a workspace of {rows} x {columns}") from None

    @property
    def nbytes(self) -> int:
        """Bytes that the workspace holds: O(rows + columns) for each thread."""
        return self._solver.nbytes

    def _take(self, cost: Cost) -> _transport.Solver:
        if cost.rows > self.rows or cost.columns > self.columns:
            raise WorkspaceError(
                f"a problem of {cost.rows} x {cost.columns} does not fit in a workspace for "
                f"{self.rows} x {self.columns}"
            )
        if cost.tiled and not self.clouds:
            raise WorkspaceError("this workspace was made for cost matrices; make one with clouds=True")
        return self._solver


@config_or_settings
def solve(
    a: npt.ArrayLike | None,
    b: npt.ArrayLike | None,
    cost: npt.ArrayLike | PointClouds | Cost,
    *,
    epsilon: float | None = None,
    convergence_threshold: float = 1e-5,
    max_iterations: int = 500,
    check_convergence_every: int = 10,
    min_marginal: float = 1e-12,
    error_on_non_convergence: bool = False,
    precision: Precision = "auto",
    relaxation: float | Literal["auto"] = "auto",
    epsilon_schedule: EpsilonSchedule | Literal["auto"] | None = "auto",
    config: SinkhornConfig | None = None,
    warm_start: WarmStart | None = None,
    workspace: SinkhornWorkspace | None = None,
    observer: Observer | None = None,
) -> SinkhornResult:
    """Return the entropic optimal transport plan between two weighted sets of the same mass.

    Args:
        a: weights of the n source points, >= 0; None for uniform. Points without mass are left out.
        b: weights of the m target points; their sum must be that of ``a`` up to a ten-thousandth, and is made so.
        cost: (n, m) matrix, or :class:`PointClouds`.
        epsilon: strength of the entropic term, in units of the cost; None takes 0.05 of the median cost (of a fixed
            sample above a million costs), and ``result.epsilon`` tells it.
        config: all of the named settings at once; giving one beside it is an error.
        warm_start: where to start from: a result of a like problem (its potentials are rescaled to this epsilon).
        workspace: memory to work in.
        observer: called with a :class:`SinkhornProgress` every ``check_convergence_every`` iterations; returning False
            cancels.

    See :class:`SinkhornConfig` for the other settings.

    Raises:
        InvalidInputError: and its kinds, for what cannot be solved.
        NotConvergedError: not converged, and ``error_on_non_convergence`` is set.
        CancelledError: the observer returned False.
    """
    if config is None:
        config = SinkhornConfig(
            epsilon=epsilon,
            convergence_threshold=convergence_threshold,
            max_iterations=max_iterations,
            check_convergence_every=check_convergence_every,
            min_marginal=min_marginal,
            error_on_non_convergence=error_on_non_convergence,
            precision=precision,
            relaxation=relaxation,
            epsilon_schedule=epsilon_schedule,
        )
    check_kind("config", config, SinkhornConfig)
    checked = as_cost(cost)
    marginals = balanced_marginals(a, b, checked.rows, checked.columns, config.min_marginal)
    return run(checked, marginals, config, warm_start=warm_start, workspace=workspace, observer=observer)


def solve_batch(
    problems: Iterable[tuple[npt.ArrayLike | None, npt.ArrayLike | None, npt.ArrayLike | PointClouds]],
    *,
    config: SinkhornConfig | None = None,
    workspace: SinkhornWorkspace | None = None,
    observer: Observer | None = None,
) -> list[SinkhornResult]:
    """Solve several problems (a, b, cost), each from the start, in one workspace.

    Everything is checked before the first is solved. Raises what :func:`solve` raises.
    """
    config = SinkhornConfig() if config is None else check_kind("config", config, SinkhornConfig)
    checked: list[tuple[Cost, Marginals]] = []
    for problem in check_list("problems", problems):
        if not isinstance(problem, (tuple, list)) or len(problem) != 3:
            raise InvalidInputError(f"each problem must be a tuple (a, b, cost), not {shown(problem)}")
        a, b, cost = problem
        of_problem = as_cost(cost)
        checked.append((of_problem, balanced_marginals(a, b, of_problem.rows, of_problem.columns, config.min_marginal)))
    if not checked:
        return []
    precisions = {
        _precision(part, config, epsilon_of(config, part))
        for part in (cost.restricted(marginals.rows, marginals.columns) for cost, marginals in checked)
    }
    if workspace is None and len(precisions) == 1:
        workspace = SinkhornWorkspace(
            max(cost.rows for cost, _ in checked),
            max(cost.columns for cost, _ in checked),
            precision=precisions.pop(),
            clouds=any(cost.tiled for cost, _ in checked),
        )
    return [
        run(cost, marginals, config, workspace=workspace, observer=observer, place=(index, len(checked)))
        for index, (cost, marginals) in enumerate(checked)
    ]


def epsilon_of(config: SinkhornConfig, *costs: Cost) -> float:
    """Return the epsilon of ``config``, or the default one for these costs."""
    return default_epsilon(*costs) if config.epsilon is None else float(config.epsilon)


def _precision(cost: Cost, config: SinkhornConfig, epsilon: float) -> Literal["float32", "float64"]:
    if config.precision != "auto":
        return config.precision
    if cost.dtype == np.float64:
        return "float64"
    narrow = epsilon >= _FLOAT32_LEAST_EPSILON * cost.range and config.convergence_threshold >= _FLOAT32_LEAST_THRESHOLD
    return "float32" if narrow else "float64"


def _stages(
    cost: Cost, config: SinkhornConfig, target: float, warm: bool
) -> tuple[list[float], EpsilonSchedule | None]:
    schedule = config.epsilon_schedule
    if schedule is None or warm:
        return [], None
    if schedule == "auto":
        if not target < SCHEDULE_BELOW * cost.range:
            return [], None
        schedule = EpsilonSchedule(start=min(_SCHEDULE_START * cost.range, _MOST_DESCENT * target))
    return schedule.stages(target), schedule


def _warm_potentials(warm: WarmStart, epsilon: float, shape: tuple[int, int]) -> tuple[_Float64, _Float64]:
    """Potentials to start from, in base-2 logarithms at ``epsilon``."""
    if isinstance(warm, SinkhornResult):
        factor = warm.epsilon / epsilon
        log_u, log_v = warm.log_u * factor, warm.log_v * factor
    else:
        if not isinstance(warm, (tuple, list)) or len(warm) != 2:
            raise InvalidInputError(f"warm_start must be a result or a tuple (log_u, log_v), not {shown(warm)}")
        log_u, log_v = (as_numbers(part, "the warm start").astype(np.float64) for part in warm)
    if log_u.shape != shape[:1] or log_v.shape != shape[1:]:
        raise DimensionMismatchError(
            "potentials of the warm start", expected=shape, actual=(*log_u.shape, *log_v.shape)
        )
    for potential in (log_u, log_v):
        if not (potential < math.inf).all():
            raise InvalidInputError("potentials of the warm start must be finite, or -inf for points without mass")
    return log_u / _LN_2, log_v / _LN_2


def run(
    cost: Cost,
    marginals: Marginals,
    config: SinkhornConfig,
    *,
    taus: tuple[float, float] = (math.inf, math.inf),
    product: bool = False,
    symmetric: bool = False,
    warm_start: WarmStart | None = None,
    workspace: SinkhornWorkspace | None = None,
    observer: Observer | None = None,
    place: tuple[int, int] = (0, 1),
) -> SinkhornResult:
    """Solve a checked problem, balanced or not.

    ``symmetric``: the cost is symmetric and both marginals are one. ``product``: entropy is relative to the product of
    the weights, KL(P | a b'), which matters to unbalanced problems only.
    """
    if workspace is not None:
        check_kind("workspace", workspace, SinkhornWorkspace)
    check_callable("observer", observer)
    arguments = cost, marginals, config, taus, product, symmetric, warm_start, workspace, observer, place
    tame = cost.least > -_TAME and cost.most < _TAME and taus == (math.inf, math.inf) and warm_start is None
    if tame and config.epsilon is not None and config.epsilon > 1.0 / _TAME:
        return _run(*arguments)
    with np.errstate(all="ignore"):  # what leaves the range of its numbers is found by its value
        result = _run(*arguments)
    if result.converged and not abs(result.transport_cost) < math.inf:
        raise NumericalError(
            f"the transport cost left the range of float64; costs are up to {max(abs(cost.least), abs(cost.most)):.3g}: "
            "rescale them"
        )
    return result


def _run(
    cost: Cost,
    marginals: Marginals,
    config: SinkhornConfig,
    taus: tuple[float, float],
    product: bool,
    symmetric: bool,
    warm_start: WarmStart | None,
    workspace: SinkhornWorkspace | None,
    observer: Observer | None,
    place: tuple[int, int],
) -> SinkhornResult:
    setting: dict[str, Any] = {"row_tau": taus[0], "column_tau": taus[1], "symmetric": symmetric, "product": product}
    full = cost
    rows, columns = marginals.rows, marginals.columns
    part = cost.restricted(rows, columns)
    epsilon = epsilon_of(config, part)
    if workspace is not None:
        solver = workspace._take(part)
    else:
        double = _precision(part, config, epsilon) == "float64"
        solver = _transport.Solver(part.rows, part.columns, double_precision=double, clouds=part.tiled)
    part.bind(solver)
    solver.set_weights(marginals.a, marginals.b)
    n, m = part.rows, part.columns
    if warm_start is None:
        solver.u[:n] = 0.0
        solver.v[:m] = 0.0
    else:
        u, v = _warm_potentials(warm_start, epsilon, (full.rows, full.columns))
        # a point that had no mass then has no potential to start from
        solver.u[:n] = np.nan_to_num(u if rows is None else u[rows], neginf=0.0)
        solver.v[:m] = np.nan_to_num(v if columns is None else v[columns], neginf=0.0)

    adapt = config.relaxation == "auto"
    relaxation = 1.0 if config.relaxation == "auto" else float(config.relaxation)
    mass = float(marginals.a.sum())

    done_stages: list[SinkhornStage] = []
    epsilons, schedule = _stages(part, config, epsilon, warm_start is not None)
    previous = None
    for stage in epsilons:
        assert schedule is not None
        if previous is not None:
            solver.u[:n] *= previous / stage
            solver.v[:m] *= previous / stage
        previous = stage
        solver.configure(stage, relaxation=relaxation, **setting)
        solver.run(
            schedule.iterations_per_stage,
            schedule.stage_threshold * (mass if math.isinf(taus[0]) and math.isinf(taus[1]) else 1.0),
            adapt=adapt,
        )
        error = _last_error(solver, taus, n)
        done_stages.append(SinkhornStage(stage, solver.iterations, error))
        _observe(observer, solver.iterations, error, False, stage, place)
    if previous is not None:
        solver.u[:n] *= previous / epsilon
        solver.v[:m] *= previous / epsilon

    solver.configure(epsilon, relaxation=relaxation, **setting)
    converged = False
    error_before = math.inf
    earlier = 0
    while not converged and earlier + solver.iterations < config.max_iterations:
        chunk = min(config.check_convergence_every, config.max_iterations - earlier - solver.iterations)
        converged = solver.run(chunk, config.convergence_threshold, adapt=adapt)
        error = _last_error(solver, taus, n)
        if not error < math.inf:
            raise NumericalError(
                f"the plan left the range of {'float64' if solver.double_precision else 'float32'} numbers after "
                f"{earlier + solver.iterations} iterations; costs range over {part.range:.3g}: rescale them"
            )
        _observe(observer, earlier + solver.iterations, error, converged, epsilon, place)
        if not converged and _is_float32_floor(solver, config, error, error_before) and workspace is None:
            # rounding of the potentials keeps the residual up: go on from here in double
            wide = _transport.Solver(n, m, double_precision=True, clouds=part.tiled)
            part.bind(wide)
            wide.set_weights(marginals.a, marginals.b)
            wide.u[:n] = solver.u[:n]
            wide.v[:m] = solver.v[:m]
            wide.configure(epsilon, relaxation=relaxation, **setting)
            earlier += solver.iterations
            solver = wide
        error_before = error
    error = _last_error(solver, taus, n)
    iterations = earlier + solver.iterations
    # with larger logarithms, entries of the plan are rounded by more than the marginals show
    if converged and not max(part.most, -part.least) <= 1e-3 * _MOST_LOGARITHM * epsilon:
        largest = max(float(np.abs(solver.u[:n]).max()), float(np.abs(solver.v[:m]).max()))
        converged = largest <= _MOST_LOGARITHM
    if not converged and config.error_on_non_convergence:
        raise NotConvergedError(iterations, error, config.convergence_threshold)
    return _result(full, marginals, epsilon, solver, symmetric, taus, converged, error, iterations, tuple(done_stages))


def _is_float32_floor(solver: _transport.Solver, config: SinkhornConfig, error: float, before: float) -> bool:
    return not solver.double_precision and config.precision == "auto" and error < 1e-4 and error > 0.5 * before


def _last_error(solver: _transport.Solver, taus: Sequence[float], rows: int) -> float:
    if math.isinf(taus[0]) and math.isinf(taus[1]):
        return max(solver.row_residual, solver.column_residual)
    mass = float(solver.row_sums[:rows].sum())
    scale = abs(solver.primal) + mass
    gap = abs(solver.primal - solver.dual) / scale if scale != 0.0 else math.inf
    held = [solver.row_residual] if math.isinf(taus[0]) else [solver.column_residual] if math.isinf(taus[1]) else []
    return max(gap, *held) if held else gap


def _observe(
    observer: Observer | None, iteration: int, error: float, converged: bool, epsilon: float, place: tuple[int, int]
) -> None:
    if observer is None:
        return
    if observer(SinkhornProgress(iteration, error, converged, epsilon, place[0], place[1])) is False:
        raise CancelledError(f"the observer cancelled the solve after {iteration} iterations")


def _spread(values: _Float64, kept: npt.NDArray[Any] | None, size: int, fill: float) -> _Float64:
    if kept is None:
        return values.copy()
    result = np.full(size, fill)
    result[kept] = values
    return result


def _kl(sums: _Float64, weights: _Float64) -> float:
    """Kullback-Leibler divergence of measures: sum of x log(x / y) - x + y, with 0 log 0 = 0."""
    positive = sums > 0.0
    logs = np.zeros_like(sums)
    np.log(sums / weights, out=logs, where=positive)
    return float((sums * logs - sums + weights).sum())


def _result(
    cost: Cost,
    marginals: Marginals,
    epsilon: float,
    solver: _transport.Solver,
    symmetric: bool,
    taus: tuple[float, float],
    converged: bool,
    error: float,
    iterations: int,
    stages: tuple[SinkhornStage, ...],
) -> SinkhornResult:
    n, m = len(marginals.a), len(marginals.b)
    row_costs = np.empty(n)
    solver.row_costs(row_costs)
    transport_cost = float(row_costs.sum())
    row_sums = solver.row_sums[:n]
    column_sums = row_sums if symmetric else solver.column_sums[:m]
    row_kl = 0.0 if math.isinf(taus[0]) else _kl(row_sums, marginals.a)
    column_kl = 0.0 if math.isinf(taus[1]) else _kl(column_sums, marginals.b)
    penalties = (taus[0] * row_kl if row_kl else 0.0) + (taus[1] * column_kl if column_kl else 0.0)
    regularized = epsilon * solver.primal
    return SinkhornResult(
        epsilon=epsilon,
        iterations=iterations,
        converged=converged,
        last_error=error,
        row_residual=solver.row_residual,
        col_residual=solver.column_residual,
        transport_cost=transport_cost,
        entropy=(transport_cost + penalties - regularized) / epsilon,
        regularized_cost=regularized,
        dual_objective=epsilon * solver.dual,
        transported_mass=float(row_sums.sum()),
        row_kl=row_kl,
        column_kl=column_kl,
        log_u=_spread(solver.u[:n] * _LN_2, marginals.rows, cost.rows, -math.inf),
        log_v=_spread(solver.v[:m] * _LN_2, marginals.columns, cost.columns, -math.inf),
        row_sums=_spread(row_sums, marginals.rows, cost.rows, 0.0),
        column_sums=_spread(column_sums, marginals.columns, cost.columns, 0.0),
        row_costs=_spread(row_costs, marginals.rows, cost.rows, 0.0),
        stages=stages,
        precision="float64" if solver.double_precision else "float32",
        _cost=cost,
        _marginals=marginals,
    )
