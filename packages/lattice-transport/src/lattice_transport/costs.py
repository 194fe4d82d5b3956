"""Costs: matrices, or point clouds whose costs are computed when needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lattice_transport import _transport
from lattice_transport.arrays import as_real, large_matrix
from lattice_transport.checks import check_choice
from lattice_transport.errors import (
    DimensionMismatchError,
    EmptyProblemError,
    InvalidInputError,
    NonFiniteCostError,
    NonFinitePointError,
)

__all__ = [
    "METRICS",
    "Cost",
    "Metric",
    "PointClouds",
    "as_cost",
    "as_points",
    "cost_matrix",
    "differences_that_fit",
    "points_that_fit",
]

Metric = Literal["sqeuclidean", "euclidean", "cosine"]
_METRICS: dict[str, int] = {
    "sqeuclidean": _transport.SQUARED_EUCLIDEAN,
    "euclidean": _transport.EUCLIDEAN,
    "cosine": _transport.COSINE,
}
METRICS = tuple(_METRICS)
_NORM_FLOOR = 1e-12
_ROOM = 2.0**40  # how far costs stay below the largest number, so that sums of them do not overflow
_MATRIX_BYTES = 32 << 20  # clouds whose matrix fits in this are solved over the matrix: it is then computed once only

_Array = npt.NDArray[Any]
_Float64 = npt.NDArray[np.float64]


def as_points(values: npt.ArrayLike, name: str) -> _Array:
    """Return points (n, dimension) as a float array.

    Raises:
        EmptyProblemError: no points, or points without coordinates.
        NonFinitePointError: a coordinate is infinite or NaN.
        InvalidInputError: not a matrix of real numbers.
    """
    points = as_real(values, name, 2)
    if points.size == 0:
        raise EmptyProblemError(f"{name} has shape {points.shape}: there must be a point with a coordinate")
    bad = _transport.extremes(points)[2]
    if bad >= 0:
        point, dimension = divmod(bad, points.shape[1])
        raise NonFinitePointError(name, point, dimension, float(points[point, dimension]))
    return points


def points_that_fit(points: _Array, name: str, metric: str) -> None:
    """Raise InvalidInputError for coordinates whose distances would overflow."""
    low, high, _ = _transport.extremes(points)
    most = max(-low, high)
    narrow = points.dtype == np.float32 and metric == "sqeuclidean"
    limit = math.sqrt(float(np.finfo(np.float32 if narrow else np.float64).max) / (4.0 * _ROOM * points.shape[-1]))
    if not most <= limit:
        raise InvalidInputError(
            f"{name} has a coordinate of {most:.6g}; distances between such points would overflow. Scale the points, so "
            f"that none is above {limit:.3g}"
        )


def differences_that_fit(x: _Array, y: _Array, metric: str) -> None:
    """Raise InvalidInputError if the squares of all differences would underflow."""
    if metric == "cosine":
        return
    (x_low, x_high, _), (y_low, y_high, _) = _transport.extremes(x), _transport.extremes(y)
    extent = max(x_high, y_high) - min(x_low, y_low)
    narrow = np.result_type(x, y) == np.float32 and metric == "sqeuclidean"
    limit = math.sqrt(float(np.finfo(np.float32 if narrow else np.float64).tiny))
    if 0.0 < extent < limit:
        remedy = "pass float64, or scale the points" if narrow else "scale the points"
        raise InvalidInputError(
            f"all coordinates are within {extent:.3g}, and the squares of less than {limit:.3g} underflow: {remedy}"
        )


@dataclass(frozen=True, eq=False)
class PointClouds:
    """Two clouds of points and a metric, in the place of a cost matrix.

    Attributes:
        x: the source points, (n, dimension).
        y: the target points, (m, dimension).
        metric: "sqeuclidean" |x - y|^2, "euclidean" |x - y|, or "cosine" 1 - x.y / (|x| |y|) in [0, 2], where lengths
            below 1e-12 count as 1e-12.

    Small problems are solved over their matrix; large ones compute tiles of it in every iteration, in memory O(n + m).

    Raises:
        EmptyProblemError, NonFinitePointError, DimensionMismatchError, InvalidInputError: as the points deserve.

    >>> from lattice_transport import solve
    >>> clouds = PointClouds([[0.0], [1.0]], [[0.0], [3.0]])
    >>> result = solve([0.5, 0.5], [0.5, 0.5], clouds, epsilon=0.01)
    >>> f"{result.transport_cost:.2f}"
    '2.00'
    """

    x: npt.ArrayLike
    y: npt.ArrayLike
    metric: Metric = "sqeuclidean"

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)
        same = self.y is self.x
        x = as_points(self.x, "x")
        y = x if same else as_points(self.y, "y")
        if x.shape[1] != y.shape[1]:
            raise DimensionMismatchError("dimension of the points", expected=x.shape[1], actual=y.shape[1])
        dtype = np.result_type(x, y)
        points_that_fit(x, "x", self.metric)
        if not same:
            points_that_fit(y, "y", self.metric)
        differences_that_fit(x, y, self.metric)
        object.__setattr__(self, "x", np.ascontiguousarray(x, dtype))
        object.__setattr__(self, "y", self.x if same else np.ascontiguousarray(y, dtype))

    def matrix(self) -> _Array:
        """Return the whole cost matrix (n, m), in the dtype of the points.

        Products are taken in float64.
        """
        return cost_matrix(self.x, self.y, self.metric)


def _prepared(x: _Array, y: _Array, metric: str, dtype: npt.DTypeLike) -> tuple[_Array, _Array, _Float64, _Float64]:
    """Return the points for the kernels, and their squared lengths.

    The points are unit vectors, or moved so that their mean is zero.
    """
    same = x is y
    # distances do not change with the origin, and |x|^2 + |y|^2 - 2 x.y loses fewer digits around the mean
    centre = None if metric == "cosine" else 0.5 * (x.mean(axis=0, dtype=np.float64) + y.mean(axis=0, dtype=np.float64))
    narrow_x = _moved(x, centre, dtype)
    narrow_y = narrow_x if same else _moved(y, centre, dtype)
    x_squared = np.einsum("ik,ik->i", narrow_x, narrow_x, dtype=np.float64)
    y_squared = x_squared if same else np.einsum("ik,ik->i", narrow_y, narrow_y, dtype=np.float64)
    return narrow_x, narrow_y, x_squared, y_squared


def _moved(points: _Array, centre: _Float64 | None, dtype: npt.DTypeLike) -> _Array:
    """Points less ``centre``, or at length 1 if there is none; in float64, a block at a time."""
    result = np.empty(points.shape, dtype)
    for first in range(0, len(points), 1024):
        block = points[first : first + 1024].astype(np.float64)
        if centre is None:
            block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True), _NORM_FLOOR)
        else:
            block -= centre
        result[first : first + 1024] = block
    return result


def _padded(values: _Float64, size: int) -> _Float64:
    result = np.zeros(size)
    result[: len(values)] = values
    return result


def cost_matrix(x: npt.ArrayLike, y: npt.ArrayLike, metric: Metric = "sqeuclidean") -> _Array:
    """Return the costs (n, m) between points ``x`` (n, dimension) and ``y`` (m, dimension).

    Products are taken in float64 and the result is rounded to the dtype of the points. The distance of a point to
    itself, when ``x`` is ``y``, is exactly 0. OutOfMemoryError is raised where there is no memory for the matrix.
    """
    clouds = PointClouds(x, y, metric)
    source, target = np.asarray(clouds.x), np.asarray(clouds.y)
    n, m = len(source), len(target)
    px, py, x_squared, y_squared = _prepared(source, target, metric, np.float64)
    result = large_matrix("a cost matrix", n, m, source.dtype)
    block = max(1, min(n, (4 << 20) // (8 * m)))
    solver = _transport.Solver(block, m, double_precision=True, clouds=True)
    panels = _transport.pack_panels(py)
    y_squared = _padded(y_squared, _transport.padded_columns(m))
    room = np.empty((block, m))
    for first in range(0, n, block):
        rows = min(block, n - first)
        solver.bind_clouds(
            _METRICS[metric], px[first : first + rows], panels, x_squared[first : first + rows], y_squared, m
        )
        solver.cost_matrix(room[:rows])
        result[first : first + rows] = room[:rows]
    if source is target:
        np.fill_diagonal(result, 0.0)
    return result


class Cost:
    """A checked cost: a matrix, or points to compute it from.

    ``dtype`` is that of the caller's arrays.
    """

    def __init__(self, matrix: _Array | None, clouds: PointClouds | None) -> None:
        self.matrix = matrix
        self.clouds = clouds
        self._converted: dict[str, _Array] = {}
        self._packed: dict[str, tuple[Any, ...]] = {}
        if matrix is not None:
            self.dtype: np.dtype[Any] = matrix.dtype
            self.rows: int
            self.columns: int
            self.rows, self.columns = matrix.shape
            least, most, bad = _transport.extremes(matrix)
            if bad >= 0:
                row, column = divmod(bad, self.columns)
                raise NonFiniteCostError(row, column, float(matrix[row, column]))
            self.most: float
            self.least: float
            self.least, self.most = least, most
        else:
            assert clouds is not None
            x, y = np.asarray(clouds.x), np.asarray(clouds.y)
            self.dtype = x.dtype
            self.rows, self.columns = len(x), len(y)
            self.least = 0.0
            self.most = _bound_of_clouds(x, y, clouds.metric)

    @property
    def range(self) -> float:
        """The largest cost less the smallest; of clouds, a bound."""
        return self.most - self.least

    @property
    def tiled(self) -> bool:
        """Whether costs are computed in tiles, not read from a matrix."""
        return self.matrix is None

    def restricted(self, rows: _Array | None, columns: _Array | None) -> Cost:
        """Return the cost between some of the rows and some of the columns only (None: all)."""
        if rows is None and columns is None:
            return self
        if self.matrix is not None:
            part = self.matrix if rows is None else self.matrix[rows]
            return Cost(np.ascontiguousarray(part if columns is None else part[:, columns]), None)
        assert self.clouds is not None
        x, y = np.asarray(self.clouds.x), np.asarray(self.clouds.y)
        return Cost(
            None,
            PointClouds(x if rows is None else x[rows], y if columns is None else y[columns], self.clouds.metric),
        )

    def bind(self, solver: _transport.Solver) -> None:
        """Give ``solver`` this cost in its own precision."""
        dtype = np.dtype(np.float64 if solver.double_precision else np.float32)
        if self.matrix is not None:
            if dtype.name not in self._converted:
                self._converted[dtype.name] = np.ascontiguousarray(self.matrix, dtype)
            solver.bind_matrix(self._converted[dtype.name])
            return
        assert self.clouds is not None
        if dtype.name not in self._packed:
            x, y = np.asarray(self.clouds.x), np.asarray(self.clouds.y)
            px, py, x_squared, y_squared = _prepared(x, y, self.clouds.metric, dtype)
            padded = _transport.padded_columns(self.columns)
            self._packed[dtype.name] = (px, _transport.pack_panels(py), x_squared, _padded(y_squared, padded))
        px, panels, x_squared, y_squared = self._packed[dtype.name]
        solver.bind_clouds(_METRICS[self.clouds.metric], px, panels, x_squared, y_squared, self.columns)


def _bound_of_clouds(x: _Array, y: _Array, metric: str) -> float:
    if metric == "cosine":
        return 2.0
    centre = 0.5 * (x.mean(axis=0, dtype=np.float64) + y.mean(axis=0, dtype=np.float64))
    reach = _reach(x, centre) + (0.0 if x is y else _reach(y, centre))
    reach = 2.0 * reach if x is y else reach
    return reach if metric == "euclidean" else reach * reach


def _reach(points: _Array, centre: _Float64) -> float:
    """The largest distance of a point from ``centre``, a block of points at a time."""
    most = 0.0
    for first in range(0, len(points), 1024):
        shifted = points[first : first + 1024] - centre
        most = max(most, float(np.einsum("ik,ik->i", shifted, shifted).max()))
    return float(np.sqrt(most))


def as_cost(cost: npt.ArrayLike | PointClouds | Cost) -> Cost:
    """Check a cost matrix or clouds. Clouds of moderate size become their matrix.

    Raises:
        EmptyProblemError, NonFiniteCostError, InvalidInputError: as the costs deserve.
    """
    if isinstance(cost, Cost):
        return cost
    if isinstance(cost, PointClouds):
        x, y = np.asarray(cost.x), np.asarray(cost.y)
        if len(x) * len(y) * x.itemsize <= _MATRIX_BYTES:
            return Cost(cost.matrix(), None)
        return Cost(None, cost)
    matrix = as_real(cost, "the cost", 2)
    if matrix.size == 0:
        raise EmptyProblemError(f"the cost has shape {matrix.shape}: there must be a row and a column")
    return Cost(matrix, None)
