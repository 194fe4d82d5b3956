"""Safetensors checkpoints, single and sharded, as read-only views of the mapped file.

Reading is our own (:mod:`lattice_inference.checkpoint.safetensors_header` checks what a file claims); nothing here
copies a tensor's bytes unless it must. A model's directory is opened with :func:`open_checkpoint`, one file with
:func:`open_safetensors`.

Arrays stay valid after ``close()``: the mapping lives until the last view of it is gone. A file must not be truncated
while it is mapped: as with every memory map, touching pages that no longer exist ends the process. Each access checks
the file's size first, which catches all but a race. (Replacing a file by renaming over it is safe.)
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.dtypes import DTYPES, to_float32
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.model_file import SNIFF_BYTES, foreign_content, open_model_file
from lattice_inference.checkpoint.safetensors_header import MAX_TENSORS, Header, TensorInfo, header_length, parse_header
from lattice_inference.errors import CheckpointError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = [
    "INDEX_FILE",
    "MAX_INDEX_BYTES",
    "SINGLE_FILE",
    "Checkpoint",
    "SafetensorsFile",
    "TensorInfo",
    "open_checkpoint",
    "open_safetensors",
    "read_shard_index",
]

#: Name of the weight file of a checkpoint that is one file.
SINGLE_FILE = "model.safetensors"

#: Name of the file that says which shard holds which tensor.
INDEX_FILE = "model.safetensors.index.json"

#: Largest shard index in bytes: a million tensors with long names.
MAX_INDEX_BYTES = 128 * 1024 * 1024

# Elements converted and checked at a time: enough to amortise the call, few enough to stay in cache.
_CHUNK_ELEMENTS = 1 << 17


class SafetensorsFile:
    """One open, mapped safetensors file. Made by :func:`open_safetensors`; a context manager.

    Any number of threads may read from it at once; ``close`` must not run at the same time.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, size: int, header: Header) -> None:
        self.path = path
        self._mapping: mmap.mmap | None = mapping
        self._size = size
        self._header = header

    def __repr__(self) -> str:
        state = "" if self._mapping is not None else ", closed"
        return f"SafetensorsFile({str(self.path)!r}, {len(self._header.tensors)} tensors{state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self._header.tensors

    def __len__(self) -> int:
        return len(self._header.tensors)

    def close(self) -> None:
        """Let go of the mapping. Arrays handed out before stay valid; calling twice is harmless."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            # While views are out, closing is refused: each of them holds the mapping, and the last one lets it go.
            with contextlib.suppress(BufferError):
                mapping.close()

    @property
    def metadata(self) -> Mapping[str, str]:
        """The free-form strings that the writer left in the header."""
        return self._header.metadata

    def names(self) -> tuple[str, ...]:
        """Return every tensor's name, in the order of the header."""
        return tuple(self._header.tensors)

    def info(self, name: str) -> TensorInfo:
        """Return type, shape and place of the tensor ``name``.

        Raises:
            CheckpointError: no tensor has that name.
        """
        try:
            return self._header.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.path}: holds no tensor {name!r}") from None

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Return the tensor ``name`` as it is stored: a read-only view of the mapped file.

        BF16 comes as uint16 and the 8-bit floats as uint8, bit for bit; ``info(name).dtype`` tells which it is. Only a
        tensor whose offset is not a multiple of its element size is copied, for the sake of alignment.

        Raises:
            CheckpointError: no such tensor, the file is closed or was truncated meanwhile, or its type is a packed one
                that has no array form.
        """
        info = self.info(name)
        storage = DTYPES[info.dtype].storage
        if storage is None:
            raise CheckpointError(f"{self.path}: tensor {name!r} is {info.dtype}, whose packed elements are not read")
        mapping = self._open_mapping()
        if info.nbytes == 0:
            empty: npt.NDArray[np.generic] = np.empty(info.shape, dtype=storage)
            empty.flags.writeable = False
            return empty
        flat = np.frombuffer(mapping, dtype=storage, count=info.nbytes // storage.itemsize, offset=info.offset)
        if not flat.flags.aligned:
            flat = flat.copy()
            flat.flags.writeable = False
        return flat.reshape(info.shape)

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return the tensor ``name`` as a new, C-contiguous float32 array of finite numbers.

        F32, F16, BF16, F8_E4M3 and F8_E5M2 convert exactly; F64 rounds to nearest.

        Raises:
            CheckpointError: no such tensor, its type is not one of these, or an element is NaN or infinite; the message
                then gives the tensor and the first such index.
        """
        info = self.info(name)
        dtype = DTYPES[info.dtype]
        if not dtype.widens:
            widening = ", ".join(known.name for known in DTYPES.values() if known.widens)
            raise CheckpointError(f"{self.path}: tensor {name!r} is {info.dtype}; only {widening} convert to float32")
        stored = self.array(name).reshape(-1)
        result = np.empty(stored.shape, dtype=np.float32)
        for start in range(0, stored.size, _CHUNK_ELEMENTS):
            chunk = result[start : start + _CHUNK_ELEMENTS]
            to_float32(stored[start : start + _CHUNK_ELEMENTS], dtype, chunk)
            finite = np.isfinite(chunk)
            if not finite.all():
                position = start + int(np.argmin(finite))
                index = tuple(int(axis) for axis in np.unravel_index(position, info.shape))
                raise CheckpointError(
                    f"{self.path}: tensor {name!r} ({info.dtype}) is {result[position]} at index {index} in float32; "
                    "weights must be finite, so the file is damaged or its training diverged"
                )
        return result.reshape(info.shape)

    def drop_pages(self, name: str) -> None:
        """Tell the kernel that the mapped pages of tensor ``name`` are not needed soon.

        Worth doing once a tensor has been converted: the memory is then held once. Reading the tensor again stays
        right and costs another read of the file. Where the system has no such advice, nothing happens.
        """
        info = self.info(name)
        mapping = self._open_mapping()
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if advice is not None and info.nbytes:
            start = info.offset - info.offset % mmap.PAGESIZE
            mapping.madvise(advice, start, info.offset + info.nbytes - start)

    def _open_mapping(self) -> mmap.mmap:
        mapping = self._mapping
        if mapping is None:
            raise CheckpointError(f"{self.path}: the file is closed")
        size_now = mapping.size()
        if size_now < self._size:
            raise CheckpointError(f"{self.path}: shrank from {self._size:,} to {size_now:,} bytes since it was opened")
        return mapping


class Checkpoint:
    """The weights of one model, in one file or several. Made by :func:`open_checkpoint`; a context manager."""

    def __init__(self, directory: Path, files: tuple[SafetensorsFile, ...]) -> None:
        self.directory = directory
        self.files = files
        self._file_of = {name: file for file in files for name in file.names()}

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.directory)!r}, {len(self._file_of)} tensors in {len(self.files)} files)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __len__(self) -> int:
        return len(self._file_of)

    def close(self) -> None:
        """Let go of every file's mapping. Arrays handed out before stay valid; calling twice is harmless."""
        for file in self.files:
            file.close()

    @property
    def metadata(self) -> Mapping[str, str]:
        """The free-form strings in the headers; where shards differ in a key, the first shard's."""
        merged: dict[str, str] = {}
        for file in reversed(self.files):
            merged.update(file.metadata)
        return MappingProxyType(merged)

    def names(self) -> tuple[str, ...]:
        """Return every tensor's name: file by file, in the order of the headers."""
        return tuple(self._file_of)

    def info(self, name: str) -> TensorInfo:
        """Return type, shape and place of a tensor, as :meth:`SafetensorsFile.info` does."""
        return self._file(name).info(name)

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Return a tensor as it is stored, as :meth:`SafetensorsFile.array` does."""
        return self._file(name).array(name)

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as finite float32, as :meth:`SafetensorsFile.float32` does."""
        return self._file(name).float32(name)

    def drop_pages(self, name: str) -> None:
        """Advise the kernel about a tensor's pages, as :meth:`SafetensorsFile.drop_pages` does."""
        self._file(name).drop_pages(name)

    def _file(self, name: str) -> SafetensorsFile:
        try:
            return self._file_of[name]
        except KeyError:
            raise CheckpointError(f"{self.directory}: the checkpoint holds no tensor {name!r}") from None


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open and map one safetensors file, after checking everything that its header claims.

    Raises:
        ModelNotFoundError: the file does not exist.
        CheckpointError: it is not a well-formed safetensors file; the message says what is wrong and, where it is one
            of the usual mix-ups (a Git LFS pointer, a web page, a PyTorch file), what it is instead.
    """
    path = Path(path)
    descriptor, size = open_model_file(path, error=CheckpointError)
    try:
        try:
            length = header_length(os.read(descriptor, 8), size, path)
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        except OSError as cause:
            raise CheckpointError(f"{path}: cannot be mapped: {cause.strerror}") from cause
        try:
            header = parse_header(mapping[8 : 8 + length], size, path)
        except BaseException:
            mapping.close()
            raise
    except CheckpointError as cause:
        meaning = foreign_content(_head(descriptor))
        if meaning is None:
            raise
        raise CheckpointError(f"{path}: this is {meaning}") from cause
    finally:
        os.close(descriptor)
    return SafetensorsFile(path, mapping, size, header)


def open_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint:
    """Open the weights of the model in ``directory``.

    ``model.safetensors`` is taken where it exists, else the shards that ``model.safetensors.index.json`` names.

    Raises:
        ModelNotFoundError: the directory, both of these files, or a shard do not exist.
        CheckpointError: a file is malformed, the index names a file outside of the directory, a shard lacks a tensor
            that the index promises, or two shards hold the same tensor.
    """
    directory = Path(directory)
    if not os.path.isdir(directory):  # unlike Path.is_dir, false for whatever cannot be looked at
        raise ModelNotFoundError(f"{directory}: no such directory")
    if os.path.lexists(directory / SINGLE_FILE):
        return Checkpoint(directory, (open_safetensors(directory / SINGLE_FILE),))
    if not os.path.lexists(directory / INDEX_FILE):
        raise ModelNotFoundError(f"{directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}")
    weight_map = read_shard_index(directory / INDEX_FILE)
    files: list[SafetensorsFile] = []
    try:
        for shard in dict.fromkeys(weight_map.values()):
            files.append(open_safetensors(directory / shard))
        _check_shards(directory, weight_map, {file.path: file for file in files})
    except BaseException:
        for file in files:
            file.close()
        raise
    return Checkpoint(directory, tuple(files))


def read_shard_index(path: Path) -> Mapping[str, str]:
    """Read ``model.safetensors.index.json`` and return which file holds which tensor.

    Every file name is relative, stays inside the directory (judged by its text: shards may be symbolic links to
    elsewhere, as they are in the Hugging Face cache) and ends in ``.safetensors``.

    Raises:
        ModelNotFoundError: there is no such index.
        CheckpointError: it is malformed.
    """
    index = load_json_object(path, max_bytes=MAX_INDEX_BYTES, error=CheckpointError)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map is missing, empty or not an object")
    if len(weight_map) > MAX_TENSORS:
        raise CheckpointError(f"{path}: {len(weight_map):,} tensors, and at most {MAX_TENSORS:,} are read")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise CheckpointError(
                f"{path}: tensor {name!r} is said to lie in {shard!r}, which is no file name in this directory"
            )
        if not shard.endswith(".safetensors"):
            raise CheckpointError(f"{path}: tensor {name!r} lies in {shard!r}, which is not a .safetensors file")
    return MappingProxyType(weight_map)


def _check_shards(directory: Path, weight_map: Mapping[str, str], files: Mapping[Path, SafetensorsFile]) -> None:
    for name, shard in weight_map.items():
        if name not in files[directory / shard]:
            raise CheckpointError(f"{directory}: the index promises tensor {name!r} in {shard}, which does not hold it")
    holder: dict[str, Path] = {}
    for path, file in files.items():
        for name in file.names():
            if name in holder:
                raise CheckpointError(f"{directory}: both {holder[name].name} and {path.name} hold tensor {name!r}")
            holder[name] = path


def _stays_inside(name: str) -> bool:
    """Whether ``name`` is a relative path that cannot leave its directory, on any operating system."""
    if not name or "\0" in name or "\\" in name or PureWindowsPath(name).drive or PurePosixPath(name).is_absolute():
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _head(descriptor: int) -> bytes:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, SNIFF_BYTES)
    except OSError:
        return b""
