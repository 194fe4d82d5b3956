"""The database of vectors: one SQLite file that several processes may read and write at once.

What it promises:

* A vector that :meth:`VectorCache.put_many` has taken is on record when the call returns: a process that is killed at any
  moment loses no such vector, and leaves no half of one (write-ahead log, one transaction a call).
* Nothing that goes wrong with the database goes wrong with the caller: a full disk, a folder that cannot be written or a
  damaged file cost a warning and look like an empty cache.
* The least recently used vectors go first. The number of a row is the time of its last use: a vector that is used again
  moves to the end of the table, once it is no longer in the newest quarter. Old rows lie together, so that dropping them
  frees whole pages.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from lattice_inference.errors import InvalidInputError, VectorCacheError
from lattice_inference.vector_cache.schema import SCHEMA, bytes_in_use, folder_lock, is_ours, transaction

__all__ = [
    "CACHE_VARIABLE",
    "DEFAULT_MAX_BYTES",
    "VectorCache",
    "VectorCacheStats",
    "VectorCacheWarning",
    "default_cache_folder",
]

CACHE_VARIABLE = "LATTICE_VECTOR_CACHE"
"""Environment variable that names the folder of caches made without one."""

DEFAULT_MAX_BYTES = 2**30
"""Size that the database may grow to: about 600,000 vectors of 384 dimensions."""

LEAST_MAX_BYTES = 2**18

FILE_NAME = "vectors.sqlite3"

_SELECT = "SELECT row, key, checksum, vector FROM vectors WHERE key IN ({})"
_SELECT_ONE = _SELECT.format("?")

_INSERT = "INSERT OR REPLACE INTO vectors (key, space, checksum, vector) VALUES (?, ?, ?, ?)"  # SQLite numbers the row

_BUSY_SECONDS = 10.0
_LOOKUP_CHUNK = 256
_PENDING_USES = 256
_ROW_BYTES = 112  # what a row takes besides its vector, its place in the index included
_LOG_LIMIT_BYTES = 2**25
_CHECKPOINT_PAGES = 4_000  # a checkpoint waits for the disk: one in a thousand stores

# SQLite's primary result codes.
_PERM, _BUSY, _LOCKED, _READONLY, _CORRUPT, _CANTOPEN, _NOTADB = 3, 5, 6, 8, 11, 14, 26

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Mode = Literal["closed", "read-write", "read-only", "off"]


class VectorCacheWarning(UserWarning):
    """The cache on disk cannot be used as it was asked for. Vectors are right all the same; they are only not kept."""


def default_cache_folder() -> Path:
    """Return the folder of caches made without one: ``LATTICE_VECTOR_CACHE``, else ``~/.lattice/cache``."""
    named = os.environ.get(CACHE_VARIABLE, "").strip()
    return Path(named).expanduser() if named else Path("~/.lattice/cache").expanduser()


@dataclass(frozen=True, kw_only=True)
class VectorCacheStats:
    """What a cache holds, and what this object has seen since it was made.

    Attributes:
        path: the database.
        mode: ``"read-write"``, ``"read-only"`` (nothing is stored), or ``"off"`` (it cannot be used at all).
        entries: vectors in it.
        bytes: size of its pages in use.
        max_bytes: what ``bytes`` may grow to.
        models: vectors by the name of what made them.
        hits, misses: keys that were looked up through this object and found, or not.
    """

    path: Path
    mode: Mode
    entries: int
    bytes: int
    max_bytes: int
    models: dict[str, int]
    hits: int
    misses: int


# A connection must not cross a fork, in either direction: it is closed before and opened again after.
_live_caches: weakref.WeakSet[VectorCache] = weakref.WeakSet()


class VectorCache:
    """Vectors on disk by key. Any number of threads and processes may use one folder at once.

    Made by a caller and given to :func:`lattice_inference.load_encoder`, for one encoder or several. The database is opened
    by the first use and, after ``os.fork()``, once more in parent and child. A context manager; pickling keeps the folder
    and the limit.

    Args:
        folder: where the database is, made if it is missing; by default :func:`default_cache_folder`.
        max_bytes: size that the database may grow to; the least recently used vectors go first.

    Raises:
        InvalidInputError: ``max_bytes`` is no int of at least 262,144, or ``folder`` is no path.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not max_bytes >= LEAST_MAX_BYTES:
            raise InvalidInputError(f"max_bytes is {max_bytes!r}; it must be an int of at least {LEAST_MAX_BYTES:,}")
        if folder is not None and not isinstance(folder, (str, os.PathLike)):
            raise InvalidInputError(f"folder is a {type(folder).__name__}; pass a path")
        chosen = default_cache_folder() if folder is None else Path(folder).expanduser()
        self.folder = Path(os.path.abspath(chosen))  # a later chdir must not move it
        self.path = self.folder / FILE_NAME
        self._name = str(self.path)  # looked at by every store
        self.max_bytes = max_bytes
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._grown: int = 0
        self._mode: Mode = "closed"
        self._forget_connection()
        self._warned: set[str] = set()
        self.hits = 0
        self.misses = 0
        _live_caches.add(self)

    # Use

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the vector's bytes for each key, or None. A vector that does not match its checksum counts as missing."""
        found = self._guarded(self._look_up, keys) or {}
        vectors = [found.get(key) for key in keys]
        missing = vectors.count(None)
        self.misses += missing
        self.hits += len(keys) - missing
        return vectors

    def put_many(self, entries: Sequence[tuple[bytes, bytes]], *, space: str) -> None:
        """Store vectors by key, all or none, and make room for them.

        Args:
            entries: keys of 32 bytes, and the vectors' bytes.
            space: what made them, for :meth:`stats` and :meth:`clear`.
        """
        if not entries:
            return
        with self._lock:
            if self._connection is not None and self._file_now() != self._file:
                self._close_quietly()  # it was taken away, as another process does with a damaged one
            self._guarded(self._store, entries, space)

    def clear(self, space: str | None = None) -> int:
        """Drop every vector, or those of one space, give the disk space back, and return how many there were.

        Raises:
            VectorCacheError: the database cannot be written.
        """
        removed = self._guarded(self._drop, space)
        if removed is None:
            raise VectorCacheError(f"{self.path} cannot be written: nothing was removed")
        return removed

    def stats(self) -> VectorCacheStats:
        """Return what the database holds, counted now, and this object's hits and misses."""
        entries, used, models = self._guarded(self._count) or (0, 0, {})
        return VectorCacheStats(
            path=self.path,
            mode=self._mode,
            entries=entries,
            bytes=used,
            max_bytes=self.max_bytes,
            models=models,
            hits=self.hits,
            misses=self.misses,
        )

    def close(self) -> None:
        """Write down which vectors were used and close the database. A later use opens it again."""
        with self._lock:
            connection = self._connection
            if connection is not None:
                if self._mode == "read-write" and self._used:
                    with contextlib.suppress(sqlite3.Error), transaction(connection):
                        self._move_used(connection)
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
            self._forget_connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self._close_quietly()

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (str(self.folder), self.max_bytes)

    def __repr__(self) -> str:
        return f"VectorCache({str(self.folder)!r}, max_bytes={self.max_bytes})"

    # What happens inside a connection; each of these may raise sqlite3.Error

    def _look_up(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _LOOKUP_CHUNK):
            chunk = keys[start : start + _LOOKUP_CHUNK] if len(keys) > _LOOKUP_CHUNK else keys
            query = _SELECT_ONE if len(chunk) == 1 else _SELECT.format(",".join("?" * len(chunk)))
            for row, key, checksum, vector in connection.execute(query, chunk):
                if zlib.crc32(vector, zlib.crc32(key)) != checksum:
                    self._damaged.add(row)
                    continue
                found[key] = vector
                if row < self._newest_quarter:
                    self._used.add(row)
        if len(self._used) >= _PENDING_USES and self._mode == "read-write":
            with transaction(connection):
                self._move_used(connection)
        return found

    def _store(self, connection: sqlite3.Connection, entries: Sequence[tuple[bytes, bytes]], space: str) -> None:
        if self._mode != "read-write":
            return
        space_id = self._space_ids.get(space)
        tidy = bool(self._used or self._damaged) or self._grown >= self.max_bytes // 64
        if len(entries) == 1 and space_id is not None and not tidy:
            # One statement is a transaction of its own, and a third of the cost of three.
            key, vector = entries[0]
            self._set_newest(connection.execute(_INSERT, _record(space_id, key, vector)).lastrowid or 0)
            self._grown += len(vector) + _ROW_BYTES
            return
        with transaction(connection):
            self._move_used(connection)
            space_id = self._space_id(connection, space)
            connection.executemany(_INSERT, [_record(space_id, key, vector) for key, vector in entries])
            if tidy:
                self._make_room(connection)
                self._grown = 0
            (newest,) = connection.execute("SELECT max(row) FROM vectors").fetchone()
            self._set_newest(newest or 0)
        self._grown += sum([len(vector) + _ROW_BYTES for _, vector in entries])

    def _move_used(self, connection: sqlite3.Connection) -> None:
        """Make the vectors that were used since the last time the newest. In a transaction."""
        (newest,) = connection.execute("SELECT max(row) FROM vectors").fetchone()
        newest = newest or 0
        if self._damaged:
            connection.executemany("DELETE FROM vectors WHERE row = ?", [(row,) for row in self._damaged])
            self._damaged.clear()
        if self._used:
            used = sorted(self._used)
            moves = [(newest + place, row) for place, row in enumerate(used, 1)]
            connection.executemany("UPDATE vectors SET row = ? WHERE row = ?", moves)
            newest += len(used)
            self._used.clear()
        self._set_newest(newest)

    def _set_newest(self, newest: int) -> None:
        self._newest = newest
        self._newest_quarter = newest - max(0, newest - self._oldest) // 4

    def _space_id(self, connection: sqlite3.Connection, space: str) -> int:
        known = self._space_ids.get(space)
        if known is None:
            connection.execute("INSERT OR IGNORE INTO spaces (name) VALUES (?)", (space,))
            (known,) = connection.execute("SELECT id FROM spaces WHERE name = ?", (space,)).fetchone()
            self._space_ids[space] = known
        return int(known)

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """Drop the oldest vectors until the pages in use are below the limit. In a transaction."""
        while (used := bytes_in_use(connection)) > self.max_bytes:
            (count,) = connection.execute("SELECT count(*) FROM vectors").fetchone()
            if not count:
                break
            excess = 1 - self.max_bytes * 15 / 16 / used
            last = connection.execute(
                "SELECT row FROM vectors ORDER BY row LIMIT 1 OFFSET ?", (min(count - 1, int(count * excess)),)
            ).fetchone()
            connection.execute("DELETE FROM vectors WHERE row <= ?", last)
        (oldest,) = connection.execute("SELECT min(row) FROM vectors").fetchone()
        self._oldest = oldest or 0

    def _drop(self, connection: sqlite3.Connection, space: str | None) -> int | None:
        if self._mode != "read-write":
            return None
        with transaction(connection):
            if space is None:
                removed = connection.execute("DELETE FROM vectors").rowcount
            else:
                of_space = "DELETE FROM vectors WHERE space IN (SELECT id FROM spaces WHERE name = ?)"
                removed = connection.execute(of_space, (space,)).rowcount
        self._forget_rows()
        with contextlib.suppress(sqlite3.Error):  # others may be at work: then the pages are used again instead
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return int(removed)

    def _count(self, connection: sqlite3.Connection) -> tuple[int, int, dict[str, int]]:
        rows = connection.execute(
            "SELECT name, count(*) FROM vectors JOIN spaces ON spaces.id = vectors.space GROUP BY name ORDER BY name"
        ).fetchall()
        models = {str(name): int(count) for name, count in rows}
        return sum(models.values()), bytes_in_use(connection), models

    # Connecting, and what goes wrong

    def _guarded(
        self,
        work: Callable[Concatenate[sqlite3.Connection, Arguments], Returned],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Returned | None:
        """Do ``work`` with the open database and return what it returns; None where the database cannot be used."""
        with self._lock:
            for attempt in (1, 2):
                try:
                    connection = self._connection or self._open()
                    return None if connection is None else work(connection, *arguments, **options)
                except sqlite3.Error as error:
                    self._used.clear()
                    code = _code(error)
                    if attempt == 1 and code in (_CORRUPT, _NOTADB):
                        self._replace_damaged(error)
                    elif attempt == 1 and code == _READONLY:  # the file was moved away, or its folder made read-only
                        self._close_quietly()
                    else:
                        self._warn(f"{self.path}: {error}: vectors are computed and not kept")
                        return None
        return None

    def _open(self) -> sqlite3.Connection | None:
        if self._mode == "off":
            return None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._turn_off(error.strerror or str(error))
            return None
        with folder_lock(self.folder):
            if self.path.exists() and not os.access(self.path, os.W_OK):  # SQLite would only say so at the first store
                self._connection = self._connect_read_only("its file cannot be written")
            else:
                try:
                    self._connection = self._connect()
                    self._mode = "read-write"
                except sqlite3.Error as error:
                    if _code(error) not in (_PERM, _READONLY, _CANTOPEN):
                        raise
                    self._connection = self._connect_read_only(str(error))
        if self._connection is not None:
            self._forget_rows()
            self._file = self._file_now()
            newest, oldest = self._connection.execute("SELECT max(row), min(row) FROM vectors").fetchone()
            self._oldest = oldest or 0
            self._set_newest(newest or 0)
        return self._connection

    def _file_now(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._name)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            # Enough for a killed process; after a power failure the last vectors may be missing, and nothing is damaged.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}").fetchone()
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}").fetchone()
            with transaction(connection):
                if not is_ours(connection, self.path):
                    for statement in SCHEMA:
                        connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_read_only(self, reason: str) -> sqlite3.Connection | None:
        """Open what is there for reading. Where not even the log's index can be made, only a database without a log."""
        for option in ("mode=ro", "immutable=1"):
            log = self.path.with_name(f"{FILE_NAME}-wal")
            with contextlib.suppress(OSError):
                if option == "immutable=1" and log.exists() and log.stat().st_size:
                    continue
            try:
                connection = sqlite3.connect(
                    f"{self.path.as_uri()}?{option}",
                    uri=True,
                    timeout=_BUSY_SECONDS,
                    isolation_level=None,
                    check_same_thread=False,
                )
            except sqlite3.Error:
                continue
            try:
                if is_ours(connection, self.path):
                    self._mode = "read-only"
                    self._warn(f"{self.path} can only be read: new vectors are not kept")
                    return connection
            except sqlite3.Error as error:
                if _code(error) in (_CORRUPT, _NOTADB):
                    connection.close()
                    self._turn_off(f"{error}, and it cannot be replaced")
                    return None
            connection.close()
        self._turn_off(reason)
        return None

    def _replace_damaged(self, error: Exception) -> None:
        """Move a damaged database aside and start anew, unless another process has done so already."""
        self._close_quietly()
        with folder_lock(self.folder):
            if not self._is_damaged():
                return
            aside = self.path.with_name(f"{FILE_NAME}.damaged-{time.time_ns()}")
            for old in self.folder.glob(f"{FILE_NAME}.damaged-*"):  # one is enough to look into
                with contextlib.suppress(OSError):
                    old.unlink()
            try:
                for suffix in ("-wal", "-shm", ""):  # the log first: it must never meet the new database
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
            except OSError as cause:
                self._turn_off(f"{error}, and it cannot be moved: {cause.strerror}")
                return
        self._warn(f"{self.path} was damaged ({error}): it was moved to {aside.name}, and a new one was begun")

    def _is_damaged(self) -> bool:
        try:
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        except sqlite3.Error:
            return True
        try:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            return bool(verdict != "ok")
        except sqlite3.Error as error:
            return _code(error) in (_CORRUPT, _NOTADB)
        finally:
            connection.close()

    def _turn_off(self, reason: str) -> None:
        self._forget_connection()
        self._mode = "off"
        self._warn(f"{self.path} cannot be used ({reason}): vectors are computed and not kept")

    def _warn(self, message: str) -> None:
        """Warn once a message: a cache that fails does so at every call."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, VectorCacheWarning, stacklevel=2)

    def _close_quietly(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._forget_connection()

    def _forget_connection(self) -> None:
        self._connection = None
        if self._mode != "off":
            self._mode = "closed"
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._used: set[int] = set()
        self._damaged: set[int] = set()
        self._space_ids: dict[str, int] = {}
        self._newest = self._oldest = self._newest_quarter = 0
        self._grown = self.max_bytes  # the first store looks at the size


def _record(space_id: int, key: bytes, vector: bytes) -> tuple[bytes, int, int, bytes]:
    return key, space_id, zlib.crc32(vector, zlib.crc32(key)), vector


def _code(error: Exception) -> int:
    """SQLite's primary result code of an error, or 0."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _remake(folder: str, max_bytes: int) -> VectorCache:
    return VectorCache(folder, max_bytes=max_bytes)


_held: list[VectorCache] = []


def _before_fork() -> None:
    """Close every connection, and keep every lock so that none is opened meanwhile."""
    for cache in list(_live_caches):
        cache._lock.acquire()
        _held.append(cache)
        cache.close()


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
