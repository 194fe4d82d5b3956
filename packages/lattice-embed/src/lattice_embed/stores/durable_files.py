"""Files that are whole or not there, whatever happens to the process or the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lattice_embed.errors import InvalidInputError, StoreError
from lattice_inference.checkpoint.atomic_file import atomic_file, sync_folder

__all__ = ["exclusive_lock", "place_of", "sync_folder", "write_durably"]


def place_of(path: str | os.PathLike[str]) -> Path:
    """Return a path as it is whatever folder the process changes to.

    Raises:
        InvalidInputError: it is no path.
        StoreError: no file can have this name, or it may not be looked at.
    """
    try:
        place = Path(path).absolute()
        os.lstat(place)
    except TypeError:
        raise InvalidInputError(f"path is a {type(path).__name__}; pass a str or a Path") from None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{os.fspath(path)!r:.200} cannot be the path of a store or journal: {reason}") from error
    return place


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Write ``data`` atomically: beside ``path``, flushed to disk, then renamed.

    A failure leaves nothing. Its folder has yet to be forced to the disk.

    Raises:
        OSError: it cannot be written.
    """
    with atomic_file(path, sync=False) as file:
        file.write(data)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[IO[bytes]]:
    """Hold the lock of a file, which is created if needed.

    The system releases it when the process dies.

    Raises:
        StoreError: this system has no such locks.
    """
    try:
        import fcntl
    except ImportError:
        raise StoreError("stores in a folder need the file locks of Unix: use an SQLite store here") from None
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
