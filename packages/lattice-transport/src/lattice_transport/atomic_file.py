"""Files that are whole or not there, and the removal of what killed writers left."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from lattice_transport.errors import InvalidInputError, shown

__all__ = ["as_path", "check_writable", "write_atomically"]

_MOST_PREFIX = 60  # characters of the name that a temporary file shows


def as_path(path: object) -> str:
    """Return the name of a file, or raise InvalidInputError for what is none."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidInputError(f"the name of a file must be text or a path, not {shown(path)}")
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidInputError(f"{shown(name)} is no name of a file")
    return name


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], None]) -> None:
    """Write a file atomically.

    ``write`` gets a temporary file beside ``path``, which is flushed to disk and renamed. Then the folder is flushed,
    so that a power cut cannot undo the rename. A writer holds a lock on its temporary file. An unlocked temporary file
    for this path was left by a dead process, and is removed.

    Raises:
        OSError: it cannot be written; the message names ``path``. If only the folder could not be flushed, the new file
            is there.
    """
    target = Path(os.fspath(path))
    _remove_leftovers(target)
    with _named(target):
        handle, temporary = _locked_file(target)
    try:
        with _named(target), os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)  # while it is locked
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with _named(target):
        folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OSError if no file can be written at ``path``.

    A temporary file is made beside it and removed.
    """
    target = Path(os.fspath(path))
    with _named(target):
        handle, temporary = _locked_file(target)
        os.unlink(temporary)
        os.close(handle)


@contextlib.contextmanager
def _named(target: Path) -> Iterator[None]:
    """Let errors name the caller's file, not the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(target)) from None


def _check_replaceable(target: Path) -> None:
    """Refuse to put a file in the place of a device, such as /dev/null, or of a pipe or socket.

    The administrator could: a rename would leave a plain file there, for all programs.

    Raises:
        PermissionError: it is one, or a link to an open file, such as /dev/stdout.
    """
    try:
        mode = os.stat(target).st_mode
        is_open_file = os.path.islink(target) and os.readlink(target).startswith("/proc/")
    except (OSError, ValueError):
        return
    if is_open_file or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise PermissionError(errno.EPERM, "it is a device, pipe or socket, which no file may replace", str(target))


def _prefix(target: Path) -> str:
    return f".{target.name[:_MOST_PREFIX]}."


def _locked_file(target: Path) -> tuple[int, str]:
    _check_replaceable(target)
    while True:
        temporary = os.path.join(target.parent, f"{_prefix(target)}{secrets.token_hex(6)}.tmp")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink > 0:
            return handle, temporary
        os.close(handle)  # another writer took it for a leftover before it was locked


def _remove_leftovers(target: Path) -> None:
    pattern = os.path.join(glob.escape(str(target.parent)), f"{glob.escape(_prefix(target))}*.tmp")
    for name in glob.glob(pattern, include_hidden=True):
        with contextlib.suppress(OSError):
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name)
            finally:
                os.close(handle)
