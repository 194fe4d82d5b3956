"""Vector operations in float32: similarities, distances, normalizing, nearest rows.

Vectors are 1-D, matrices hold one vector a row. Arrays that are float32 and C-contiguous are read in place; lists and
other real dtypes are converted. Scores are float32 values.

Between a pair of vectors, and between one vector and many, the result has the same bits on every CPU with fused
multiply-add (AVX2, AVX-512, NEON), and ``one_vs_many(q, M)[i]`` has the bits of the pair operation on ``q`` and
``M[i]``; ``many_vs_many`` agrees with them to rounding (1e-6 for unit vectors). NaN or infinity in the input is not an
error: NaN comes out where it went in.

Every function may be called from several threads at once; large work is done without the GIL.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors import _vectors
from lattice_embed.vectors._vectors import (
    cosine_similarity,
    dot_product,
    euclidean_distance,
    manhattan_distance,
    squared_euclidean_distance,
)

__all__ = [
    "Metric",
    "TopK",
    "batch_cosine_similarity",
    "cosine_similarity",
    "dot_product",
    "euclidean_distance",
    "manhattan_distance",
    "many_vs_many",
    "normalize",
    "one_vs_many",
    "squared_euclidean_distance",
    "top_k",
]

Metric = Literal["cosine", "dot", "euclidean", "sqeuclidean", "manhattan"]
"""What is measured: ``"cosine"`` and ``"dot"`` are similarities, the others distances."""

_Float32Array = npt.NDArray[np.float32]

_CODES: dict[str, int] = {
    "cosine": _vectors.COSINE,
    "dot": _vectors.DOT,
    "euclidean": _vectors.EUCLIDEAN,
    "sqeuclidean": _vectors.SQUARED_EUCLIDEAN,
    "manhattan": _vectors.MANHATTAN,
}
_SIMILARITIES = frozenset({"cosine", "dot"})


class TopK(NamedTuple):
    """The nearest rows, best first."""

    indices: npt.NDArray[np.int64]
    """int64 array of shape (k,): which rows."""

    scores: _Float32Array
    """float32 array of shape (k,): their scores."""


def normalize(vectors: npt.ArrayLike, *, out: _Float32Array | None = None, in_place: bool = False) -> _Float32Array:
    """Divide a vector, or each row of a matrix, by its length.

    Vectors of zeros stay as they are. A vector with NaN or infinity in it becomes NaN.

    Args:
        vectors: of shape (dim,) or (n, dim).
        out: where to write; float32, C-contiguous, of the same shape. It may be ``vectors`` itself.
        in_place: write to ``vectors``, which then must be such an array.

    Returns:
        The array that was written to: a new one, ``out``, or ``vectors``.

    Raises:
        InvalidInputError: a wrong shape, or a target that cannot be written to.
    """
    if in_place:
        if out is not None:
            raise InvalidInputError("in_place=True and out= contradict each other: pass one of them")
        if not isinstance(vectors, np.ndarray):
            raise InvalidInputError(f"in_place=True needs a float32 array, not a {type(vectors).__name__}")
        out = vectors
    source = _vectors.as_float32(vectors, 1 if np.ndim(vectors) == 1 else 2, "vectors")
    if out is None:
        out = np.empty_like(source)
    elif not _is_writable_float32(out) or out.shape != source.shape:
        raise InvalidInputError(
            f"the target must be a writable, C-contiguous float32 array of shape {source.shape}; it is {_describe(out)}"
        )
    if out is not source and np.may_share_memory(out, source):
        source = source.copy()  # a shifted view would be overwritten before it is read
    _vectors._normalize(np.atleast_2d(source), out.reshape(1, -1) if out.ndim == 1 else out)
    return out


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
    """
    if second is not None:
        return _vectors._row_by_row(_vectors.COSINE, pairs, second)  # type: ignore[arg-type]
    if not isinstance(pairs, Iterable):
        raise InvalidInputError(f"pairs is a {type(pairs).__name__}: pass pairs of vectors, or two matrices")
    scores = []
    for index, pair in enumerate(pairs):
        if not isinstance(pair, Sequence | np.ndarray) or len(pair) != 2:
            raise InvalidInputError(f"pair {index} does not hold two vectors; for two matrices pass both")
        scores.append(cosine_similarity(pair[0], pair[1]))
    return np.array(scores, np.float32)


def one_vs_many(query: npt.ArrayLike, matrix: npt.ArrayLike, *, metric: Metric = "cosine") -> _Float32Array:
    """Score one vector of shape (dim,) against every row of a matrix of shape (n, dim).

    Returns:
        float32 array of shape (n,).

    Raises:
        InvalidInputError: a wrong shape, or an unknown metric.
        DimensionMismatchError: the query is not as long as the rows.
    """
    return _vectors._one_vs_many(_code(metric), query, matrix)


def many_vs_many(a: npt.ArrayLike, b: npt.ArrayLike, *, metric: Metric = "cosine") -> _Float32Array:
    """Score every row of a matrix of shape (m, dim) against every row of another of shape (n, dim).

    Returns:
        float32 array of shape (m, n).

    Raises:
        InvalidInputError: a wrong shape, or an unknown metric.
        DimensionMismatchError: the rows have different lengths.
    """
    return _vectors._many_vs_many(_code(metric), a, b)


def top_k(query: npt.ArrayLike, matrix: npt.ArrayLike, k: int, *, metric: Metric = "cosine") -> TopK:
    """Find the ``k`` rows of a matrix of shape (n, dim) that are nearest to a vector of shape (dim,).

    Similarities rank from the largest down, distances from the smallest up; equal scores go by the lower row, and NaN
    ranks last. All rows are scored, none is sorted but the best.

    Returns:
        Indices and scores of min(k, n) rows, best first.

    Raises:
        InvalidInputError: a wrong shape, an unknown metric, or ``k`` below 1.
        DimensionMismatchError: the query is not as long as the rows.
    """
    try:
        wanted = operator.index(k)
    except TypeError:
        raise InvalidInputError(f"k is {k!r}; it must be an integer") from None
    if wanted < 1:
        raise InvalidInputError(f"k is {wanted}; it must be at least 1")
    scores = one_vs_many(query, matrix, metric=metric)
    return TopK(*_vectors._select_best(scores, min(wanted, len(scores)), metric in _SIMILARITIES))


def _code(metric: str) -> int:
    code = _CODES.get(metric) if isinstance(metric, str) else None
    if code is None:
        raise InvalidInputError(f"metric is {metric!r}; it must be one of {', '.join(map(repr, _CODES))}")
    return code


def _is_writable_float32(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.float32 and bool(array.flags.carray)


def _describe(array: object) -> str:
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__}"
    order = "" if array.flags.c_contiguous else ", not contiguous"
    return f"{array.dtype} of shape {array.shape}{order}{'' if array.flags.writeable else ', read-only'}"
