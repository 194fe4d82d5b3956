"""An SQLite file of a store: opened safely, shared by threads, processes and forks."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lattice_embed.errors import StoreCorruptError, StoreError
from lattice_embed.stores.document import decode_text
from lattice_embed.stores.durable_files import place_of, sync_folder
from lattice_inference.checkpoint.atomic_file import temporary_beside

__all__ = ["DatabaseFormat", "Rows", "SqliteDatabase"]

SYNCHRONOUS = "FULL"
"""Every commit is on the disk when it returns: a power cut in one of several files must not reorder them."""

BUSY_SECONDS = 60.0
"""How long a statement waits for another process's transaction."""

Rows = list[tuple[Any, ...]]

_live: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()

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
    upgrades: Mapping[int, Callable[[SqliteDatabase], None]] = field(default_factory=dict, hash=False)


class SqliteDatabase:
    """One SQLite file in write-ahead mode, with every commit forced to the disk.

    Threads take turns. A fork opens another connection. A file of an older version is brought to this release's when
    it is opened.

    Args:
        path: the file.
        form: what it must hold.

    Raises:
        StoreError: there is no such file, or it cannot be opened or brought to this version.
        StoreCorruptError: the file is damaged or another program's.
    """

    def __init__(self, path: str | os.PathLike[str], form: DatabaseFormat) -> None:
        self.path: Path = place_of(path)
        self._form = form
        self._what = form.what
        self._lock = threading.RLock()
        self._depth = 0
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        _live.add(self)
        if not self.path.is_file():
            raise StoreError(f"there is no {form.what} {self.path}")
        try:
            with self._reporting():
                self._check_header()
                self._check_schema()
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        form: DatabaseFormat,
        contents: Sequence[tuple[str, Sequence[object]]] = (),
    ) -> None:
        """Create a new file atomically.

        It is written beside its place and linked there, and never replaces a file.

        Args:
            path: the file.
            form: what it is to hold.
            contents: statements that fill it, with their values.

        Raises:
            StoreError: there is something at ``path`` already, or it cannot be written.
        """
        target = place_of(path)
        if not target.parent.is_dir():
            raise StoreError(f"{target}: the folder {target.parent} does not exist")
        try:
            with _reporting(target, form.what), temporary_beside(target) as temporary:
                connection = sqlite3.connect(temporary, isolation_level=None)
                try:
                    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
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
                finally:
                    connection.close()
                os.link(temporary, target)
                sync_folder(target.parent)
        except FileExistsError:
            raise StoreError(f"{target} exists already: open it, or name another file") from None
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file. Calling it twice is allowed."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do what is inside at once or not at all; no other process writes meanwhile. May be nested.

        Raises:
            StoreError, StoreCorruptError: the file cannot be written, or is damaged.
        """
        with self._lock, self._reporting():
            connection = self._open()
            if self._depth == 0:
                self.read("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                if self._depth == 0 and connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                try:
                    self.read("COMMIT")
                except BaseException:
                    if connection.in_transaction:  # the disk failed: the next transaction must find none open
                        connection.execute("ROLLBACK")
                    raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read several times from one state of the file."""
        with self._lock, self._reporting():
            connection = self._open()
            if self._depth:
                yield
                return
            self.read("BEGIN")
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def read(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """Return the rows of a query."""
        with self._lock, self._reporting(), self._understanding():
            return self._open().execute(statement, values).fetchall()

    def read_number(self, statement: str) -> int:
        """Return what a query that has one whole number to give gives.

        Raises:
            StoreCorruptError: it has not.
        """
        rows = self.read(statement)
        if len(rows) != 1 or len(rows[0]) != 1 or not isinstance(rows[0][0], int):
            raise StoreCorruptError(f"{self.path} is damaged: {rows!r:.80} instead of a number")
        return rows[0][0]

    def write(self, statement: str, values: Sequence[object] = ()) -> int:
        """Execute a statement, and return how many rows it changed."""
        with self._lock, self._reporting(), self._understanding():
            return self._open().execute(statement, values).rowcount

    def write_many(self, statement: str, rows: Sequence[Sequence[object]]) -> int:
        """Execute a statement for each of several rows, inside the caller's transaction."""
        with self._lock, self._reporting(), self._understanding():
            return self._open().executemany(statement, rows).rowcount

    def check_integrity(self) -> None:
        """Have SQLite check every page.

        Raises:
            StoreCorruptError: one is damaged.
        """
        found = self.read("PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            raise StoreCorruptError(f"{self.path} is damaged: {found[0][0]}")

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"{self.path} was closed: open it again")
        if self._connection is None:
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                connection.text_factory = decode_text
                connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _forget_parent(self) -> None:
        if self._connection is not None:
            _abandoned.append(self._connection)
        self._connection, self._lock, self._depth = None, threading.RLock(), 0

    def _check_header(self) -> None:
        form = self._form
        application_id = self.read_number("PRAGMA application_id")
        if application_id != form.application_id:
            raise StoreCorruptError(f"{self.path} is an SQLite file of another program, not a {form.what}")
        while (version := self.read_number("PRAGMA user_version")) in form.upgrades:
            try:
                with self.transaction():
                    if self.read_number("PRAGMA user_version") == version:  # no other process has done it meanwhile
                        form.upgrades[version](self)
                        self.write(f"PRAGMA user_version = {version + 1}")
            except StoreCorruptError:
                raise
            except StoreError as error:
                raise StoreError(
                    f"{self.path} has version {version} and cannot be brought to version {version + 1}: {error}: open it "
                    "once where it can be written"
                ) from error
        if version != form.version:
            raise StoreError(
                f"{self.path} has version {version}, this release reads version {form.version}: use the release of "
                "lattice-embed that wrote it"
            )

    def _check_schema(self) -> None:
        """Compare the tables' definitions.

        After one flipped bit in them, SQLite reads the same rows as something else.
        """
        found = {row[:3]: row[3] for row in self.read(_DEFINITIONS)}
        if found != _definitions_of(self._form.schema):
            raise StoreCorruptError(f"{self.path} is damaged: its tables are not those of a {self._what}")

    @contextmanager
    def _understanding(self) -> Iterator[None]:
        """Turn undecodable bytes in one statement into StoreCorruptError.

        SQLite's message about a damaged definition holds its bytes, which may be no UTF-8. Texts of a row that are
        looked up again may be none either.
        """
        try:
            yield
        except (UnicodeError, OverflowError) as error:
            raise StoreCorruptError(f"{self.path} is damaged or no {self._what}: {error}") from error

    def _reporting(self) -> AbstractContextManager[None]:
        return _reporting(self.path, self._what)


_DEFINITIONS = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"


@cache
def _definitions_of(schema: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """Return what SQLite keeps of the statements of a schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in schema:
            connection.execute(statement)
        return {row[:3]: row[3] for row in connection.execute(_DEFINITIONS)}


@contextmanager
def _reporting(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(f"{path}: {error}") from error
    except sqlite3.Error as error:
        raise StoreCorruptError(f"{path} is damaged or no {what}: {error}") from error


def _forget_parents() -> None:
    for database in list(_live):
        database._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
