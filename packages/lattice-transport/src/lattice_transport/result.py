"""What a solved problem is: numbers, potentials, and the plan on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport import _transport
from lattice_transport.arrays import large_matrix
from lattice_transport.checks import check_count
from lattice_transport.costs import Cost
from lattice_transport.measures import Marginals

__all__ = ["SinkhornResult", "SinkhornStage"]

_Array = npt.NDArray[Any]
_Float64 = npt.NDArray[np.float64]
_LN_2 = float(np.log(2.0))


@dataclass(frozen=True)
class SinkhornStage:
    """One epsilon of a schedule: how many iterations it took and the residual it was left with."""

    epsilon: float
    iterations: int
    last_error: float


@dataclass(frozen=True, eq=False)
class SinkhornResult:
    """The solution of an entropic problem.

    The plan is P[i, j] = exp(log_u[i] + log_v[j] - C[i, j] / epsilon); :meth:`plan` computes it.

    Attributes:
        epsilon: strength of the entropic term, in units of the cost.
        iterations: iterations at this epsilon; those of a schedule's stages are in ``stages``.
        converged: whether ``last_error`` is at most the threshold. All other values are those of the plan as it is.
        last_error: balanced: the larger of the two residuals; unbalanced: the duality gap as a fraction of the
            objective and the mass, and the residual of a marginal that is held.
        row_residual, col_residual: L1 distance of the plan's marginals to the weights.
        transport_cost: sum of P C.
        entropy: -sum of P (log P - 1).
        regularized_cost: transport_cost - epsilon entropy, plus the penalties of an unbalanced problem.
        dual_objective: value of the dual problem at the potentials: a bound from below for the regularized optimum.
        gap: regularized_cost - dual_objective. For a balanced problem the plan is not feasible until it has converged,
            and the gap may be slightly negative.
        transported_mass: sum of P.
        row_kl, column_kl: Kullback-Leibler divergence of the plan's marginals from the weights (0 where they are held).
        log_u, log_v: natural logarithms of the scalings, float64; -inf for points without mass.
        row_sums, column_sums: the marginals of the plan.
        row_costs: sum over j of P[i, j] C[i, j]: what each source point contributes to the transport cost.
        stages: the epsilons passed through on the way.
        precision: "float32" or "float64": what it was computed in.

    >>> from lattice_transport import solve
    >>> result = solve([0.5, 0.5], [0.25, 0.75], [[0.0, 1.0], [1.0, 0.0]], epsilon=0.02)
    >>> result.converged, f"{result.transport_cost:.3f}"
    (True, '0.250')
    >>> result.plan().round(3).tolist()
    [[0.25, 0.25], [0.0, 0.5]]
    """

    epsilon: float
    iterations: int
    converged: bool
    last_error: float
    row_residual: float
    col_residual: float
    transport_cost: float
    entropy: float
    regularized_cost: float
    dual_objective: float
    transported_mass: float
    row_kl: float
    column_kl: float
    log_u: _Float64
    log_v: _Float64
    row_sums: _Float64
    column_sums: _Float64
    row_costs: _Float64
    stages: tuple[SinkhornStage, ...]
    precision: str
    _cost: Cost = field(repr=False)
    _marginals: Marginals = field(repr=False)

    @property
    def column_residual(self) -> float:
        """The same as ``col_residual``."""
        return self.col_residual

    @property
    def gap(self) -> float:
        """The regularized cost less the dual objective."""
        return self.regularized_cost - self.dual_objective

    @property
    def f(self) -> _Float64:
        """The source potential, epsilon log_u: the cost of one more unit of mass at a point.

        It is known up to a constant.
        """
        return self.epsilon * self.log_u

    @property
    def g(self) -> _Float64:
        """The target potential, epsilon log_v."""
        return self.epsilon * self.log_v

    @property
    def shape(self) -> tuple[int, int]:
        """Source points, target points."""
        return len(self.log_u), len(self.log_v)

    def plan(self) -> _Array:
        """Return the transport plan (n, m), in the dtype of the cost.

        Points without mass have exactly zero.
        """
        result = large_matrix("a transport plan", *self.shape, self._cost.dtype)
        for first, block in self.plan_blocks():
            result[first : first + len(block)] = block
        return result

    def plan_blocks(self, rows_per_block: int | None = None) -> Iterator[tuple[int, _Array]]:
        """Yield (first row, rows of the plan), a part at a time. A block is overwritten by the next."""
        if rows_per_block is not None:
            check_count("rows_per_block", rows_per_block)
        n, m = self.shape
        rows, columns = self._marginals.rows, self._marginals.columns
        kept_n = n if rows is None else len(rows)
        kept_m = m if columns is None else len(columns)
        double = self.precision == "float64"
        solver = _transport.Solver(kept_n, kept_m, double_precision=double, clouds=self._cost.tiled)
        self._cost.restricted(rows, columns).bind(solver)
        solver.configure(self.epsilon)
        solver.u[:kept_n] = (self.log_u if rows is None else self.log_u[rows]) / _LN_2
        solver.v[:kept_m] = (self.log_v if columns is None else self.log_v[columns]) / _LN_2
        size = min(kept_n, rows_per_block or max(1, (8 << 20) // (8 * kept_m)))
        room = np.empty((size, kept_m), np.float64 if double else np.float32)
        done = 0  # rows of the full plan
        for first in range(0, kept_n, size):
            count = min(size, kept_n - first)
            block = room[:count]
            solver.plan_rows(first, block)
            if columns is not None:
                wide = np.zeros((count, m), block.dtype)
                wide[:, columns] = block
                block = wide
            if rows is None:
                yield first, block
                continue
            kept = rows[first : first + count]
            spread = np.zeros((int(kept[-1]) + 1 - done, m), block.dtype)
            spread[kept - done] = block
            yield done, spread
            done = int(kept[-1]) + 1
        if rows is not None and done < n:
            yield done, np.zeros((n - done, m), room.dtype)
