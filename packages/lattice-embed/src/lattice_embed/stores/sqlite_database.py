"""An SQLite file of a store: created atomically, shared by threads, processes and forks."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence

from lattice_embed.errors import StoreCorruptError, StoreError
from lattice_embed.stores.document import decode_text
from lattice_embed.stores.durable_files import place_of
from lattice_inference.files.shared_database import DatabaseFormat, Rows, SharedDatabase, create_database

__all__ = ["DatabaseFormat", "Rows", "SqliteDatabase"]

SYNCHRONOUS = "FULL"
"""Every commit is on the disk when it returns: a power cut in one of several files must not reorder them."""

BUSY_SECONDS = 60.0
"""How long a statement waits for another process's transaction."""


class SqliteDatabase(SharedDatabase):
    """One SQLite file in write-ahead mode, with every commit forced to the disk.

    Threads take turns. A fork opens another connection. A file of an older version is brought to this release's when
    it is opened. Every method may raise the errors below.

    Args:
        path: the file.
        form: what it must hold.

    Raises:
        StoreError: there is no such file, or it cannot be opened or brought to this version.
        StoreCorruptError: the file is damaged or another program's.
    """

    def __init__(self, path: str | os.PathLike[str], form: DatabaseFormat) -> None:
        super().__init__(place_of(path), form, busy_seconds=BUSY_SECONDS)

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
            create_database(target, form, synchronous=SYNCHRONOUS, contents=contents)
        except FileExistsError:
            raise StoreError(f"{target} exists already: open it, or name another file") from None
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error}") from error
        except sqlite3.OperationalError as error:
            raise StoreError(f"{target}: {error}") from error
        except sqlite3.Error as error:
            raise StoreCorruptError(f"{target} is damaged or no {form.what}: {error}") from error

    def read(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """Return the rows of a query."""
        return self.rows(statement, values)

    def read_number(self, statement: str) -> int:
        """Return what a query that has one whole number to give gives.

        Raises:
            StoreCorruptError: it has not.
        """
        return self.number(statement)

    def write(self, statement: str, values: Sequence[object] = ()) -> int:
        """Execute a statement, and return how many rows it changed."""
        return self.execute(statement, values).rowcount

    def write_many(self, statement: str, rows: Sequence[Sequence[object]]) -> int:
        """Execute a statement for each of several rows, inside the caller's transaction."""
        return self.execute_many(statement, rows).rowcount

    def check_integrity(self) -> None:
        """Have SQLite check every page.

        Raises:
            StoreCorruptError: one is damaged.
        """
        found = self.read("PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            raise StoreCorruptError(f"{self.path} is damaged: {found[0][0]}")

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.text_factory = decode_text
        connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")

    def _upgrade(self, version: int) -> None:
        try:
            super()._upgrade(version)
        except StoreCorruptError:
            raise
        except StoreError as error:
            raise StoreError(
                f"{self.path} has version {version} and cannot be brought to version {version + 1}: {error}: open it "
                "once where it can be written"
            ) from error

    def _reported(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.OperationalError):
            return StoreError(f"{self.path}: {error}")
        return StoreCorruptError(f"{self.path} is damaged or no {self._form.what}: {error}")

    def _unusable(self, message: str) -> StoreError:
        return StoreError(message)

    def _damaged(self, message: str) -> StoreCorruptError:
        return StoreCorruptError(message)

    def _of_other_version(self, version: int) -> StoreError:
        return StoreError(
            f"{self.path} has version {version}, this release reads version {self._form.version}: use the release of "
            "lattice-embed that wrote it"
        )
