"""The nearest rows of a matrix, without scores of the others kept or sorted."""

from __future__ import annotations

import operator
import sys
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_embed.arrays import plain_array
from lattice_embed.errors import DimensionMismatchError, InvalidInputError
from lattice_embed.origin import check_one_space
from lattice_embed.vectors import _vectors
from lattice_embed.vectors.half_matrix import HalfMatrix
from lattice_embed.vectors.metric import Metric, code_of
from lattice_embed.vectors.scores import one_query, rows_of
from lattice_embed.vectors.stored_matrix import StoredMatrix, StoredVector
from lattice_embed.vectors.tier import QuantizationTier

__all__ = ["TopK", "search", "top_k"]

_Float32Array = npt.NDArray[np.float32]

DEFAULT_OVERSAMPLE = {
    QuantizationTier.BFLOAT16: 2,
    QuantizationTier.FLOAT16: 2,
    QuantizationTier.INT8: 2,
    QuantizationTier.INT4: 4,
    QuantizationTier.BINARY: 16,
}
"""Candidates for each row wanted, where they are scored again: what Recall@10 above 0.95 takes, with room to spare."""


class TopK(NamedTuple):
    """The nearest rows, best first; from :func:`search` one row of each array a query."""

    indices: npt.NDArray[np.int64]
    """int64 array of shape (k,) or (m, k): which rows."""

    scores: _Float32Array
    """float32 array of the same shape: their scores."""


def top_k(
    query: npt.ArrayLike | StoredVector,
    matrix: npt.ArrayLike | StoredMatrix,
    k: int,
    *,
    metric: Metric = "cosine",
    rescore: npt.ArrayLike | HalfMatrix | None = None,
    oversample: int | None = None,
) -> TopK:
    """Find the ``k`` rows of a matrix (n, dim) that are nearest to a vector (dim,).

    Similarities rank from the largest down, distances from the smallest up; equal scores go by the lower row, and NaN
    ranks last. Each row is scored once and offered to a heap of the best: no score but theirs is stored, none is sorted.

    With ``rescore`` the search has two steps: ``oversample * k`` candidates by the (quantized) matrix, of which the best
    ``k`` by the exact vectors. The scores are then those of the second step. Binary rows find candidates by their bits
    whatever the metric.

    Args:
        query: float32 (dim,), or a stored vector of the rows' kind.
        matrix: float32 (n, dim), or a stored matrix.
        k: how many rows.
        metric: what is measured.
        rescore: the same rows at higher precision: float32 (n, dim), bfloat16 or float16. A memory-mapped file will do: only
            candidates are read.
        oversample: candidates for each row wanted; by default 2 for int8, 4 for int4, 16 for binary rows.

    Returns:
        Indices and scores of min(k, n) rows, best first.

    Raises:
        InvalidInputError: a wrong shape, a metric that the rows do not have, ``k`` or ``oversample`` below 1.
        DimensionMismatchError: the query is not as long as the rows.
        TierMismatchError: query and rows are quantized differently.
        SpaceMismatchError: the vectors come from two embedding spaces.
    """
    check_one_space(query, matrix, rescore)
    wanted = _count("k", k)
    if rescore is not None:
        return _top_k_rescored(query, matrix, wanted, metric, rescore, oversample)
    if oversample is not None:
        raise InvalidInputError("oversample has a meaning only with rescore")
    rows, code = rows_of(matrix, metric)
    return _vectors._nearest_to_one(code, rows, one_query(query, matrix, code), wanted, TopK)


def search(
    queries: npt.ArrayLike | StoredMatrix,
    matrix: npt.ArrayLike | StoredMatrix,
    k: int,
    *,
    metric: Metric = "cosine",
    rescore: npt.ArrayLike | HalfMatrix | None = None,
    oversample: int | None = None,
) -> TopK:
    """Find the ``k`` nearest rows of a matrix (n, dim) for each of many queries (m, dim).

    As :func:`top_k` for each query; the matrix is read from memory once for many of them. Against a float32 matrix the
    scores are those of :func:`many_vs_many`.

    Returns:
        Indices and scores, both of shape (m, min(k, n)).

    Raises:
        As :func:`top_k`.
    """
    check_one_space(queries, matrix, rescore)
    wanted = _count("k", k)
    if rescore is not None:
        if not isinstance(rescore, HalfMatrix):
            rescore = plain_array(rescore, "rescore")
        if isinstance(queries, StoredMatrix):
            queries = queries.dequantize()
        found = [
            _top_k_rescored(query, matrix, wanted, metric, rescore, oversample)
            for query in _vectors.as_float32(queries, 2, "the queries")
        ]
        width = min(wanted, len(matrix) if isinstance(matrix, StoredMatrix) else len(plain_array(matrix, "the matrix")))
        return TopK(
            np.array([each.indices for each in found], np.int64).reshape(-1, width),
            np.array([each.scores for each in found], np.float32).reshape(-1, width),
        )
    if oversample is not None:
        raise InvalidInputError("oversample has a meaning only with rescore")
    if isinstance(matrix, StoredMatrix):
        code = matrix.code_of(metric)
        rows = matrix.rows_for(code)
        prepared = matrix.queries_for(queries, code, "a search")
        return TopK(*_vectors._nearest_rows(code, rows, prepared, wanted))
    code = code_of(metric)
    exact = _vectors.as_float32(matrix, 2, "the matrix")
    if isinstance(queries, StoredMatrix):
        queries = queries.dequantize()
    return TopK(*_vectors._nearest_of_all(code, queries, exact, wanted))


def _top_k_rescored(
    query: npt.ArrayLike | StoredVector,
    matrix: npt.ArrayLike | StoredMatrix,
    wanted: int,
    metric: Metric,
    rescore: npt.ArrayLike | HalfMatrix,
    oversample: int | None,
) -> TopK:
    code_of(metric)
    first: Metric = metric
    times = 2
    if isinstance(matrix, StoredMatrix):
        times = DEFAULT_OVERSAMPLE[matrix.tier]
        if metric not in matrix.metrics:
            first = "cosine"
    if oversample is not None:
        times = _count("oversample", oversample)
    # an array of another dtype is not converted whole: only candidates are read
    exact = rescore if isinstance(rescore, HalfMatrix) else plain_array(rescore, "rescore")
    if len(exact.shape) != 2:
        raise InvalidInputError(f"rescore has shape {exact.shape}; it must be a matrix with one vector a row")
    candidates = top_k(query, matrix, wanted * times, metric=first).indices
    rows, dims = matrix.shape if isinstance(matrix, StoredMatrix) else plain_array(matrix, "the matrix").shape
    if exact.shape[1] != dims:
        raise DimensionMismatchError(expected=dims, actual=exact.shape[1])
    if exact.shape[0] != rows:
        raise InvalidInputError(f"rescore holds {exact.shape[0]} vectors for a matrix of {rows}")
    candidates.sort()  # so that equal scores go by the lower row again
    chosen = exact.take(candidates) if isinstance(exact, HalfMatrix) else exact[candidates]
    vector = query.dequantize() if isinstance(query, StoredVector) else query
    best = top_k(vector, chosen, wanted, metric=metric)
    return TopK(candidates[best.indices], best.scores)


def _count(name: str, value: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise InvalidInputError(f"{name} is {value!r}; it must be an integer") from None
    if count < 1:
        raise InvalidInputError(f"{name} is {count}; it must be at least 1")
    return min(count, sys.maxsize)
