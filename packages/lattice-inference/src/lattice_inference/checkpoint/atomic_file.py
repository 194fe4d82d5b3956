"""Atomic files and folders: complete or absent, even if the process or machine dies.

An unfinished file lies beside its place under another name, locked by its writer. The system releases a killed
process's locks. So the next writer into a folder can tell what dead writers have left there, and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from lattice_inference.errors import LatticeError, WriteError

if sys.platform != "win32":
    import fcntl

__all__ = [
    "atomic_directory",
    "atomic_file",
    "check_replaceable",
    "remove_leftovers",
    "sync_folder",
    "temporary_beside",
]

SUFFIX = ".lattice-tmp"
COMPANIONS = ("-wal", "-shm", "-journal")
"""Ends of the names of files that SQLite keeps beside one."""

MOST_NAME_BYTES = 255
"""The longest name of a file that usual file systems have."""

_RANDOM_BYTES = 8
_NAME = re.compile(rf"(\..*\.[0-9a-f]{{{2 * _RANDOM_BYTES}}}{re.escape(SUFFIX)})({'|'.join(COMPANIONS)})?", re.DOTALL)
_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o666, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` when the block ends.

    It is flushed to disk before. A failure leaves no trace.

    Args:
        path: the file.
        mode: permissions of the file, less what the umask takes away.
        sync: force the folder's entry to the disk, too; a caller that writes several files may do so once, after them.

    Raises:
        WriteError: it cannot be written; ``path`` is what it was, or, if only the folder could not be forced to the disk,
            the new file.
    """
    path = Path(path)
    with _reporting(path):
        check_replaceable(path)
        remove_leftovers(path.parent)
        temporary, descriptor = _new_file(path, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if sys.platform == "win32":
                    file.close()
                os.replace(temporary, path)  # still open, and so still locked
        except BaseException:
            _discard(temporary)
            raise
        if sync:
            sync_folder(path.parent)


@contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """Make an empty file beside ``path`` for a library that writes by name.

    It is removed at the end, if still there.

    Raises:
        WriteError: it cannot be made.
    """
    with _reporting(path):
        remove_leftovers(path.parent)
        temporary, descriptor = _new_file(path, 0o666)
    try:
        yield temporary
    finally:
        _discard(temporary)
        os.close(descriptor)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Make a new folder that replaces ``path`` when the block ends.

    All of it is flushed to disk before. A folder that was there goes in the same step; on Linux no process, and no
    kill, ever finds neither of the two.

    Raises:
        WriteError: it cannot be written; ``path`` is what it was.
    """
    with _reporting(path):
        check_replaceable(path)
        aside = path.with_name(_short(f".{path.name}.lattice-old"))
        _restore(aside, path)
        remove_leftovers(path.parent)
        work, descriptor = _new_directory(path)
        try:
            yield work
            _sync_tree(work)
            if not os.path.lexists(path):
                os.rename(work, path)
            elif not _exchange(work, path):
                os.rename(path, aside)
                os.rename(work, path)
        except BaseException:
            _restore(aside, path)
            shutil.rmtree(work, ignore_errors=True)
            raise
        finally:
            os.close(descriptor)
        sync_folder(path.parent)
        for old in (work, aside):
            shutil.rmtree(old, ignore_errors=True)


def check_replaceable(path: Path) -> None:
    """Refuse to put a file in the place of a device, such as /dev/null, or of a pipe or socket.

    The administrator could: a rename would leave a plain file there, for all programs.

    Raises:
        PermissionError: it is one, or a link to an open file, such as /dev/stdout.
    """
    try:
        mode = os.stat(path).st_mode
        is_open_file = os.path.islink(path) and os.readlink(path).startswith("/proc/")
    except OSError:
        return
    if is_open_file or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise PermissionError(errno.EPERM, "it is a device, pipe or socket, which no file may replace", str(path))


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk.

    Until then a power loss may undo a rename.
    """
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | _OPEN)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that dead writers left in a folder.

    What cannot be removed, or may be a live writer's, stays.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if not name.endswith((SUFFIX, *COMPANIONS)) or not (found := _NAME.fullmatch(name)):
            continue
        with contextlib.suppress(OSError):
            if found[2] is None:
                _remove_if_dead(folder / name)
            elif not os.path.lexists(folder / found[1]):
                os.unlink(folder / name)


def _remove_if_dead(path: Path) -> None:
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | _OPEN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _discard(path)
    finally:
        os.close(descriptor)


def _new_file(path: Path, mode: int) -> tuple[Path, int]:
    while True:
        temporary = _temporary_name(path)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, mode)
        if _is_locked(descriptor):
            return temporary, descriptor
        os.close(descriptor)


def _new_directory(path: Path) -> tuple[Path, int]:
    while True:
        work = _temporary_name(path)
        os.mkdir(work)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(work, os.O_RDONLY | _OPEN)
            if _is_locked(descriptor):
                return work, descriptor
            os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Lock a new file.

    Returns False if another process removed it first, as a dead writer's. On a file system without locks it stays
    unlocked, and cannot be told from a live writer's: it is never removed.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return os.fstat(descriptor).st_nlink > 0


def _temporary_name(path: Path) -> Path:
    end = f".{os.urandom(_RANDOM_BYTES).hex()}{SUFFIX}"
    return path.with_name(_short(f".{path.name}", MOST_NAME_BYTES - len(end) - max(map(len, COMPANIONS))) + end)


def _short(name: str, most: int = MOST_NAME_BYTES) -> str:
    """Return a name itself, or, where it is too long for a file system, a digest of it."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= most else f".{blake2b(encoded, digest_size=16).hexdigest()}"


def _discard(path: Path) -> None:
    """Remove a file or folder, and SQLite's files beside it, as far as possible."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    for end in COMPANIONS:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}{end}")


def _restore(aside: Path, path: Path) -> None:
    """Undo, or finish, a replacement in two steps that ended between them."""
    if os.path.lexists(aside):
        if os.path.lexists(path):
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, path)


def _sync_tree(folder: Path) -> None:
    for where, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(os.path.join(where, name), os.O_RDONLY | _OPEN)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(where))


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two entries of a folder in one step.

    Returns False if the system has no such step.
    """
    import ctypes

    at_current_folder, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(renameat2(at_current_folder, os.fsencode(first), at_current_folder, os.fsencode(second), exchange) == 0)


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Turn the system's errors into those of this package."""
    try:
        yield
    except (OSError, ValueError) as error:
        nameless = (
            "\0" in str(path) or not path.name
        )  # what Python reports as a ValueError: it is no fault of the caller's
        if isinstance(error, LatticeError) or (isinstance(error, ValueError) and not nameless):
            raise
        raise WriteError.of(path, error) from error
