"""Output files of commands.

They are checked before any computation, named in errors, and saved elsewhere if need be.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lattice_embed.errors import InvalidInputError, LatticeEmbedError
from lattice_inference.checkpoint.atomic_file import atomic_file, check_replaceable

__all__ = ["OutputError", "check_output", "check_store_place", "write_computed", "write_file"]


class OutputError(LatticeEmbedError, OSError):
    """A computed result could not be written to its path.

    The message says where it lies instead.
    """


def check_output(path: Path, name: str) -> None:
    """Make sure that a file can be written, by writing and removing an empty one beside it.

    Args:
        path: the file.
        name: what messages call it, such as ``--output x.npy``.

    Raises:
        InvalidInputError: there is no such folder, or the path is a folder.
        OSError: the folder cannot be written to.
    """
    if path.is_dir():
        raise InvalidInputError(f"{name}: this is a folder")
    if not path.parent.is_dir():
        raise InvalidInputError(f"{name}: the folder {path.parent} does not exist")
    _probe(path.parent, path)


def check_store_place(place: Path) -> None:
    """Make sure that a store, or a journal, can be made or written to at ``place``.

    Raises:
        InvalidInputError: its folder does not exist.
        OSError: it cannot be written to.
    """
    if not place.exists() and not place.parent.is_dir():
        raise InvalidInputError(f"{place}: the folder {place.parent} does not exist")
    _probe(place if place.is_dir() else place.parent, place)
    if place.is_file() and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that is either whole or not there.

    Raises:
        OSError: it cannot be written; the error names ``path``, not the temporary file beside it.
    """
    with _naming(path), atomic_file(path) as file:
        write(file)


def write_computed(path: Path, write: Callable[[BinaryIO], object], what: str) -> None:
    """Do :meth:`write_file` for a costly result.

    If that fails, it is written to the temporary folder.

    Args:
        path: the file.
        write: writes to an open file; may be called twice.
        what: what is written, for the message.

    Raises:
        OutputError: it cannot be written to ``path``.
        OSError: nor to the temporary folder.
    """
    try:
        write_file(path, write)
    except OSError as error:
        kept = _keep_elsewhere(path, write)
        if kept is None:
            raise
        raise OutputError(f"{error}; {what} lie in {kept}") from error


def _keep_elsewhere(path: Path, write: Callable[[BinaryIO], object]) -> Path | None:
    """Return where a result was written instead, or None if that failed too."""
    try:
        handle, name = tempfile.mkstemp(prefix="lattice-embed-", suffix=path.suffix)
    except OSError:
        return None
    kept = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        kept.unlink(missing_ok=True)
        return None
    return kept


def _probe(folder: Path, path: Path) -> None:
    """Write an empty file to ``folder`` and remove it.

    Its name is as long as that of any file that will be written.
    """
    with _naming(path):
        check_replaceable(path)
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        os.unlink(name)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of the operating system name ``path``, not a temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename == str(path):
            raise
        raise OSError(error.errno, error.strerror or os.strerror(error.errno), str(path)) from error
    except ValueError as error:  # such as a NUL in the name
        raise InvalidInputError(f"{str(path)!r} cannot be written: {error}") from None
