"""Reads .npz files.

Sizes are checked before memory is allocated, and damage is one kind of error.
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lattice_fann.errors import FannError, FormatError
from lattice_fann.formats.files import git_lfs_pointer

__all__ = ["MAX_INFLATION", "array_names", "listed_names", "read_arrays"]

MAX_INFLATION = 50
"""How many times its own size a compressed file may grow, once it is above ``FREE_BYTES``."""

FREE_BYTES = 64 << 20
_MAX_HEADER_BYTES = 10_000
_MAX_MEMBERS = 10_000

MOST_SHOWN = 20
"""Names that an error lists."""


def array_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the arrays in an .npz file, without reading them.

    Raises:
        FormatError: it is no such file.
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        return list(_guarded(path, file, lambda archive: dict.fromkeys(_members(archive))))


def read_arrays(path: str | os.PathLike[str], names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of an .npz file by name; ``names`` None takes all.

    Raises:
        FormatError: it is no .npz file, it is damaged, an array holds Python objects or is too large, or one of
            ``names`` is missing.
        OSError: it cannot be read.
    """

    def read(archive: zipfile.ZipFile, size: int) -> dict[str, npt.NDArray[Any]]:
        members = _members(archive)
        wanted = list(members) if names is None else list(names)
        missing = [name for name in wanted if name not in members]
        if missing:
            raise FormatError(
                f"it holds no array {missing[0]!r:.80}; it holds {listed_names(list(members)) or 'nothing'}"
            )
        total = sum(members[name].file_size for name in wanted)
        if total > max(FREE_BYTES, MAX_INFLATION * size):
            raise FormatError(
                f"{size} bytes would become {total}, and at most {MAX_INFLATION} times the file's size are read: "
                "store it with numpy.savez, which does not compress"
            )
        return {name: _read(archive, members[name]) for name in wanted}

    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        arrays: dict[str, npt.NDArray[Any]] = _guarded(path, file, lambda archive: read(archive, size))
        return arrays


def _guarded(path: str | os.PathLike[str], file: IO[bytes], work: Any) -> Any:
    """Open the archive and do the work; whatever a damaged archive raises becomes a FormatError."""
    head = file.read(64)
    file.seek(0)
    if (pointer := git_lfs_pointer(head)) is not None:
        raise FormatError(f"{path}: {pointer}")
    if head[:2] != b"PK":
        kind = "an .npy file; put the arrays into one with numpy.savez" if head[:6] == b"\x93NUMPY" else repr(head[:8])
        raise FormatError(f"{path}: no .npz file; it begins as {kind}")
    try:
        with zipfile.ZipFile(file) as archive:
            return work(archive)
    except FannError as error:
        raise FormatError(f"{path}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds for damaged bytes
        raise FormatError(f"{path}: a damaged .npz file: {type(error).__name__}: {error!s:.200}") from None


def _members(archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    entries = archive.infolist()
    if len(entries) > _MAX_MEMBERS:
        raise FormatError(f"it holds {len(entries)} arrays; the most is {_MAX_MEMBERS}")
    for entry in entries:
        name = entry.filename.removesuffix(".npy")
        if name in members or name == entry.filename:
            raise FormatError(f"it holds {entry.filename!r:.80} {'twice' if name in members else ', no .npy array'}")
        members[name] = entry
    return members


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> npt.NDArray[Any]:
    opened: Any = archive.open(entry)  # zipfile's own stream, which can read into memory
    with opened as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise FormatError(f"{entry.filename} is of .npy version {version}; 1.0 and 2.0 are read")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, in_columns, dtype = read(stream, max_header_size=_MAX_HEADER_BYTES)
        if dtype.hasobject:
            raise FormatError(f"{entry.filename} holds Python objects; store numbers or texts")
        nbytes = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or nbytes != entry.file_size - stream.tell():
            raise FormatError(
                f"{entry.filename} says shape {shape} of {dtype}, and {entry.file_size - stream.tell()} bytes follow"
            )
        content = np.empty(nbytes, dtype=np.uint8)
        done = 0
        while done < nbytes and (got := stream.readinto(content.data[done:])):
            done += got
        if done != nbytes or stream.read(1):
            raise FormatError(f"{entry.filename} has another length than the archive says")
    if dtype.kind == "U" and nbytes:
        points = content.view(np.dtype(np.uint32).newbyteorder(dtype.byteorder))
        if points.max() > sys.maxunicode or ((points >= 0xD800) & (points <= 0xDFFF)).any():
            raise FormatError(f"{entry.filename} holds a code point that is no character")  # NumPy raises a SystemError
    flat = content.view(dtype) if nbytes else np.empty(math.prod(shape), dtype=dtype)
    return flat.reshape(shape[::-1]).T if in_columns else flat.reshape(shape)


def listed_names(names: list[str]) -> str:
    """Return the first names, each cut: a damaged file may have any number, of any length."""
    shown = [name if len(name) <= 60 else f"{name[:60]}..." for name in names[:MOST_SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - MOST_SHOWN:,} more" if len(names) > MOST_SHOWN else "")
