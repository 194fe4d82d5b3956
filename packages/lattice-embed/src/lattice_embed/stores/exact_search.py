"""Exact nearest documents over matrices of chunk vectors.

Scored by ``lattice_embed.vectors``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_embed.arrays import float32_array
from lattice_embed.errors import DimensionMismatchError, InvalidInputError, SpaceMismatchError, StoreCorruptError
from lattice_embed.result import Float32Array
from lattice_embed.stores.space import VectorSpace
from lattice_embed.vectors import one_vs_many

__all__ = ["SearchBlock", "check_query", "nearest_documents"]

# Rows that are looked at first for each document that is wanted; doubled until the documents are found.
CANDIDATES = 4


@dataclass(frozen=True)
class SearchBlock:
    """Vectors that lie together.

    Attributes:
        vectors: float32 array of shape (n, dim).
        owners: int64 array of shape (n,): the document of each row, by a number of the caller's; -1 for a row that is
            no longer part of one.
    """

    vectors: Float32Array
    owners: npt.NDArray[np.int64]


@dataclass(frozen=True)
class BestRow:
    """A document's nearest row: its score, and where it is."""

    owner: int
    score: float
    block: int
    row: int


def check_query(space: VectorSpace, vector: npt.ArrayLike, k: int, fingerprint: str | None) -> tuple[Float32Array, int]:
    """Return a query's vector as float32 of shape (dim,), and ``k`` as an int.

    Raises:
        SpaceMismatchError: another space than ``fingerprint`` says, or one of texts only.
        DimensionMismatchError: the vector's length is not the space's.
        InvalidInputError: not a finite vector, or ``k`` below 1.
    """
    if not space.holds_vectors:
        raise SpaceMismatchError(expected="", actual=fingerprint or "the query")
    if fingerprint is not None:
        space.check_fingerprint(fingerprint)
    query = float32_array(vector, "the query")
    if query.ndim != 1:
        raise InvalidInputError(f"the query has shape {query.shape}; it must be one vector of shape (dim,)")
    if len(query) != space.dimensions:
        raise DimensionMismatchError(expected=space.dimensions, actual=len(query))
    if not np.isfinite(query).all():
        raise InvalidInputError("the query holds NaN or infinity")
    try:
        wanted = operator.index(k)
    except TypeError:
        raise InvalidInputError(f"k is {k!r}; it must be an integer") from None
    if wanted < 1:
        raise InvalidInputError(f"k is {wanted}; it must be at least 1")
    return query, wanted


def nearest_documents(
    blocks: Sequence[SearchBlock], query: Float32Array, k: int, name_of: Callable[[int], str]
) -> list[BestRow]:
    """Return the best row of each of the ``k`` nearest documents, best first.

    Equal scores go by ``name_of(owner)``.

    Raises:
        StoreCorruptError: a vector holds NaN or infinity, which no store takes.
    """
    if not blocks:
        return []
    scores = np.concatenate([one_vs_many(query, block.vectors) for block in blocks])
    owners = np.concatenate([block.owners for block in blocks])
    scores[owners < 0] = -np.inf
    if np.isnan(scores.max(initial=-np.inf)):
        owner = int(owners[np.flatnonzero(np.isnan(scores))[0]])
        raise StoreCorruptError(
            f"a vector of document {name_of(owner)!r} gives no score: it is damaged. Restore the store from a copy, or "
            "store the document again"
        )
    alive = int(np.count_nonzero(owners >= 0))
    wanted = min(CANDIDATES * k, alive)
    while wanted:
        # all rows that tie with the last of the wanted ones are in, so that the order does not depend on where rows lie
        least = np.partition(scores, len(scores) - wanted)[len(scores) - wanted]
        rows = np.flatnonzero((scores >= least) & (owners >= 0))
        if wanted == alive or len(np.unique(owners[rows])) >= k:
            break
        wanted = min(2 * wanted, alive)
    else:
        return []
    starts = np.cumsum([0, *(len(block.owners) for block in blocks)])
    best: dict[int, BestRow] = {}
    for row in rows[np.lexsort((rows, -scores[rows]))].tolist():
        owner = int(owners[row])
        if owner not in best:
            block = int(np.searchsorted(starts, row, side="right")) - 1
            best[owner] = BestRow(owner, float(scores[row]), block, row - int(starts[block]))
    return sorted(best.values(), key=lambda found: (-found.score, name_of(found.owner)))[:k]
