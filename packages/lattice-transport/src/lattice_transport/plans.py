"""Uses of a plan: its largest entries, each point's mean target, and gradients of its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.checks import check_kind, check_number
from lattice_transport.costs import PointClouds, as_points
from lattice_transport.divergence import DivergenceResult
from lattice_transport.errors import DimensionMismatchError, InvalidInputError
from lattice_transport.result import SinkhornResult

__all__ = [
    "DivergenceGradient",
    "SparsePlan",
    "barycentric_projection",
    "divergence_gradient",
    "extract_sparse_plan",
    "transport_gradient",
    "weight_gradients",
]

_Array = npt.NDArray[Any]
_Float64 = npt.NDArray[np.float64]
_NORM_FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class SparsePlan:
    """The entries of a plan that carry at least some mass, by source and then target.

    ``retained_mass`` and ``dropped_mass`` are the mass in these entries and in all others.
    """

    sources: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    masses: _Float64
    retained_mass: float
    dropped_mass: float

    def __len__(self) -> int:
        return len(self.masses)


def extract_sparse_plan(result: SinkhornResult, threshold: float = 1e-6) -> SparsePlan:
    """Return the plan's entries of at least ``threshold`` mass.

    A threshold of 0 returns all that are not zero. The plan is never in memory as a whole.

    Raises:
        InvalidInputError: a threshold that is negative or no number.
    """
    check_kind("result", result, SinkhornResult)
    if not check_number("the threshold", threshold) >= 0.0:
        raise InvalidInputError(f"the threshold must be a mass, at least 0, not {threshold!r}")
    sources, targets, masses = [], [], []
    total = 0.0
    for first, block in result.plan_blocks():
        total += float(block.sum(dtype=np.float64))
        rows, columns = np.nonzero((block >= threshold) & (block > 0.0))
        sources.append(rows + first)
        targets.append(columns)
        masses.append(block[rows, columns].astype(np.float64))
    kept = np.concatenate(masses)
    return SparsePlan(
        np.concatenate(sources).astype(np.int64),
        np.concatenate(targets).astype(np.int64),
        kept,
        float(kept.sum()),
        max(total - float(kept.sum()), 0.0),
    )


def _pushed(result: SinkhornResult, values: _Float64) -> _Float64:
    """The product of the plan with ``values`` (m, d), block by block."""
    product = np.zeros((result.shape[0], values.shape[1]))
    for first, block in result.plan_blocks():
        product[first : first + len(block)] = block.astype(np.float64) @ values
    return product


def _check_clouds(result: SinkhornResult, x: _Array | None, y: _Array) -> None:
    if len(y) != result.shape[1]:
        raise DimensionMismatchError("target points", expected=result.shape[1], actual=len(y))
    if x is not None and len(x) != result.shape[0]:
        raise DimensionMismatchError("source points", expected=result.shape[0], actual=len(x))


def barycentric_projection(result: SinkhornResult, y: npt.ArrayLike) -> _Float64:
    """Return the mean target of each source point under the plan, (n, dimension).

    Targets ``y`` are weighted by mass. Points without mass go nowhere: NaN.
    """
    check_kind("result", result, SinkhornResult)
    points = as_points(y, "y").astype(np.float64)
    _check_clouds(result, None, points)
    sums = result.row_sums[:, None]
    projected = np.full((result.shape[0], points.shape[1]), np.nan)
    np.divide(_pushed(result, points), sums, out=projected, where=sums > 0.0)
    return projected


def transport_gradient(result: SinkhornResult, clouds: PointClouds) -> _Float64:
    """Return the gradient of the regularized cost by the source points, (n, dimension).

    By the envelope theorem it is the sum over j of P[i, j] dC(x[i], y[j])/dx[i]; it is as exact as the solve is.
    ``euclidean`` counts coinciding points as having no gradient.
    """
    check_kind("result", result, SinkhornResult)
    check_kind("clouds", clouds, PointClouds)
    x, y = np.asarray(clouds.x, np.float64), np.asarray(clouds.y, np.float64)
    _check_clouds(result, x, y)
    if clouds.metric == "sqeuclidean":
        return 2.0 * (result.row_sums[:, None] * x - _pushed(result, y))
    if clouds.metric == "cosine":
        lengths = np.maximum(np.linalg.norm(x, axis=1, keepdims=True), _NORM_FLOOR)
        unit_x = x / lengths
        pushed = _pushed(result, y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), _NORM_FLOOR))
        along = np.einsum("ik,ik->i", unit_x, pushed)[:, None]
        turned: _Float64 = (along * unit_x - pushed) / lengths
        return turned
    gradient = np.empty_like(x)
    for first, block in result.plan_blocks():
        part = x[first : first + len(block)]
        distances = np.asarray(PointClouds(part, y, "euclidean").matrix())
        pull = np.divide(block, distances, out=np.zeros_like(distances), where=distances > 0.0)
        gradient[first : first + len(block)] = pull.sum(1, keepdims=True) * part - pull @ y
    return gradient


def weight_gradients(result: SinkhornResult) -> tuple[_Float64, _Float64]:
    """Return the gradients of the regularized cost with respect to the weights of both sides.

    They are the potentials, given up to a constant: only changes that keep the mass count. Here their weighted mean is
    0. Points without mass have NaN.
    """
    check_kind("result", result, SinkhornResult)
    gradients = []
    for potential, sums in ((result.f, result.row_sums), (result.g, result.column_sums)):
        finite = np.where(np.isfinite(potential), potential, np.nan)
        present = sums > 0.0
        mean = float((finite[present] * sums[present]).sum() / sums[present].sum())
        gradients.append(finite - mean)
    return gradients[0], gradients[1]


@dataclass(frozen=True, eq=False)
class DivergenceGradient:
    """Gradient of a Sinkhorn divergence: by source point (n, dimension), and by weight (n)."""

    points: _Float64
    weights: _Float64


def divergence_gradient(divergence: DivergenceResult, clouds: PointClouds) -> DivergenceGradient:
    """Return the gradient of a balanced Sinkhorn divergence by the source points and weights."""
    check_kind("divergence", divergence, DivergenceResult)
    check_kind("clouds", clouds, PointClouds)
    x = np.asarray(clouds.x)
    within = PointClouds(x, x, clouds.metric)
    # OT(a, a) changes through both of its arguments, which are one: half of twice the gradient of one
    points = transport_gradient(divergence.cross, clouds) - transport_gradient(divergence.source, within)
    weights = weight_gradients(divergence.cross)[0] - weight_gradients(divergence.source)[0]
    return DivergenceGradient(points, weights)
