"""Scores between a vector and many, between many and many, and pair by pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_embed.errors import InvalidInputError
from lattice_embed.origin import check_one_space
from lattice_embed.vectors import _vectors
from lattice_embed.vectors._vectors import cosine_similarity
from lattice_embed.vectors.metric import Metric, code_of
from lattice_embed.vectors.stored_matrix import StoredMatrix, StoredVector

__all__ = ["batch_cosine_similarity", "many_vs_many", "one_vs_many"]

_Float32Array = npt.NDArray[np.float32]


def batch_cosine_similarity(
    pairs: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]] | npt.ArrayLike, second: npt.ArrayLike | None = None, /
) -> _Float32Array:
    """Return the cosine similarity of many pairs of vectors.

    Args:
        pairs: pairs ``(a, b)``; or, when ``second`` is given, a matrix (n, dim) whose row i is paired with row i of
            ``second``.
        second: the other matrix (n, dim).

    Returns:
        float32 array of shape (n,).

    Raises:
        InvalidInputError: something is not a pair of vectors, or the matrices' shapes differ.
        DimensionMismatchError: the two vectors of a pair have different lengths.
        SpaceMismatchError: the vectors come from two embedding spaces.
    """
    if second is not None:
        check_one_space(pairs, second)
        return _vectors._row_by_row(_vectors.COSINE, pairs, second)  # type: ignore[arg-type]
    try:
        listed = iter(pairs)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInputError(f"pairs is a {type(pairs).__name__}: pass pairs of vectors, or two matrices") from None
    scores = []
    for index, pair in enumerate(listed):
        if not isinstance(pair, Sequence | np.ndarray) or len(pair) != 2:
            raise InvalidInputError(f"pair {index} does not hold two vectors; for two matrices pass both")
        check_one_space(pair[0], pair[1])
        scores.append(cosine_similarity(pair[0], pair[1]))
    return np.array(scores, np.float32)


def one_vs_many(
    query: npt.ArrayLike | StoredVector, matrix: npt.ArrayLike | StoredMatrix, *, metric: Metric = "cosine"
) -> _Float32Array:
    """Score one vector of shape (dim,) against every row of a matrix of shape (n, dim).

    Against int8 and int4 rows a float32 query is rounded to sixteen and eight bits, far finer than the rows; against binary
    ones it is cut to bits. A quantized query must be of the rows' kind.

    Returns:
        float32 array of shape (n,).

    Raises:
        InvalidInputError: a wrong shape, a metric that the rows do not have, or NaN in a query for quantized rows.
        DimensionMismatchError: the query is not as long as the rows.
        TierMismatchError: query and rows are quantized differently.
        SpaceMismatchError: query and rows come from two embedding spaces.
    """
    check_one_space(query, matrix)
    rows, code = rows_of(matrix, metric)
    scores: _Float32Array = _vectors._scores_of_rows(code, rows, one_query(query, matrix, code))[0]
    return scores


def many_vs_many(
    a: npt.ArrayLike | StoredMatrix, b: npt.ArrayLike | StoredMatrix, *, metric: Metric = "cosine"
) -> _Float32Array:
    """Score every row of a matrix (m, dim) against every row of another (n, dim).

    Returns:
        float32 array of shape (m, n).

    Raises:
        InvalidInputError: a wrong shape, or a metric that the rows do not have.
        DimensionMismatchError: the rows have different lengths.
        TierMismatchError: both are quantized, differently.
        SpaceMismatchError: they come from two embedding spaces.
    """
    check_one_space(a, b)
    if isinstance(b, StoredMatrix):
        code = b.code_of(metric)
        return _vectors._scores_of_rows(code, b.rows_for(code), b.queries_for(a, code, "many_vs_many"))
    if isinstance(a, StoredMatrix):
        return np.ascontiguousarray(many_vs_many(b, a, metric=metric).T)
    return _vectors._many_vs_many(code_of(metric), a, b)


def rows_of(matrix: npt.ArrayLike | StoredMatrix, metric: str) -> tuple[_vectors.StoredRows, int]:
    """Return rows as the kernels read them and the number of a metric that they have."""
    if isinstance(matrix, StoredMatrix):
        code = matrix.code_of(metric)
        return matrix.rows_for(code), code
    code = code_of(metric)
    rows = _vectors.as_float32(matrix, 2, "the matrix")
    return _vectors.StoredRows(_vectors.FLOAT32, rows.shape[1], rows), code


def one_query(query: npt.ArrayLike | StoredVector, matrix: npt.ArrayLike | StoredMatrix, code: int) -> Any:
    """Return a query as the kernels take it for the rows of ``matrix``."""
    if isinstance(query, StoredVector):
        if isinstance(matrix, StoredMatrix):
            return matrix.queries_for(query, code, "a comparison")
        query = query.dequantize()
    return _vectors.as_float32(query, 1, "the query").reshape(1, -1)
