"""What is registered: one file, the files of a folder, or bytes."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from lattice_inference.checkpoint.model_file import open_model_file
from lattice_inference.errors import LatticeError, WriteError
from lattice_tune.arguments import path_of
from lattice_tune.errors import InvalidInputError, StorageError, shown
from lattice_tune.registry.stored_values import check_relative_path

__all__ = ["Source", "SourceFile", "digest_of", "read_source"]

MOST_FILES = 10_000
BYTES_NAME = "weights.bin"
"""The name of the file when bytes are registered."""


@dataclass(frozen=True)
class SourceFile:
    """A file to be stored: its path in the version, SHA-256, size, and how to open it again."""

    path: str
    sha256: str
    size: int
    open: Callable[[], BinaryIO]


@dataclass(frozen=True)
class Source:
    """All files of a version, in order of their paths."""

    files: tuple[SourceFile, ...]
    is_folder: bool

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, or of the list of files."""
        return digest_of([(file.path, file.sha256, file.size) for file in self.files], is_folder=self.is_folder)


def digest_of(files: list[tuple[str, str, int]], *, is_folder: bool) -> str:
    """Return the SHA-256 of a version's file.

    For a folder, it is that of the lines ``sha256 size path`` of its files.
    """
    if not is_folder:
        return files[0][1]
    lines = "".join(f"{sha256} {size} {path}\n" for path, sha256, size in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def read_source(source: object) -> Source:
    """Take the SHA-256 of every file of what is to be registered.

    Args:
        source: a path of a file or folder, or bytes. A folder may hold folders, and no symbolic links.

    Raises:
        InvalidInputError: it is something else, empty, or holds what cannot be stored.
        StorageError: a file cannot be read.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        content = bytes(source)
        sha256 = hashlib.sha256(content).hexdigest()
        return Source((SourceFile(BYTES_NAME, sha256, len(content), lambda: io.BytesIO(content)),), is_folder=False)
    path = path_of(source, "source")
    if not os.path.lexists(path):
        raise StorageError(f"{path}: no such file or folder")
    if os.path.isdir(path):  # and False where that cannot be seen: then opening it says why
        return Source(tuple(_folder_files(path)), is_folder=True)
    return Source((_file(path, check_relative_path("the name of the file", path.name)),), is_folder=False)


def _folder_files(folder: Path) -> list[SourceFile]:
    names: list[str] = []
    try:
        for where, folders, files in os.walk(folder, onerror=_give_up):
            for name in [*folders, *files]:
                path = Path(where) / name
                if path.is_symlink():
                    raise InvalidInputError(f"{path} is a symbolic link: register a folder of files (cp -RL makes one)")
            names += [os.path.relpath(os.path.join(where, name), folder).replace(os.sep, "/") for name in files]
            if len(names) > MOST_FILES:
                raise InvalidInputError(f"{folder} holds over {MOST_FILES:,} files: pack them into fewer")
    except OSError as error:
        raise StorageError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    if not names:
        raise InvalidInputError(f"{folder} holds no files: there is nothing to register")
    return [
        _file(folder / name, check_relative_path(f"the path {shown(name)} in {folder}", name)) for name in sorted(names)
    ]


def _give_up(error: OSError) -> None:
    raise error


def _file(path: Path, name: str) -> SourceFile:
    with _open(path) as file:
        try:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    return SourceFile(name, sha256, size, lambda: _open(path))


def _open(path: Path) -> BufferedReader:
    """Open a regular file; anything else is refused and makes no call wait."""
    try:
        descriptor, _ = open_model_file(path, error=WriteError)
    except LatticeError as error:
        raise StorageError(str(error)) from error
    return os.fdopen(descriptor, "rb")
