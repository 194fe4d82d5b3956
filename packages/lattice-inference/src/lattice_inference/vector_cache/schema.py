"""The tables of the cache's database, and how its file is shared between processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from lattice_inference.errors import VectorCacheError

if sys.platform != "win32":
    import fcntl

__all__ = ["SCHEMA", "DamagedCacheError", "bytes_in_use", "folder_lock", "is_ours", "make_room", "transaction"]

LOCK_NAME = "vectors.lock"

APPLICATION_ID = 0x4C564543  # "LVEC", in the file's header: tells our databases from anybody else's
SCHEMA_VERSION = 1

SCHEMA = (
    """CREATE TABLE vectors (
        row INTEGER PRIMARY KEY,  -- rises with every use: the lowest is the least recently used
        key BLOB NOT NULL UNIQUE,
        space INTEGER NOT NULL,
        checksum INTEGER NOT NULL,  -- CRC-32 over key and vector: SQLite itself does not notice a flipped bit
        vector BLOB NOT NULL
    )""",
    "CREATE TABLE spaces (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


# name, type, whether it is NOT NULL, place in the primary key
_COLUMNS = {
    "vectors": [
        ("row", "INTEGER", 0, 1),
        ("key", "BLOB", 1, 0),
        ("space", "INTEGER", 1, 0),
        ("checksum", "INTEGER", 1, 0),
        ("vector", "BLOB", 1, 0),
    ],
    "spaces": [("id", "INTEGER", 0, 1), ("name", "TEXT", 1, 0)],
}


class DamagedCacheError(sqlite3.DatabaseError):
    """What SQLite itself finds no fault with, but was never written so."""


def is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the database has our tables; False for an empty one.

    Raises:
        VectorCacheError: it is somebody else's, or of a newer version.
        DamagedCacheError: it has our tables, and a header that says otherwise.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return False
    if application != APPLICATION_ID:
        if _has_our_tables(connection):
            raise DamagedCacheError("the file's header is damaged")
        raise VectorCacheError(f"{path} is a database of another program: name another folder for the cache")
    if version != SCHEMA_VERSION:
        raise VectorCacheError(
            f"{path} has version {version} of the cache's format, and this release knows {SCHEMA_VERSION}: "
            "name another folder, or remove the file"
        )
    if not _has_our_tables(connection):
        raise DamagedCacheError("a table's definition is damaged")
    return True


def _has_our_tables(connection: sqlite3.Connection) -> bool:
    """Whether the columns are ours.

    After one flipped bit in a definition, SQLite reads the same rows as something else.
    """
    return all(
        [row[1:4] + row[5:] for row in connection.execute(f"PRAGMA table_info({table})")] == columns
        for table, columns in _COLUMNS.items()
    )


def bytes_in_use(connection: sqlite3.Connection) -> int:
    """Return the size of the pages that hold something."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def make_room(connection: sqlite3.Connection, max_bytes: int) -> int:
    """Drop the oldest vectors until the pages in use are below the limit.

    Returns the oldest row. Call it in a transaction.
    """
    while (used := bytes_in_use(connection)) > max_bytes:
        (count,) = connection.execute("SELECT count(*) FROM vectors").fetchone()
        if not count:
            break
        excess = 1 - max_bytes * 15 / 16 / used
        last = connection.execute(
            "SELECT row FROM vectors ORDER BY row LIMIT 1 OFFSET ?", (min(count - 1, int(count * excess)),)
        ).fetchone()
        connection.execute("DELETE FROM vectors WHERE row <= ?", last)
    (oldest,) = connection.execute("SELECT min(row) FROM vectors").fetchone()
    return int(oldest or 0)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Begin to write, and commit, or roll back on an error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[bool]:
    """Keep other processes from opening or replacing the database, and from moving journals.

    Yields whether they are kept: where the folder cannot be written they are not.
    """
    if sys.platform == "win32":
        yield False
        return
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
