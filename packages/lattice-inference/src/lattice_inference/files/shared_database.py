"""An SQLite file in write-ahead mode that threads, processes and forks share."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lattice_inference.checkpoint.atomic_file import sync_folder, temporary_beside

__all__ = ["DatabaseFormat", "Rows", "SharedDatabase", "create_database"]

Rows = list[tuple[Any, ...]]

_live: weakref.WeakSet[SharedDatabase] = weakref.WeakSet()

# Connections of the parent that a fork inherits must be neither used nor closed by the child.
_abandoned: list[sqlite3.Connection] = []


@dataclass(frozen=True)
class DatabaseFormat:
    """What a file of one kind holds.

    Attributes:
        what: what messages call it.
        application_id: 32 bits in the file's header that say whose it is.
        version: of the schema.
        schema: the statements that create it.
        upgrades: for each older version that is read, what turns its tables into those of the next. It is called inside a
            transaction, so that a kill leaves the old file or the new one.
    """

    what: str
    application_id: int
    version: int
    schema: tuple[str, ...]
    upgrades: Mapping[int, Callable[[Any], None]] = field(default_factory=dict, hash=False)


def create_database(
    path: Path, form: DatabaseFormat, *, synchronous: str, contents: Sequence[tuple[str, Sequence[object]]] = ()
) -> None:
    """Create a new file atomically; it never replaces a file.

    It is written beside its place and linked there.

    Args:
        path: the file.
        form: what it is to hold.
        synchronous: SQLite's setting of this name while the file is written.
        contents: statements that fill it, with their values.

    Raises:
        FileExistsError: there is something at ``path`` already.
        OSError, WriteError, sqlite3.Error: it cannot be written.
    """
    with temporary_beside(path) as temporary:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute("BEGIN")
            for statement in form.schema:
                connection.execute(statement)
            for statement, values in contents:
                connection.execute(statement, values)
            connection.execute(f"PRAGMA application_id = {form.application_id}")
            connection.execute(f"PRAGMA user_version = {form.version}")
            connection.execute("COMMIT")
            # Only now: in this mode a commit may lie in a file beside, which a failing disk leaves there.
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        os.link(temporary, path)
        sync_folder(path.parent)


class SharedDatabase(ABC):
    """One SQLite file. Threads take turns, and a fork opens another connection.

    A subclass prepares connections and makes the errors that its package raises.

    Args:
        path: the file, absolute.
        form: what it must hold. A file of an older version is upgraded when it is opened.
        busy_seconds: how long a statement waits for other processes' transactions.
    """

    def __init__(self, path: Path, form: DatabaseFormat, *, busy_seconds: float) -> None:
        self.path: Path = path
        self._form = form
        self._busy_seconds = busy_seconds
        self._lock = threading.RLock()
        self._depth = 0
        self._connection: sqlite3.Connection | None = None
        self._immutable = self._closed = False
        _live.add(self)
        if not path.is_file():
            raise self._unusable(f"there is no {form.what} {path}")
        try:
            self._check_header()
            self._check_tables()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Calling it twice is allowed."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do what is inside at once or not at all; no other process writes meanwhile. May be nested."""
        yield from self._inside("BEGIN IMMEDIATE")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read several times from one state of the file."""
        yield from self._inside("BEGIN")

    def rows(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """Return the rows of a query."""
        with self._lock, self._reporting():
            return self._open().execute(statement, values).fetchall()

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Execute a statement that changes something."""
        with self._lock, self._reporting():
            return self._open().execute(statement, values)

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> sqlite3.Cursor:
        """Execute a statement once for each row of values, inside a transaction of the caller."""
        with self._lock, self._reporting():
            return self._open().executemany(statement, rows)

    def number(self, statement: str, values: Sequence[object] = ()) -> int:
        """Return the one integer that a query gives; anything else is damage."""
        rows = self.rows(statement, values)
        if len(rows) != 1 or len(rows[0]) != 1 or not isinstance(rows[0][0], int):
            raise self._damaged(f"{self.path} is damaged: {rows!r:.80} instead of a number")
        return rows[0][0]

    @abstractmethod
    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the settings of a new connection."""

    @abstractmethod
    def _reported(self, error: Exception) -> Exception:
        """Return the package's error for one of SQLite, or for damaged bytes or numbers."""

    @abstractmethod
    def _unusable(self, message: str) -> Exception:
        """Return the package's error for a file that is missing or closed."""

    @abstractmethod
    def _damaged(self, message: str) -> Exception:
        """Return the package's error for a damaged file."""

    @abstractmethod
    def _of_other_version(self, version: int) -> Exception:
        """Return the package's error for a file of a version that this release does not read."""

    def _inside(self, begin: str) -> Iterator[None]:
        with self._lock:
            with self._reporting():
                connection = self._open()
            depth = self._depth
            try:  # an interrupt may come anywhere: no transaction stays open, and no depth stays wrong
                if depth == 0:
                    self.rows(begin)
                self._depth = depth + 1
                yield
                if depth == 0 and self._connection is connection:
                    self.rows("COMMIT")
            finally:
                if self._connection is connection:  # a fork inside the block has put another in its place
                    self._depth = depth
                    if depth == 0 and connection.in_transaction:
                        with self._reporting():
                            connection.execute("ROLLBACK")

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise self._unusable(f"{self.path} was closed: open it again")
        if self._connection is None:
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?{'immutable=1' if self._immutable else 'mode=rw'}",
                uri=True,
                timeout=self._busy_seconds,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _check_header(self) -> None:
        form = self._form
        if self._application_id() != form.application_id:
            raise self._damaged(f"{self.path} is an SQLite file of another program, not a {form.what}")
        while (version := self.number("PRAGMA user_version")) in form.upgrades:
            self._upgrade(version)
        if version != form.version:
            raise self._of_other_version(version)

    def _application_id(self) -> int:
        return self.number("PRAGMA application_id")

    def _upgrade(self, version: int) -> None:
        """Bring the file from a version to the next."""
        with self.transaction():
            if self.number("PRAGMA user_version") == version:  # no other process has done it meanwhile
                self._form.upgrades[version](self)
                self.execute(f"PRAGMA user_version = {version + 1}")

    def _check_tables(self) -> None:
        """Compare the tables' definitions.

        After one flipped bit in them, SQLite reads the same rows as something else.
        """
        found = {row[:3]: row[3] for row in self.rows(_DEFINITIONS)}
        if found != _definitions_of(self._form.schema):
            raise self._damaged(f"{self.path} is damaged: its tables are not those of a {self._form.what}")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn SQLite's errors, and those of decoding, into the package's.

        SQLite's message about a damaged definition holds its bytes, which may be no UTF-8. Texts of a row that are
        looked up again may be none either.
        """
        try:
            yield
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            raise self._reported(error) from error

    def _forget_parent(self) -> None:
        if self._connection is not None:
            _abandoned.append(self._connection)
        self._connection, self._lock, self._depth = None, threading.RLock(), 0


_DEFINITIONS = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"


@cache
def _definitions_of(schema: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """Return what SQLite keeps of the statements of a schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in schema:
            connection.execute(statement)
        return {row[:3]: row[3] for row in connection.execute(_DEFINITIONS)}


def _forget_parents() -> None:
    for database in list(_live):
        database._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
