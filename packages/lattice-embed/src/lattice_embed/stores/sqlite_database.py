"""An SQLite file of ours: opened and created safely, used by several threads, processes and forks."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lattice_embed.errors import StoreCorruptError, StoreError
from lattice_embed.stores.document import decode_text
from lattice_embed.stores.durable_files import sync_folder

__all__ = ["SqliteDatabase"]

SYNCHRONOUS = "FULL"
"""Every commit is on the disk when it returns: a power cut in one of several files must not reorder them."""

BUSY_SECONDS = 60.0
"""How long a statement waits for another process's transaction."""

Rows = list[tuple[Any, ...]]

_live: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()

# Connections of the parent that a fork inherits must be neither used nor closed by the child.
_abandoned: list[sqlite3.Connection] = []


class SqliteDatabase:
    """One SQLite file in write-ahead mode, with every commit forced to the disk.

    Threads take turns. A fork opens a connection of its own.

    Args:
        path: the file.
        application_id: 32 bits in the file's header that say whose it is.
        version: of the schema.
        schema: the statements that create it; ``None`` to open a file that must exist.
        what: what messages call it.

    Raises:
        StoreError: there is no such file; with ``schema``, that there is one already; or it cannot be opened.
        StoreCorruptError: the file is damaged or another program's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        application_id: int,
        version: int,
        schema: Sequence[str] | None,
        what: str,
    ) -> None:
        self.path = Path(path).absolute()
        self._application_id = application_id
        self._version = version
        self._what = what
        self._lock = threading.RLock()
        self._depth = 0
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        _live.add(self)
        if schema is not None:
            self._create(schema)
        elif not self.path.is_file():
            raise StoreError(f"there is no {what} {self.path}")
        with self._reporting():
            self._check_header()

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
                connection.execute("BEGIN IMMEDIATE")
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
                connection.execute("COMMIT")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read several times from one state of the file."""
        with self._lock, self._reporting():
            connection = self._open()
            if self._depth:
                yield
                return
            connection.execute("BEGIN")
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def read(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """Return the rows of a query."""
        with self._lock, self._reporting():
            return self._open().execute(statement, values).fetchall()

    def write(self, statement: str, values: Sequence[object] = ()) -> int:
        """Execute a statement, and return how many rows it changed."""
        with self._lock, self._reporting():
            return self._open().execute(statement, values).rowcount

    def write_many(self, statement: str, rows: Sequence[Sequence[object]]) -> int:
        """Execute a statement for each of several rows of values, inside a transaction of the caller."""
        with self._lock, self._reporting():
            return self._open().executemany(statement, rows).rowcount

    def check_integrity(self) -> None:
        """Have SQLite check every page.

        Raises:
            StoreCorruptError: one is damaged.
        """
        found = self.read("PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            raise StoreCorruptError(f"{self.path} is damaged: {found[0][0]}")

    def _create(self, schema: Sequence[str]) -> None:
        """Write a new file beside its place and link it there: it is whole or not there, and never replaces one."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        if not self.path.parent.is_dir():
            raise StoreError(f"{self.path}: the folder {self.path.parent} does not exist")
        try:
            with self._reporting():
                connection = sqlite3.connect(temporary, isolation_level=None)
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("BEGIN")
                    for statement in schema:
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {self._application_id}")
                    connection.execute(f"PRAGMA user_version = {self._version}")
                    connection.execute("COMMIT")
                finally:
                    connection.close()
            os.link(temporary, self.path)
            sync_folder(self.path.parent)
        except FileExistsError:
            raise StoreError(f"{self.path} exists already: open it, or name another file") from None
        finally:
            temporary.unlink(missing_ok=True)

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
        ((application_id,),) = self.read("PRAGMA application_id")
        ((version,),) = self.read("PRAGMA user_version")
        if application_id != self._application_id:
            raise StoreCorruptError(f"{self.path} is an SQLite file of another program, not a {self._what}")
        if version != self._version:
            raise StoreError(
                f"{self.path} has version {version}, this release reads version {self._version}: use the release of "
                "lattice-embed that wrote it"
            )

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StoreCorruptError(f"{self.path} is damaged or no {self._what}: {error}") from error


def _forget_parents() -> None:
    for database in list(_live):
        database._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
