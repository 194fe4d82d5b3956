"""The registry's SQLite file: created atomically, shared by threads, processes and forks."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lattice_inference.checkpoint.atomic_file import sync_folder, temporary_beside
from lattice_inference.errors import WriteError
from lattice_tune.errors import RegistryBusyError, RegistryCorruptError, RegistryError, StorageError

__all__ = ["Database", "DatabaseFormat", "Row"]

SYNCHRONOUS = "FULL"
"""Every commit is on the disk when it returns."""

Row = tuple[Any, ...]

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""The last is what a statement gets that does not fit the tables."""
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}

_live: weakref.WeakSet[Database] = weakref.WeakSet()

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
    upgrades: Mapping[int, Callable[[Database], None]] = field(default_factory=dict, hash=False)


class Database:
    """One SQLite file in write-ahead mode with foreign keys, every commit forced to the disk.

    Threads take turns; a fork opens another connection. A file in a folder that cannot be written can be read.

    Args:
        path: the file.
        form: what it must hold.
        busy_seconds: how long a call waits for other processes' transactions.

    Raises:
        StorageError: there is no such file, or it cannot be opened.
        RegistryBusyError: other processes hold it.
        RegistryCorruptError: it is damaged, another program's, or of a version that cannot be read.
    """

    def __init__(self, path: Path, form: DatabaseFormat, *, busy_seconds: float) -> None:
        self.path = path
        self._form = form
        self._busy_seconds = busy_seconds
        self._lock = threading.RLock()
        self._depth = 0
        self._connection: sqlite3.Connection | None = None
        self._immutable = self._closed = False
        _live.add(self)
        if not path.is_file():
            raise StorageError(f"there is no {form.what} {path}")
        try:
            self._check_header()
            self._check_tables()
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, form: DatabaseFormat) -> None:
        """Create a new file atomically.

        It is written beside its place and linked there, and replaces none.

        Raises:
            StorageError: it cannot be written. A file that is there already is no error.
        """
        try:
            with temporary_beside(path) as temporary:
                with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
                    connection.execute("BEGIN")
                    for statement in form.schema:
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {form.application_id}")
                    connection.execute(f"PRAGMA user_version = {form.version}")
                    connection.execute("COMMIT")
                    connection.execute("PRAGMA journal_mode = WAL").fetchall()
                os.link(temporary, path)
                sync_folder(path.parent)
        except FileExistsError:
            return
        except (OSError, WriteError, sqlite3.Error) as error:
            raise StorageError(f"{path} cannot be written: {error}") from error

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
            RegistryBusyError: other processes hold the file.
            StorageError, RegistryCorruptError: it cannot be written, or is damaged.
        """
        yield from self._inside("BEGIN IMMEDIATE")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read several times from one state of the file."""
        yield from self._inside("BEGIN")

    def rows(self, statement: str, values: Sequence[object] = (), *, of: tuple[type, ...] | None = None) -> list[Row]:
        """Return the rows of a query.

        Args:
            statement: the query.
            values: of its parameters.
            of: the types of its columns, where what is not of them would do harm.

        Raises:
            RegistryCorruptError: a value is of another type, which only damage brings about.
        """
        with self._lock, self._reporting():
            rows = self._open().execute(statement, values).fetchall()
        if of is not None and not all(tuple(map(type, row)) == of for row in rows):
            raise RegistryCorruptError(f"{self.path} is damaged: a row has values of other types than were written")
        return rows

    def number(self, statement: str, values: Sequence[object] = ()) -> int:
        """Return the one integer that a query gives.

        Raises:
            RegistryCorruptError: it gives something else.
        """
        rows = self.rows(statement, values, of=(int,))
        if len(rows) != 1:
            raise RegistryCorruptError(f"{self.path} is damaged: {len(rows)} rows instead of a number")
        return int(rows[0][0])

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Execute a statement that changes something, inside a transaction of the caller."""
        with self._lock, self._reporting():
            return self._open().execute(statement, values)

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Execute a statement once for each row of values, inside a transaction of the caller."""
        with self._lock, self._reporting():
            self._open().executemany(statement, rows)

    def faults(self) -> list[str]:
        """Return what SQLite finds wrong with the pages and with references between rows."""
        found = [f"pages: {text}" for (text,) in self.rows("PRAGMA integrity_check(20)") if text != "ok"]
        found += [f"a row of {table} refers to nothing" for table, *_ in self.rows("PRAGMA foreign_key_check")]
        return found

    def _inside(self, begin: str) -> Iterator[None]:
        with self._lock:
            connection = self._reported_open()
            if self._depth == 0:
                self._roll_back(connection)  # where an interrupt came between BEGIN and the block
                self.rows(begin)
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                self._roll_back(connection)
                raise
            self._depth -= 1
            if self._depth == 0:
                try:
                    self.rows("COMMIT")
                except BaseException:
                    self._roll_back(connection)  # the disk failed: the next transaction must find none open
                    raise

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if self._depth == 0 and connection.in_transaction:
            with self._reporting():
                connection.execute("ROLLBACK")

    def _reported_open(self) -> sqlite3.Connection:
        with self._reporting():
            return self._open()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StorageError(f"{self.path} was closed: open it again")
        if self._connection is None:
            option = "immutable=1" if self._immutable else "mode=rw"
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?{option}",
                uri=True,
                timeout=self._busy_seconds,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
                connection.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _check_header(self) -> None:
        form = self._form
        try:
            application_id = self.number("PRAGMA application_id")
            self.rows("SELECT count(*) FROM sqlite_master")  # opens the log, which the header's numbers do not
        except StorageError as error:
            if isinstance(error, RegistryBusyError) or not self._read_without_log():
                raise
            application_id = self.number("PRAGMA application_id")
        if application_id != form.application_id:
            raise RegistryCorruptError(f"{self.path} is an SQLite file of another program, not a {form.what}")
        while (version := self.number("PRAGMA user_version")) in form.upgrades:
            with self.transaction():
                if self.number("PRAGMA user_version") == version:  # no other process has done it meanwhile
                    form.upgrades[version](self)
                    self.execute(f"PRAGMA user_version = {version + 1}")
        if version != form.version:
            raise RegistryCorruptError(
                f"{self.path} has version {version}, and this release reads version {form.version}: use the release of "
                "lattice-tune that wrote it"
            )

    def _read_without_log(self) -> bool:
        """Open a read-only file.

        This is possible if its log is empty.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists() and log.stat().st_size:
            return False
        if self._connection is not None:
            self._connection.close()
        self._connection, self._immutable = None, True
        return True

    def _check_tables(self) -> None:
        """Compare the tables' definitions.

        After one flipped bit in them, SQLite reads the rows as something else.
        """
        found = {row[:3]: row[3] for row in self.rows(_DEFINITIONS)}
        if found != _definitions_of(self._form.schema):
            raise RegistryCorruptError(f"{self.path} is damaged: its tables are not those of a {self._form.what}")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._reported(error) from error
        except (UnicodeError, OverflowError) as error:  # of damaged definitions or row numbers
            raise RegistryCorruptError(f"{self.path} is damaged: {error}") from error

    def _reported(self, error: sqlite3.Error) -> RegistryError:
        code = int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
        if code in _BUSY:
            return RegistryBusyError(
                f"{self.path}: other processes held it for {self._busy_seconds:g} s: try again, or wait longer with "
                "busy_seconds"
            )
        if code in _DAMAGED or not isinstance(error, sqlite3.OperationalError):
            return RegistryCorruptError(f"{self.path} is damaged or no {self._form.what}: {error}")
        remedy = ": it can be read, and not changed here" if code in _UNWRITABLE else ""
        return StorageError(f"{self.path} cannot be read or written: {error}{remedy}")

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
