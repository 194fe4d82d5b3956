"""The database of vectors: one SQLite file shared by processes, and their journals.

What it promises:

* When :meth:`VectorCache.put_many` returns, its vectors are recorded. A process that is killed at any moment loses none and
  leaves no partial one. Nearly all go to a journal first (``journal.py``), then into the database, many in one transaction.
* A fault of the database does not fail the caller. A full disk, a read-only folder or a damaged file causes a warning and
  looks like an empty cache.
* The least recently used vectors go first. The number of a row orders the rows by last use. A used vector moves to the end
  of the table, unless it is in the newest quarter. Old rows lie together, so that dropping them frees whole pages.
* Looking up an unknown key costs no system call: a filter knows which keys the database may hold. It is made when vain
  look-ups have cost as much as making it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from zlib import crc32

from lattice_inference.argument_checks import check_count
from lattice_inference.errors import VectorCacheError
from lattice_inference.vector_cache._journal import MappedJournal, record_bytes
from lattice_inference.vector_cache.call_checks import check_space, checked_entries, checked_folder, checked_keys
from lattice_inference.vector_cache.connecting import (
    CANNOT_OPEN,
    CORRUPT,
    FAILURES,
    MOST_ROW,
    NO_PERMISSION,
    NOT_A_DATABASE,
    READ_ONLY,
    connect,
    connect_read_only,
    is_damaged,
    result_code,
)
from lattice_inference.vector_cache.database_keys import DatabaseKeys
from lattice_inference.vector_cache.default_folder import default_cache_folder
from lattice_inference.vector_cache.forks import close_at_forks
from lattice_inference.vector_cache.journal import Journal, OtherJournals, Record, WrittenRecords, discard, unmoved
from lattice_inference.vector_cache.schema import bytes_in_use, folder_lock, make_room, transaction
from lattice_inference.vector_cache.stats import Mode, VectorCacheStats, VectorCacheWarning
from lattice_inference.vector_cache.wal_checkpoints import WalCheckpoints

__all__ = [
    "DEFAULT_MAX_BYTES",
    "VectorCache",
    "VectorCacheStats",
    "VectorCacheWarning",
]

DEFAULT_MAX_BYTES = 2**30
"""Size that the database may grow to: about 600,000 vectors of 384 dimensions."""

LEAST_MAX_BYTES = 2**18

FILE_NAME = "vectors.sqlite3"

_SELECT = "SELECT row, key, checksum, vector FROM vectors WHERE key IN ({})"
_SELECT_ONE = "SELECT row, checksum, vector FROM vectors WHERE key = ?"

_INSERT = "INSERT OR REPLACE INTO vectors (key, space, checksum, vector) VALUES (?, ?, ?, ?)"  # SQLite numbers the row

_LOOKUP_CHUNK = 256
_PENDING_USES = 256
_ROW_BYTES = 112  # what a row takes besides its vector, its place in the index included
_LOOK_MILLISECONDS = 200  # how long a file that was taken away may go unnoticed

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


class VectorCache:
    """Vectors on disk by key. Any number of threads and processes may use one folder at once.

    Made by a caller and given to :func:`lattice_inference.load_encoder`, for one encoder or several. The database is opened
    by the first use and, after ``os.fork()``, once more in parent and child. A context manager; pickling keeps the folder
    and the limit.

    Args:
        folder: where the database is, made if it is missing; by default :func:`default_cache_folder`.
        max_bytes: size that the database may grow to; the least recently used vectors go first.

    Attributes:
        mapped: the journal's memory, where look-ups and stores begin; None while there is none. It answers for nothing once
            another has taken its place.

    Raises:
        InvalidInputError: ``max_bytes`` is no int from 262,144 to 2^63 - 1, or ``folder`` is no path.

    >>> import tempfile
    >>> from lattice_inference import load_encoder
    >>> with tempfile.TemporaryDirectory() as folder, VectorCache(folder) as cache:
    ...     with load_encoder("all-minilm-l6-v2", cache=cache) as encoder:
    ...         _ = encoder.encode(["A cat sleeps.", "A kitten naps."])
    ...     cache.stats().entries
    2
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        max_bytes = check_count("max_bytes", max_bytes, least=LEAST_MAX_BYTES, most=2**63 - 1)
        chosen = default_cache_folder() if folder is None else checked_folder(folder)
        self.folder: Path = Path(os.path.abspath(chosen))  # a later chdir must not move it
        self.path: Path = self.folder / FILE_NAME
        self._name = str(self.path)  # looked at by every store
        self.max_bytes = max_bytes
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._journal: Journal | None = None
        self.mapped: MappedJournal | None = None
        self._database_keys: DatabaseKeys | None = None
        self._checkpoints = WalCheckpoints(self.path)
        self._others = OtherJournals(self.folder)
        self._kept: dict[bytes, bytes] = {}  # of this process's journal, when its memory has been told to forget
        self._file: tuple[int, int] | None = None
        self._grown: int = 0
        self._mode: Mode = "closed"
        self._forget_connection()
        self._warned: set[str] = set()
        self._hits = 0
        self._misses = 0
        close_at_forks(self, self._lock)

    # Use

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return each key's vector as bytes, or None if it is missing or fails its checksum."""
        keys = checked_keys(keys)
        mapped = self.mapped
        vectors = None if mapped is None else mapped.find(keys)
        return self.look_up(keys) if vectors is None else vectors

    def look_up(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Do :meth:`get_many` for keys that the journal's memory has no answer for."""
        keys = checked_keys(keys)
        with self._lock:
            mapped = self.mapped
            if mapped is not None and mapped.is_due():  # often nothing else is the matter
                self._look_around()
                vectors = None if self.mapped is None else self.mapped.find(keys)
                if vectors is not None:
                    return vectors
            elif mapped is None or not mapped.is_current():
                self._look_around()
            vectors = self._guarded(self._look_up, keys) or [None] * len(keys)
            missing = vectors.count(None)
            self._misses += missing
            self._hits += len(keys) - missing
        return vectors

    @property
    def hits(self) -> int:
        """Keys that were looked up and found, since this object was made."""
        return self._hits if self.mapped is None else self._hits + self.mapped.hits

    @property
    def misses(self) -> int:
        """Keys that were looked up in vain, since this object was made."""
        return self._misses if self.mapped is None else self._misses + self.mapped.misses

    def put_many(self, entries: Sequence[tuple[bytes, bytes]], *, space: str) -> None:
        """Store vectors by key, all or none, and make room for them.

        Args:
            entries: keys of 32 bytes, and the vectors' bytes.
            space: what made them, for :meth:`stats` and :meth:`clear`.

        Raises InvalidInputError for an entry that is no pair of bytes, or no text as ``space``.
        """
        entries = checked_entries(entries)
        check_space(space)
        if not entries:
            return
        mapped = self.mapped
        if mapped is None or not mapped.append(entries, space.encode()):
            with self._lock:
                self._look_around()
                self._guarded(self._store, entries, space)

    def clear(self, space: str | None = None) -> int:
        """Drop all vectors, or one space's, give back the disk space, and return their number.

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
        """Save the journal and the vectors' last use, and close; a later use opens it again."""
        with self._lock:
            connection = self._connection
            if connection is not None and self._mode == "read-write":
                with contextlib.suppress(*FAILURES):
                    self._move_journals(connection)
                    if self._used:
                        with transaction(connection):
                            self._move_used(connection)
                if self._journal is not None:
                    with folder_lock(self.folder) as locked:
                        self._journal.close(remove=locked)
            self._close_quietly()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self._close_quietly()  # the journal stays: who opens the folder next moves it

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (str(self.folder), self.max_bytes)

    def __repr__(self) -> str:
        return f"VectorCache({str(self.folder)!r}, max_bytes={self.max_bytes})"

    # What happens inside a connection; each of these may raise sqlite3.Error

    def _look_up(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> list[bytes | None]:
        vectors: list[Any]  # True for what the database is to be asked
        if self.mapped is None:
            others = self._others.read()
            vectors = [others.get(key, True) for key in keys]
        else:
            self._catch_up(connection, self.mapped)
            vectors = self.mapped.find(keys, ask=True) or []
        if vectors == [True]:  # one text: what would be made for many takes as long as SQLite does
            vectors = [self._select_one(connection, keys[0])]
            in_vain = vectors.count(None)
        else:
            asked = [key for key, vector in zip(keys, vectors, strict=True) if vector is True]
            found = self._select(connection, asked)
            in_vain = len(asked) - len(found)
            vectors = [found.get(key) if vector is True else vector for key, vector in zip(keys, vectors, strict=True)]
        if len(self._used) >= _PENDING_USES and self._mode == "read-write":
            with transaction(connection):
                self._move_used(connection)
        if in_vain and self._database_keys is not None:
            self._database_keys.asked_in_vain(connection, in_vain, self._newest - self._oldest)
        return vectors

    def _select(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _LOOKUP_CHUNK):
            chunk = keys[start : start + _LOOKUP_CHUNK]
            for row, key, checksum, vector in connection.execute(_SELECT.format(",".join("?" * len(chunk))), chunk):
                if self._is_sound(row, key, checksum, vector):
                    found[key] = vector
        return found

    def _select_one(self, connection: sqlite3.Connection, key: bytes) -> bytes | None:
        row = connection.execute(_SELECT_ONE, (key,)).fetchone()
        return row[2] if row is not None and self._is_sound(row[0], key, row[1], row[2]) else None

    def _is_sound(self, row: int, key: object, checksum: object, vector: object) -> bool:
        """Whether a row is as it was written; take note that it was used, or is to go."""
        if not (isinstance(key, bytes) and isinstance(vector, bytes)) or crc32(vector, crc32(key)) != checksum:
            self._damaged.add(row)
            return False
        if row < self._newest_quarter:
            self._used.add(row)
        return True

    def _catch_up(self, connection: sqlite3.Connection, mapped: MappedJournal) -> None:
        """Take in what other processes have changed since the last time."""
        if mapped.is_current() or self._journal is None or self._database_keys is None:
            return
        taken_away = mapped.see()
        if taken_away:
            self._database_keys.forget()
            mapped.forget_own()
            self._forget_rows()
            written = self._journal.written()
            kept = () if written is None else written.read(written.moved)
            self._kept = {key: vector for key, vector, _ in kept}
        others = self._others.read(self._journal.name, anew=taken_away)
        mapped.answer_from(others | self._kept if self._kept else others)
        self._database_keys.catch_up(connection)

    def _store(self, connection: sqlite3.Connection, entries: Sequence[tuple[bytes, bytes]], space: str) -> None:
        if self._mode != "read-write":
            return
        mapped, name = self.mapped, space.encode()
        if mapped is not None and self._journal is not None:
            if mapped.append(entries, name, answering=False):
                return
            self._move_journals(connection)
            size = sum([record_bytes(len(vector), len(name)) for _, vector in entries])
            if size <= self._journal.capacity and mapped.append(entries, name, answering=False):
                return
        self._insert(connection, [(key, vector, space) for key, vector in entries])

    def _insert(self, connection: sqlite3.Connection, records: Sequence[Record]) -> None:
        """Write records into the database, all or none."""
        taken_away = bool(self._damaged)
        with transaction(connection):
            self._move_used(connection)
            before = self._newest
            spaces = {space: self._space_id(connection, space) for space in {space for _, _, space in records}}
            rows = [(key, spaces[space], crc32(vector, crc32(key)), vector) for key, vector, space in records]
            connection.executemany(_INSERT, rows)
            size = sum([len(vector) + _ROW_BYTES for _, vector, _ in records])
            self._grown += size
            if self._grown >= self.max_bytes // 64:
                self._oldest = make_room(connection, self.max_bytes)
                self._grown = 0
            (newest,) = connection.execute("SELECT max(row) FROM vectors").fetchone()
            self._set_newest(newest or 0)
        self._checkpoints.written(size)
        if self.mapped is not None and self._database_keys is not None:
            self._database_keys.added([key for key, _, _ in records], after=before, newest=self._newest)
            self.mapped.tell(taken_away)

    def _move_journals(self, connection: sqlite3.Connection, *, everybodys: bool = False) -> None:
        """Move this process's journal, or all, into the database, and begin a new one."""
        journal = self._journal
        if journal is None:
            return
        with folder_lock(self.folder) as locked:
            if not locked:
                return
            if everybodys:
                with unmoved(self.folder, abandoned_only=False) as journals:
                    self._move(connection, journals)
            while (written := journal.written()) is not None:
                if written.moved < written.end:
                    self._move(connection, [written])
                if journal.mapped.begin(time.time_ns(), written.end):  # no other thread has stored anything since
                    break
            self._kept = {}

    def _move(self, connection: sqlite3.Connection, journals: Sequence[WrittenRecords]) -> None:
        if records := [record for journal in journals for record in journal.read(journal.moved)]:
            self._insert(connection, records)
        for journal in journals:
            journal.say_moved()

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

    def _drop(self, connection: sqlite3.Connection, space: str | None) -> int | None:
        if self._mode != "read-write":
            return None
        try:
            self._move_journals(connection, everybodys=True)
        except (sqlite3.OperationalError, OSError):
            if space is not None:
                raise
            discard(self.folder)  # the disk is full, and they would go the next moment
        with transaction(connection):
            if space is None:
                removed = connection.execute("DELETE FROM vectors").rowcount
            else:
                of_space = "DELETE FROM vectors WHERE space IN (SELECT id FROM spaces WHERE name = ?)"
                removed = connection.execute(of_space, (space,)).rowcount
        self._forget_rows()
        self._checkpoints.wait()
        if self.mapped is not None:
            self.mapped.tell(True)  # the next look-up forgets what was known, as everybody's does
        with contextlib.suppress(sqlite3.Error):  # others may be at work: then the pages are used again instead
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return int(removed)

    def _count(self, connection: sqlite3.Connection) -> tuple[int, int, dict[str, int]]:
        with contextlib.suppress(sqlite3.OperationalError, OSError):  # the disk is full
            self._move_journals(connection, everybodys=True)
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
        """Return the result of ``work`` with the open database, or None if it is unusable."""
        with self._lock:
            for attempt in (1, 2):
                try:
                    connection = self._connection or self._open()
                    return None if connection is None else work(connection, *arguments, **options)
                except FAILURES as error:
                    self._used.clear()
                    self._space_ids.clear()  # what was rolled back may have had its name's number
                    code = result_code(error)
                    if attempt == 1 and code in (CORRUPT, NOT_A_DATABASE):
                        self._replace_damaged(error)
                    elif attempt == 1 and code == READ_ONLY:  # the file was moved away, or its folder made read-only
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
                    self._connection = connect(self.path)
                    self._mode = "read-write"
                except FAILURES as error:
                    if result_code(error) not in (NO_PERMISSION, READ_ONLY, CANNOT_OPEN):
                        raise
                    self._connection = self._connect_read_only(str(error))
        if self._connection is not None:
            self._forget_rows()
            self._file = self._file_now()
            newest, oldest = self._connection.execute("SELECT max(row), min(row) FROM vectors").fetchone()
            if newest is not None and newest > MOST_ROW:
                raise OverflowError(f"a vector has the number {newest}")
            self._oldest = oldest or 0
            self._set_newest(newest or 0)
            if self._mode == "read-write":
                self._open_journal(self._connection)
        return self._connection

    def _open_journal(self, connection: sqlite3.Connection) -> None:
        """Move what killed processes have left in their journals, and begin a new one."""
        with folder_lock(self.folder) as locked, contextlib.suppress(OSError):
            if not locked:
                return
            with contextlib.suppress(*FAILURES), unmoved(self.folder, abandoned_only=True) as journals:
                self._move(connection, journals)
            mode = stat.S_IMODE(os.stat(self._name).st_mode)  # as SQLite does with its own files beside the database
            self._journal = Journal(self.folder, mode=mode, max_bytes=self.max_bytes)
            self._others = self._journal.others
            self.mapped = self._journal.mapped
            self._database_keys = DatabaseKeys(self.mapped)
            self.mapped.answer_from(self._others.read(self._journal.name))
            self.mapped.look_in(_LOOK_MILLISECONDS)

    def _look_around(self) -> None:
        """Close the database if another process has removed its file, as it does with a damaged one."""
        if self._connection is None:
            return
        if self.mapped is not None and self.mapped.is_current() and not self.mapped.is_due():
            return
        if self._file_now() != self._file:
            self._close_quietly()
        elif self.mapped is not None:
            self.mapped.look_in(_LOOK_MILLISECONDS)

    def _file_now(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._name)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _connect_read_only(self, reason: str) -> sqlite3.Connection | None:
        try:
            connection = connect_read_only(self.path)
        except FAILURES as error:
            self._turn_off(f"{error}, and it cannot be replaced")
            return None
        if connection is None:
            self._turn_off(reason)
        else:
            self._mode = "read-only"
            self._warn(f"{self.path} can only be read: new vectors are not kept")
        return connection

    def _replace_damaged(self, error: Exception) -> None:
        """Move a damaged database aside and start anew, unless another process has done so already."""
        mapped = self.mapped
        self._close_quietly()
        with folder_lock(self.folder):
            if not is_damaged(self.path):
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
        if mapped is not None:
            mapped.tell(True)
        self._warn(f"{self.path} was damaged ({error}): it was moved to {aside.name}, and a new one was begun")

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
        """Close all as it is; the next process to open the folder moves the journal's records."""
        self._checkpoints.wait()
        if self._journal is not None:
            self._journal.close(remove=False)
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._forget_connection()

    def _forget_connection(self) -> None:
        self._connection = None
        if self.mapped is not None:
            self.mapped.stop()
            self._hits += self.mapped.hits
            self._misses += self.mapped.misses
        self._journal = None
        self.mapped = None
        self._others = OtherJournals(self.folder)
        self._database_keys = None
        self._kept = {}
        if self._mode != "off":
            self._mode = "closed"
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._used: set[int] = set()
        self._damaged: set[int] = set()
        self._space_ids: dict[str, int] = {}
        self._newest = self._oldest = self._newest_quarter = 0
        self._grown = self.max_bytes  # the first store looks at the size


def _remake(folder: str, max_bytes: int) -> VectorCache:
    return VectorCache(folder, max_bytes=max_bytes)
