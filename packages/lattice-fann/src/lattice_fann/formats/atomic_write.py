"""Writes a file whole or not at all.

The content goes to a temporary file beside the target, which is moved into place at the end. A writer that is killed
leaves its temporary file. The name tells whose it is, ``.<target>.<process id>-<random>.tmp``, and each writer locks its
file while it writes. The next writer of the same target removes the files whose process is dead and whose lock is free.
The lock is for writers on another machine or in another container that share the folder: process ids say nothing about
them. Where a file system has no locks, leftovers stay.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["atomic_write", "check_writable", "remove_leftovers"]

_LONGEST_PREFIX = 180  # bytes of the target's name in the temporary one: most file systems allow 255 in all
_ATTEMPTS = 100
_WRITING: set[str] = set()  # temporary names in use by this process: its id may have been a dead writer's before


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write a temporary file; flush and rename it to ``path`` when the block succeeds.

    The folder's entry is forced to the disk, too: else a power cut could undo the rename.

    Raises:
        OSError: it cannot be written. Nothing is left over. If only the folder could not be forced to the disk, the new
            file is there.
    """
    target = Path(path)
    remove_leftovers(target)
    handle, temporary = _create(target)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)  # while the lock is held, so that no other writer takes it for a leftover
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        _WRITING.discard(temporary.name)
    _sync_folder(target.parent)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Make and remove the temporary file of a write to ``path``, to learn whether one can begin.

    Raises:
        OSError: it cannot.
    """
    handle, temporary = _create(Path(path))
    temporary.unlink(missing_ok=True)
    os.close(handle)
    _WRITING.discard(temporary.name)


def remove_leftovers(target: Path) -> None:
    """Remove the temporary files that dead writers of ``target`` left.

    What cannot be removed stays.
    """
    pattern = re.compile(re.escape(_prefix(target)) + r"(\d{1,10})-[0-9a-f]{12}\.tmp")
    try:
        names = [name for name in os.listdir(target.parent) if name.startswith(".") and name.endswith(".tmp")]
    except OSError:
        return
    for name in names:
        found = pattern.fullmatch(name)
        if found is not None and not _is_written(name, int(found[1])):
            with suppress(OSError):
                _remove_unlocked(target.parent / name)


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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(target: Path) -> tuple[int, Path]:
    _check_replaceable(target)
    for _ in range(_ATTEMPTS):
        temporary = target.parent / f"{_prefix(target)}{os.getpid()}-{secrets.token_hex(6)}.tmp"
        _WRITING.add(temporary.name)
        try:
            # the mode follows the umask, as for any new file
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            _WRITING.discard(temporary.name)
            continue
        except BaseException:
            _WRITING.discard(temporary.name)
            raise
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle, temporary
    raise FileExistsError(f"no free name for a temporary file beside {target}")


def _prefix(target: Path) -> str:
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST_PREFIX])
    return f".{name}."


def _is_written(name: str, process: int) -> bool:
    if process == os.getpid():
        return name in _WRITING
    if process < 1:
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # it is another user's
    return True


def _remove_unlocked(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(handle)
