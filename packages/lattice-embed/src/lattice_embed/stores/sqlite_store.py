"""A vector store in one SQLite file."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from lattice_embed.errors import StoreCorruptError
from lattice_embed.result import Float32Array
from lattice_embed.stores.document import DocumentVersion, Match, StoredDocument
from lattice_embed.stores.exact_search import SearchBlock, check_query, nearest_documents
from lattice_embed.stores.space import VectorSpace, checked_space
from lattice_embed.stores.sqlite_database import SqliteDatabase
from lattice_embed.stores.sqlite_format import FORMAT, pages_of, read_space, space_row
from lattice_embed.stores.stored_row import (
    DELETED,
    SEALED_COLUMNS,
    Row,
    check_row,
    deleted_row,
    document_of,
    row_of,
    spans_of,
    vectors_of,
    version_of,
)
from lattice_embed.stores.vector_store import DEFAULT_SCAN
from lattice_embed.stores.writing import check_after, check_documents, check_ids
from lattice_embed.validation import check_limit

__all__ = ["SqliteVectorStore"]

MOST_PARAMETERS = 500
"""Ids in one statement; SQLite's own limit was 999 for long."""

MOST_SEQUENCE = 2**63 - 1

VERSION_COLUMNS = "id, digest, state, fingerprint, reason"

_live: weakref.WeakSet[SqliteVectorStore] = weakref.WeakSet()


class SqliteVectorStore:
    """A :class:`VectorStore` in one SQLite file.

    Beside it lie ``-wal`` and ``-shm`` while it is open. The vectors are kept in memory from the first query on
    (``dimensions * 4`` bytes each); later queries read only what changed since. A context manager.

    Args:
        path: a file that :meth:`create` made.

    Raises:
        StoreError: there is no such file, or it cannot be opened.
        StoreCorruptError: the file is damaged, or no store.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._database = SqliteDatabase(path, FORMAT)
        try:
            self._space = read_space(self._database)
        except BaseException:
            self._database.close()
            raise
        self._index = _MemoryIndex(self._space.dimensions)
        self._index_lock = threading.Lock()
        _live.add(self)

    @classmethod
    def create(cls, path: str | os.PathLike[str], space: VectorSpace | None = None) -> Self:
        """Make a new, empty store; without a space, one of texts only.

        Raises:
            StoreError: there is something at ``path`` already, or it cannot be written.
        """
        fields = space_row(json.dumps(checked_space(space).to_fields()))
        SqliteDatabase.create(path, FORMAT, [("INSERT INTO space VALUES (?, ?)", fields)])
        return cls(path)

    @property
    def path(self) -> str:
        """The file."""
        return str(self._database.path)

    @property
    def space(self) -> VectorSpace:
        """The embedding space of the vectors."""
        return self._space

    def put(self, documents: Sequence[StoredDocument]) -> None:
        """Store documents at once or not at all; each replaces the one with its id.

        Raises:
            SpaceMismatchError, DimensionMismatchError: vectors of another space.
            InvalidInputError: two documents with one id.
        """
        checked = check_documents(self._space, documents)
        if not checked:
            return
        with self._database.transaction():
            first = self._next_sequence(len(checked))
            rows = [row_of(document, first + place) for place, document in enumerate(checked)]
            self._database.write_many(
                f"INSERT OR REPLACE INTO documents (text, {SEALED_COLUMNS}, seal) "
                "VALUES (CAST(? AS TEXT), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents, and return how many there were."""
        checked = check_ids(ids)
        with self._database.transaction():
            first = self._next_sequence(len(checked))
            rows = [deleted_row(document_id, first + place) for place, document_id in enumerate(checked)]
            return self._database.write_many(
                f"UPDATE documents SET text = '', ({SEALED_COLUMNS}, seal) = (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) "
                "WHERE id = ?1 AND state <> 'deleted'",
                rows,
            )

    def get(self, ids: Sequence[str]) -> list[StoredDocument | None]:
        """Return documents in the order of ``ids``, ``None`` for one that is not there.

        Raises:
            StoreCorruptError: a document's row is not what was written. Its text is compared by :meth:`verify`.
        """
        checked = check_ids(ids)
        found = {row[1]: self._document_of(row) for row in self._rows_of(f"text, {SEALED_COLUMNS}, seal", checked)}
        return [found.get(document_id) for document_id in checked]

    def versions(self, ids: Sequence[str]) -> list[DocumentVersion | None]:
        """Return what :meth:`get` does, without texts and vectors."""
        checked = check_ids(ids)
        found = {row[0]: self._version_of(row) for row in self._rows_of(VERSION_COLUMNS, checked)}
        return [found.get(document_id) for document_id in checked]

    def scan(self, *, after: str = "", limit: int = DEFAULT_SCAN) -> list[DocumentVersion]:
        """Return up to ``limit`` documents with ids after ``after``, in order.

        An empty list at the end.
        """
        rows = self._database.read(
            f"SELECT {VERSION_COLUMNS} FROM documents WHERE id > ? AND state <> 'deleted' ORDER BY id LIMIT ?",
            (check_after(after), min(check_limit("limit", limit), MOST_SEQUENCE)),
        )
        return [self._version_of(row) for row in rows]

    def query(self, vector: npt.ArrayLike, k: int = 10, *, fingerprint: str | None = None) -> list[Match]:
        """Return the ``k`` documents nearest to ``vector``, best first; exact.

        Raises:
            SpaceMismatchError, DimensionMismatchError, InvalidInputError: the query is not one of this store's space.
        """
        query, wanted = check_query(self._space, vector, k, fingerprint)
        with self._index_lock:
            self._refresh_index()
            index = self._index
            best = nearest_documents([index.block()], query, wanted, index.names.__getitem__)
            return [Match(index.names[row.owner], row.score, *index.place(row.row)) for row in best]

    def __len__(self) -> int:
        return self._database.read_number("SELECT count(*) FROM documents WHERE state <> 'deleted'")

    def verify(self) -> int:
        """Read everything and compare it with its digests; return how many documents were checked.

        Raises:
            StoreCorruptError: something is damaged.
        """
        self._database.check_integrity()
        read_space(self._database)
        checked = 0
        for text, *fields in self._all_rows():
            document_id, _, state, digest = fields[:4]
            if state == DELETED:
                self._check(tuple(fields))
                if text != "":
                    raise StoreCorruptError(f"{self.path}: document {document_id!r} was deleted and has a text")
                continue
            if self._document_of((text, *fields)).version.digest != digest:
                raise StoreCorruptError(f"{self.path}: the text of document {document_id!r} is not what was stored")
            checked += 1
        return checked

    def _all_rows(self) -> Iterator[Row]:
        """Yield text, :data:`SEALED_COLUMNS` and digest of every row, in no stated order.

        Deleted ones are included.
        """
        for page in pages_of(self._database, f"text, {SEALED_COLUMNS}, seal", "documents"):
            for _, *row in page:
                yield tuple(row)

    def close(self) -> None:
        """Close the file. Calling it twice is allowed."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SqliteVectorStore({self.path!r}, model={self._space.model!r})"

    def _forget_parent(self) -> None:
        """In a fork: another thread of the parent may have been at the index just then."""
        self._index, self._index_lock = _MemoryIndex(self._space.dimensions), threading.Lock()

    def _next_sequence(self, count: int) -> int:
        """Return the first of ``count`` numbers after all that were given. In a transaction."""
        ((last,),) = self._database.read("SELECT coalesce(max(sequence), 0) FROM documents")
        if not isinstance(last, int) or not 0 <= last <= MOST_SEQUENCE - count:
            raise StoreCorruptError(f"{self.path}: a document's number is {last!r:.40}: restore the store from a copy")
        return last + 1

    def _rows_of(self, columns: str, checked: list[str]) -> list[Row]:
        rows: list[Row] = []
        with self._database.snapshot():
            for start in range(0, len(checked), MOST_PARAMETERS):
                part = checked[start : start + MOST_PARAMETERS]
                marks = ",".join("?" * len(part))
                rows += self._database.read(
                    f"SELECT {columns} FROM documents WHERE id IN ({marks}) AND state <> 'deleted'", part
                )
        return rows

    def _document_of(self, row: Row) -> StoredDocument:
        """Return the document of a row of text, :data:`SEALED_COLUMNS` and digest."""
        text, *rest = row
        self._check(tuple(rest))
        try:
            return document_of(tuple(rest[:-1]), text, self._space.dimensions)
        except (ValueError, TypeError) as error:
            raise self._damaged(rest[0], error) from error

    def _version_of(self, row: Row) -> DocumentVersion:
        try:
            return version_of(row)
        except ValueError as error:
            raise self._damaged(row[0], error) from error

    def _check(self, row: Row) -> None:
        """Compare the values of :data:`SEALED_COLUMNS` with the digest that stands after them."""
        try:
            check_row(row[:-1], row[-1])
        except ValueError as error:
            raise self._damaged(row[0], error) from error

    def _damaged(self, document_id: object, error: Exception) -> StoreCorruptError:
        return StoreCorruptError(f"{self.path}: document {document_id!r:.200} is damaged: {error}")

    def _refresh_index(self) -> None:
        """Bring the vectors in memory up to date.

        Only rows written since the last time are read and compared.
        """
        while rows := self._database.read(
            f"SELECT {SEALED_COLUMNS}, seal FROM documents WHERE sequence > ? ORDER BY sequence LIMIT 4096",
            (self._index.sequence,),
        ):
            for row in rows:
                self._check(row)
                document_id, sequence, spans, vectors = row[0], row[1], row[7], row[8]
                try:
                    matrix = vectors_of(vectors, spans, self._space.dimensions)
                except ValueError as error:
                    raise self._damaged(document_id, error) from error
                self._index.replace(document_id, matrix, spans_of(spans))
                self._index.sequence = sequence


class _MemoryIndex:
    """Vectors of all documents in one growing matrix; rows of replaced documents are used again."""

    def __init__(self, dimensions: int) -> None:
        self.sequence = 0
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rows: list[list[int]] = []
        self._matrix = np.zeros((0, dimensions), np.float32)
        self._owners = np.zeros(0, np.int64)
        self._places = np.zeros((0, 3), np.int64)
        self._used = 0
        self._free: list[int] = []

    def replace(self, name: str, vectors: Float32Array, spans: npt.NDArray[np.int64]) -> None:
        """Set a document's vectors; none take it out."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
            self._rows.append([])
        self._owners[self._rows[number]] = -1
        self._free += reversed(self._rows[number])
        rows = [self._take_row() for _ in range(len(vectors))]
        self._rows[number] = rows
        if rows:
            self._matrix[rows] = vectors
            self._owners[rows] = number
            self._places[rows, 0] = np.arange(len(rows))
            self._places[rows, 1:] = spans

    def block(self) -> SearchBlock:
        """Return all rows."""
        return SearchBlock(self._matrix[: self._used], self._owners[: self._used])

    def place(self, row: int) -> tuple[int, int, int]:
        """Return a row's chunk, and the characters it stands for."""
        chunk, start, end = self._places[row].tolist()
        return chunk, start, end

    def _take_row(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._matrix):
            more = max(256, self._used // 2)
            self._matrix = np.concatenate([self._matrix, np.zeros((more, self._matrix.shape[1]), np.float32)])
            self._owners = np.concatenate([self._owners, np.full(more, -1, np.int64)])
            self._places = np.concatenate([self._places, np.zeros((more, 3), np.int64)])
        self._used += 1
        return self._used - 1


def _forget_parents() -> None:
    for store in list(_live):
        store._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
