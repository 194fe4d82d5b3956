"""Journals: each process stores new vectors without a system call, for the database.

A store is a copy into mapped memory, as durable as a file's content when the call returns. A process that is killed
at any moment loses nothing. After a power failure the last records may be missing, and a damaged one is detected by
its checksum. Its owner answers from it at once, others from their next look-up on. Now and then a journal's records
are moved into the database in one transaction. After a kill before the journal is marked, they are moved once more,
which changes nothing. The journal of a process that is gone is moved by the next that opens the folder.

The folder's lock is held to move records, and to make, restart or remove a journal. The owner of a journal holds the
lock on its file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lattice_inference.vector_cache._journal import HEADER_BYTES, MOVED_OFFSET, MappedJournal, read_records
from lattice_inference.vector_cache.schema import folder_lock

if sys.platform != "win32":
    import fcntl  # here, since the last cache may be closed when Python imports nothing any more

__all__ = ["Journal", "OtherJournals", "Record", "WrittenRecords", "discard", "unmoved"]

BOARD_NAME = "vectors.board"
JOURNAL_PREFIX = "vectors.journal-"

_MOST_BYTES = 2**20  # some hundreds of vectors a transaction
_LEAST_BYTES = 2**15
_SHARE_OF_LIMIT = 8
_MAGIC = b"LVJRNL1\0"
_BOARD_MAGIC = b"LVBORD1\0"
_BOARD_BYTES = 4096
_HEADER = struct.Struct("8sQQQ")
_MADV_POPULATE_WRITE = 23  # Linux 5.14: pages are made writable now, not one by one in the middle of stores


Record = tuple[bytes, bytes, str]
"""What a journal keeps of a vector: its key, its bytes, and what made it."""


@dataclass
class WrittenRecords:
    """What a journal's file holds.

    Attributes:
        descriptor: the open file.
        generation: which beginning of the journal this is.
        end: where its records end.
        moved: where those end that are in the database.
    """

    descriptor: int
    generation: int
    end: int
    moved: int

    @classmethod
    def of(cls, descriptor: int) -> Self | None:
        """Read the head of a file; None if it is no journal."""
        head = os.pread(descriptor, HEADER_BYTES, 0)
        if len(head) < HEADER_BYTES:
            return None
        magic, generation, end, moved = _HEADER.unpack_from(head)
        if magic != _MAGIC or not HEADER_BYTES <= moved <= end <= os.fstat(descriptor).st_size:
            return None
        return cls(descriptor, generation, end, moved)

    def read(self, start: int) -> list[Record]:
        """Return the records from a place on, up to the first invalid one.

        Damaged ones are left out.
        """
        return read_records(os.pread(self.descriptor, min(self.end - start, _MOST_BYTES), start))

    def say_moved(self) -> None:
        """Write down that all these records are in the database."""
        os.pwrite(self.descriptor, struct.pack("Q", self.end), MOVED_OFFSET)


class OtherJournals:
    """The journals of other processes, as far as they were read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[int, int, dict[bytes, bytes]]] = {}

    def read(self, own: str | None = None, *, anew: bool = False) -> dict[bytes, bytes]:
        """Read new records, and return all vectors by key.

        With ``anew``, forget what was read before. Those that have been moved since stay in what is returned until
        their journal begins anew: by then they are in the database.
        """
        before = {} if anew else self._read
        self._read = {}
        for name in _journal_names(self._folder):
            if name == own:
                continue
            with contextlib.suppress(OSError):
                descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    written = WrittenRecords.of(descriptor)
                    if written is None:
                        continue
                    generation, start, vectors = before.get(name, (0, 0, {}))
                    if generation != written.generation or start > written.end:
                        start, vectors = written.moved, {}
                    vectors |= {key: vector for key, vector, _ in written.read(start)}
                    self._read[name] = written.generation, written.end, vectors
                finally:
                    os.close(descriptor)
        if len(self._read) == 1:
            ((_, _, only),) = self._read.values()
            return only
        return {key: vector for _, _, vectors in self._read.values() for key, vector in vectors.items()}


class Journal:
    """This process's journal. Made and closed under the folder's lock; not thread-safe.

    Attributes:
        mapped: its memory, which answers and stores.
        name: its file's name; None where no file could be made, and nothing can be stored.
        others: the journals of other processes.
        capacity: bytes of records that it holds.
    """

    def __init__(self, folder: Path, *, mode: int, max_bytes: int) -> None:
        """Take the first ownerless journal. Its old records must have been moved.

        Raises:
            OSError: nothing can be mapped, or the disk is full.
        """
        self._folder = folder
        self._descriptor = -1
        self.name: str | None = None
        board = _map_board(folder / BOARD_NAME, mode)
        memory = mmap.mmap(-1, HEADER_BYTES)
        with contextlib.suppress(OSError):
            memory = self._take_file(mode, min(_MOST_BYTES, max(_LEAST_BYTES, max_bytes // _SHARE_OF_LIMIT)))
        self.capacity: int = len(memory) - HEADER_BYTES
        self.mapped: MappedJournal = MappedJournal(board, memory)
        self.mapped.begin(time.time_ns(), HEADER_BYTES)
        self.mapped.see()
        self.mapped.tell()
        self.others: OtherJournals = OtherJournals(folder)

    def _take_file(self, mode: int, size: int) -> mmap.mmap:
        for number in range(10_000):
            name = f"{JOURNAL_PREFIX}{number}"
            descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                written = WrittenRecords.of(descriptor)
                if not _lock(descriptor) or (written is not None and written.moved < written.end):
                    os.close(descriptor)
                    continue
                # Written and not only made longer: mapped memory that the disk has no room for would end the process.
                content = _HEADER.pack(_MAGIC, 0, HEADER_BYTES, HEADER_BYTES).ljust(size, b"\0")
                if os.pwrite(descriptor, content, 0) != size:
                    raise OSError("the disk has no room for a journal")
                os.ftruncate(descriptor, size)
                os.fchmod(descriptor, mode)
                memory = mmap.mmap(descriptor, size)
            except BaseException:
                os.close(descriptor)
                raise
            with contextlib.suppress(OSError, ValueError):
                memory.madvise(_MADV_POPULATE_WRITE)
            self._descriptor, self.name = descriptor, name
            return memory
        raise OSError("there are too many journals")

    def written(self) -> WrittenRecords | None:
        """Return the content of the journal's file.

        None without a file, and if it is no journal any more.
        """
        return None if self.name is None else WrittenRecords.of(self._descriptor)

    def close(self, *, remove: bool) -> None:
        """Give the journal up, and remove its file if all of it is in the database."""
        self.mapped.stop()
        if self.name is None:
            return
        with contextlib.suppress(OSError):
            written = self.written()
            path = self._folder / self.name
            if (
                remove
                and written is not None
                and written.moved == written.end
                and os.path.samestat(os.stat(path), os.fstat(self._descriptor))
            ):
                path.unlink()
        self.mapped.tell()
        _unlock(self._descriptor)  # a child may have the file open
        os.close(self._descriptor)
        self.name = None


@contextlib.contextmanager
def unmoved(folder: Path, *, abandoned_only: bool) -> Iterator[list[WrittenRecords]]:
    """Open the folder's journals that hold something to be moved: all, or only ownerless ones.

    Ownerless ones are removed afterwards, if they say that all is moved. Under the folder's lock.
    """
    opened: list[tuple[Path, WrittenRecords, bool]] = []
    try:
        for name in _journal_names(folder):
            with contextlib.suppress(OSError):
                descriptor = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC)
                abandoned = _lock(descriptor)
                written = WrittenRecords.of(descriptor)
                if written is None or not (abandoned or (not abandoned_only and written.moved < written.end)):
                    if written is None and abandoned:  # damaged: nothing in it can be found any more
                        os.unlink(folder / name)
                    os.close(descriptor)
                    continue
                opened.append((folder / name, written, abandoned))
        yield [written for _, written, _ in opened if written.moved < written.end]
    finally:
        for path, written, abandoned in opened:
            with contextlib.suppress(OSError):
                if abandoned and (now := WrittenRecords.of(written.descriptor)) and now.moved == now.end:
                    path.unlink()
            os.close(written.descriptor)


def discard(folder: Path) -> None:
    """Do as if everything in the journals of a folder had been moved."""
    with folder_lock(folder) as locked:
        if locked:
            with unmoved(folder, abandoned_only=False) as journals:
                for journal in journals:
                    journal.say_moved()


def _journal_names(folder: Path) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(JOURNAL_PREFIX))


def _map_board(path: Path, mode: int) -> mmap.mmap:
    """Map the counters that all processes share, made if they are missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        head = os.pread(descriptor, len(_BOARD_MAGIC), 0)
        if head != _BOARD_MAGIC or os.fstat(descriptor).st_size != _BOARD_BYTES:
            os.pwrite(descriptor, _BOARD_MAGIC.ljust(_BOARD_BYTES, b"\0"), 0)
            os.ftruncate(descriptor, _BOARD_BYTES)
            os.fchmod(descriptor, mode)
        return mmap.mmap(descriptor, _BOARD_BYTES)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take a file's lock, which goes with the process; False if somebody has it."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_UN)
