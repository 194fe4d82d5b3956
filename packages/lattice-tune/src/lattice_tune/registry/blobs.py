"""Contents of files by their SHA-256.

They are written atomically, never changed, and removed only by ``gc``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from lattice_inference.checkpoint.atomic_file import atomic_file, remove_leftovers, sync_folder
from lattice_inference.checkpoint.model_file import open_model_file
from lattice_inference.errors import LatticeError, ModelNotFoundError, WriteError
from lattice_tune.errors import InvalidInputError, StorageError, TuneError, WeightIntegrityError
from lattice_tune.registry.sources import SourceFile

__all__ = ["BlobStore", "copy_verified", "storing"]

CHUNK_BYTES = 1 << 20

_FOLDER = re.compile(r"[0-9a-f]{2}")
_REST = re.compile(r"[0-9a-f]{62}")


class BlobStore:
    """A folder of files named by their SHA-256, in 256 subfolders by its first two digits.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path_of(self, sha256: str) -> Path:
        """Return where a content is, or would be."""
        return self.folder / sha256[:2] / sha256[2:]

    def add(self, source: SourceFile) -> None:
        """Store a content, forced to the disk with its name; one that is there and sound is kept.

        Raises:
            StorageError: it cannot be written.
            InvalidInputError: the source changed since its SHA-256 was taken.
        """
        path = self.path_of(source.sha256)
        with storing(path):
            path.parent.mkdir(exist_ok=True)
            sync_folder(self.folder)
            if self.problem_of(source.sha256, source.size) is None:
                os.utime(path)  # gc counts its grace period from here
                sync_folder(path.parent)
                return
            with source.open() as file, atomic_file(path, mode=0o444) as out:
                if _copy(file, out) != source.sha256:
                    raise InvalidInputError(f"{source.path} changed while it was read: register it when it is complete")

    @contextmanager
    def open(self, sha256: str) -> Iterator[BufferedReader]:
        """Open a content for reading.

        Raises:
            WeightIntegrityError: it is missing, or is no regular file.
        """
        path = self.path_of(sha256)
        try:
            descriptor, _ = open_model_file(path, error=WriteError)
        except ModelNotFoundError:
            raise WeightIntegrityError(str(path), sha256, "missing") from None
        except LatticeError as error:
            raise StorageError(str(error)) from error
        with os.fdopen(descriptor, "rb") as file, storing(path):
            yield file

    def problem_of(self, sha256: str, size: int) -> str | None:
        """Say what is wrong with a content, or ``None`` if it is what its name says."""
        path = self.path_of(sha256)
        try:
            with self.open(sha256) as file:
                if (actual_size := os.fstat(file.fileno()).st_size) != size:
                    return f"{path}: {actual_size:,} bytes, and {size:,} were registered"
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except (WeightIntegrityError, StorageError) as error:
            return str(error)
        return None if actual == sha256 else str(WeightIntegrityError(str(path), sha256, actual))

    def check(self, sha256: str, size: int) -> None:
        """Read a content and compare it with its name.

        Raises:
            WeightIntegrityError: it is missing, or another.
        """
        path = self.path_of(sha256)
        with self.open(sha256) as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != sha256 or os.fstat(file.fileno()).st_size != size:
                raise WeightIntegrityError(str(path), sha256, actual)

    def read(self, sha256: str, size: int) -> bytes:
        """Return a content.

        Raises:
            WeightIntegrityError: it is missing, or is not what its name says.
        """
        with self.open(sha256) as file:
            if os.fstat(file.fileno()).st_size == size:  # else a damaged row could cause an allocation of any size
                content = file.read(size + 1)
                actual = hashlib.sha256(content).hexdigest()
            else:
                content, actual = b"", hashlib.file_digest(file, "sha256").hexdigest()
        if actual != sha256 or len(content) != size:
            raise WeightIntegrityError(str(self.path_of(sha256)), sha256, actual)
        return content

    def scan(self) -> Iterator[tuple[str, Path, os.stat_result]]:
        """Yield SHA-256, path and state of every content.

        Files that dead writers left are removed on the way.
        """
        for folder in sorted(self.folder.iterdir()):
            if not _FOLDER.fullmatch(folder.name) or not folder.is_dir():
                continue
            remove_leftovers(folder)
            for path in sorted(folder.iterdir()):
                if _REST.fullmatch(path.name):
                    with contextlib.suppress(FileNotFoundError):
                        yield folder.name + path.name, path, os.lstat(path)


def copy_verified(file: BinaryIO, out: BinaryIO, sha256: str, path: str) -> None:
    """Copy a stored content and compare it with the SHA-256 on record.

    Raises:
        WeightIntegrityError: it is another; what was written must not be used.
    """
    if (actual := _copy(file, out)) != sha256:
        raise WeightIntegrityError(path, sha256, actual)


def _copy(file: BinaryIO, out: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        out.write(chunk)
    return digest.hexdigest()


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn the errors of reading and writing files into those of this package.

    Raises:
        StorageError: in their place.
    """
    try:
        yield
    except TuneError:
        raise
    except WriteError as error:
        raise _storage_error(str(error), error.errno) from error
    except OSError as error:
        raise _storage_error(f"{path} cannot be read or written: {error.strerror or error}", error.errno) from error


def _storage_error(message: str, number: int | None) -> StorageError:
    error = StorageError(message)
    error.errno = number
    return error
