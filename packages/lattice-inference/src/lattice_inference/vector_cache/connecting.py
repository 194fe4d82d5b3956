"""Opens the cache's database, for writing or reading only, and detects damage."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from lattice_inference.errors import VectorCacheError
from lattice_inference.vector_cache.schema import SCHEMA, DamagedCacheError, is_ours, transaction

__all__ = [
    "CANNOT_OPEN",
    "CORRUPT",
    "FAILURES",
    "NOT_A_DATABASE",
    "MOST_ROW",
    "NO_PERMISSION",
    "READ_ONLY",
    "connect",
    "connect_read_only",
    "is_damaged",
    "result_code",
    "text_of",
]

# SQLite's primary result codes.
NO_PERMISSION, READ_ONLY, CORRUPT, CANNOT_OPEN, NOT_A_DATABASE = 3, 8, 11, 14, 26

FAILURES = (sqlite3.Error, OSError, UnicodeError, OverflowError)
"""What a damaged file, or a disk that fails, may raise: SQLite's message about a damaged definition quotes its bytes, and a
number of a row may leave no room for the next."""

MOST_ROW = 2**62
"""The highest number of a row that uses can lead to: one a nanosecond for a century."""

_BUSY_SECONDS = 10.0
_LOG_LIMIT_BYTES = 2**25
_PAGES_KEPT_KIB = 8_192  # SQLite's own cache: a page that it does not hold is a system call
_CHECKPOINT_PAGES = 16_000  # of the log, where no thread has copied them sooner: see checkpoints.py


def result_code(error: Exception) -> int:
    """Return SQLite's primary result code of an error, or 0.

    Damaged text or numbers count as damage.
    """
    if isinstance(error, (UnicodeError, OverflowError, DamagedCacheError)):
        return CORRUPT
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def text_of(data: bytes) -> str:
    """Return a text of the database, also of one whose bytes are damaged."""
    return data.decode(errors="replace")


def connect(path: Path) -> sqlite3.Connection:
    """Open a database for reading and writing, made if it is missing.

    Raises:
        sqlite3.Error: it cannot be opened, or is damaged.
        VectorCacheError: it is somebody else's, or of a newer version.
    """
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.text_factory = text_of
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        # Enough for a killed process; after a power failure the last vectors may be missing, and nothing is damaged.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}").fetchone()
        connection.execute(f"PRAGMA cache_size = -{_PAGES_KEPT_KIB}")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}").fetchone()
        with transaction(connection):
            if not is_ours(connection, path):
                for statement in SCHEMA:
                    connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_read_only(path: Path) -> sqlite3.Connection | None:
    """Open the database for reading.

    If not even the log's index can be made, only a database without a log.

    Returns:
        None where there is nothing that can be read.

    Raises:
        sqlite3.Error: it is damaged.
        VectorCacheError: it is somebody else's, or of a newer version.
    """
    for option in ("mode=ro", "immutable=1"):
        log = path.with_name(f"{path.name}-wal")
        with contextlib.suppress(OSError):
            if option == "immutable=1" and log.exists() and log.stat().st_size:
                continue
        try:
            connection = sqlite3.connect(
                f"{path.as_uri()}?{option}",
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error:
            continue
        connection.text_factory = text_of
        try:
            if is_ours(connection, path):
                return connection
        except FAILURES as error:
            if result_code(error) in (CORRUPT, NOT_A_DATABASE):
                connection.close()
                raise
        except BaseException:
            connection.close()
            raise
        connection.close()
    return None


def is_damaged(path: Path) -> bool:
    """Whether a file is no sound database."""
    try:
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    except sqlite3.Error:
        return True
    try:
        connection.text_factory = text_of
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            return True
        is_ours(connection, path)
        (last,) = connection.execute("SELECT max(row) FROM vectors").fetchone()
        return bool(last is not None and last > MOST_ROW)
    except VectorCacheError:
        return False
    except FAILURES as error:
        return result_code(error) in (CORRUPT, NOT_A_DATABASE)
    finally:
        connection.close()
