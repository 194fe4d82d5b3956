"""The registry's SQLite file: created atomically, shared by threads, processes and forks."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lattice_inference.errors import WriteError
from lattice_inference.files.shared_database import DatabaseFormat, SharedDatabase, create_database
from lattice_tune.errors import RegistryBusyError, RegistryCorruptError, RegistryError, StorageError

__all__ = ["Database", "DatabaseFormat", "Row"]

SYNCHRONOUS = "FULL"
"""Every commit is on the disk when it returns."""

Row = tuple[Any, ...]

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""The last is what a statement gets that does not fit the tables."""
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}


class Database(SharedDatabase):
    """One SQLite file in write-ahead mode with foreign keys, every commit forced to the disk.

    Threads take turns; a fork opens another connection. A file in a folder that cannot be written can be read.
    Every method may raise the errors below.

    Args:
        path: the file.
        form: what it must hold.
        busy_seconds: how long a call waits for other processes' transactions.

    Raises:
        StorageError: there is no such file, or it cannot be opened.
        RegistryBusyError: other processes hold it.
        RegistryCorruptError: it is damaged, another program's, or of a version that cannot be read.
    """

    @classmethod
    def create(cls, path: Path, form: DatabaseFormat) -> None:
        """Create a new file atomically.

        It is written beside its place and linked there, and replaces none.

        Raises:
            StorageError: it cannot be written. A file that is there already is no error.
        """
        try:
            create_database(path, form, synchronous=SYNCHRONOUS)
        except FileExistsError:
            return
        except (OSError, WriteError, sqlite3.Error) as error:
            raise StorageError(f"{path} cannot be written: {error}") from error

    def rows(self, statement: str, values: Sequence[object] = (), *, of: tuple[type, ...] | None = None) -> list[Row]:
        """Return the rows of a query.

        Args:
            statement: the query.
            values: of its parameters.
            of: the types of its columns, where what is not of them would do harm.

        Raises:
            RegistryCorruptError: a value is of another type, which only damage brings about.
        """
        rows = super().rows(statement, values)
        if of is not None and not all(tuple(map(type, row)) == of for row in rows):
            raise RegistryCorruptError(f"{self.path} is damaged: a row has values of other types than were written")
        return rows

    def faults(self) -> list[str]:
        """Return what SQLite finds wrong with the pages and with references between rows."""
        found = [f"pages: {text}" for (text,) in self.rows("PRAGMA integrity_check(20)") if text != "ok"]
        found += [f"a row of {table} refers to nothing" for table, *_ in self.rows("PRAGMA foreign_key_check")]
        return found

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        connection.execute("PRAGMA foreign_keys = ON")

    def _application_id(self) -> int:
        try:
            application_id = super()._application_id()
            self.rows("SELECT count(*) FROM sqlite_master")  # opens the log, which the header's numbers do not
        except StorageError as error:
            if isinstance(error, RegistryBusyError) or not self._read_without_log():
                raise
            application_id = super()._application_id()
        return application_id

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

    def _reported(self, error: Exception) -> RegistryError:
        if not isinstance(error, sqlite3.Error):  # of damaged definitions or row numbers
            return RegistryCorruptError(f"{self.path} is damaged: {error}")
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

    def _unusable(self, message: str) -> StorageError:
        return StorageError(message)

    def _damaged(self, message: str) -> RegistryCorruptError:
        return RegistryCorruptError(message)

    def _of_other_version(self, version: int) -> RegistryCorruptError:
        return RegistryCorruptError(
            f"{self.path} has version {version}, and this release reads version {self._form.version}: use the release of "
            "lattice-tune that wrote it"
        )
