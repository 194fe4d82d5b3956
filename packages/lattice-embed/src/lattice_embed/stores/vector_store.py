"""What every vector store can do."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import numpy.typing as npt

from lattice_embed.stores.document import DocumentVersion, Match, StoredDocument
from lattice_embed.stores.space import VectorSpace

__all__ = ["DEFAULT_SCAN", "StoreOnDisk", "VectorStore"]

DEFAULT_SCAN = 1_000
"""Documents that one call of :meth:`VectorStore.scan` returns at most."""


@runtime_checkable
class VectorStore(Protocol):
    """Documents by id, each with its text and its vectors if embedded, all of one space.

    A migration needs no more than this, so that an index of your own becomes a source or a target by implementing it.
    What an implementation promises:

    * :meth:`put` and :meth:`delete` are atomic and durable. After a kill at any moment, all of a call's documents are
    stored as given, or none has changed; after the return, all are stored.
    * Every method may be called from several threads and processes at once; a reader sees whole calls only.
    * :meth:`scan` goes in the order of the ids' code points.
    """

    @property
    def space(self) -> VectorSpace:
        """The embedding space of the vectors; never changes."""
        ...

    def put(self, documents: Sequence[StoredDocument]) -> None:
        """Store documents; each replaces the one with its id, vectors included.

        Raises:
            SpaceMismatchError, DimensionMismatchError: vectors of another space.
            InvalidInputError: two documents with one id.
        """
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents, and return how many there were. Ids that are not there are none."""
        ...

    def get(self, ids: Sequence[str]) -> list[StoredDocument | None]:
        """Return documents in the order of ``ids``, ``None`` for one that is not there."""
        ...

    def versions(self, ids: Sequence[str]) -> list[DocumentVersion | None]:
        """Return what :meth:`get` does, without texts and vectors."""
        ...

    def scan(self, *, after: str = "", limit: int = DEFAULT_SCAN) -> list[DocumentVersion]:
        """Return up to ``limit`` documents with ids after ``after``, in order.

        An empty list at the end.
        """
        ...

    def query(self, vector: npt.ArrayLike, k: int = 10, *, fingerprint: str | None = None) -> list[Match]:
        """Return the ``k`` documents nearest to ``vector``, best first.

        Each appears once, by its best chunk. Equal scores go by id.

        Args:
            vector: float32 of shape (dim,).
            k: how many documents, at least 1.
            fingerprint: the space that the caller's vector belongs to; checked where given.

        Raises:
            SpaceMismatchError: ``fingerprint`` is another, or the store holds texts only.
            DimensionMismatchError: the vector's length is not the store's.
        """
        ...

    def __len__(self) -> int:
        """How many documents there are."""
        ...

    def close(self) -> None:
        """Release files. Calling it twice is allowed."""
        ...


class StoreOnDisk(VectorStore, Protocol):
    """Additional methods of this package's stores: path, verification, context manager."""

    @property
    def path(self) -> str:
        """The file or folder."""
        ...

    def verify(self) -> int:
        """Read everything and compare it with its digests; return how many documents were checked.

        Raises:
            StoreCorruptError: something is damaged.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
