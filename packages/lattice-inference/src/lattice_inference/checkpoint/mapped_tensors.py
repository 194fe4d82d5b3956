"""Named tensors in a mapped file: what a reader of any format hands out.

Nothing here copies a tensor's bytes unless it must. Arrays stay valid after ``close()``: the mapping lives until the last
view of it is gone. A file must not be truncated while it is mapped: as with every memory map, touching pages that no
longer exist ends the process. Each access checks the file's size first, which catches all but a race. (Replacing a file by
renaming over it is safe.)
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.blocks import BLOCK_FORMATS, dequantize_blocks
from lattice_inference.checkpoint.dtypes import DTYPES, to_float32
from lattice_inference.checkpoint.model_file import SNIFF_BYTES, foreign_content, open_model_file
from lattice_inference.checkpoint.tensor_rows import TensorRows, parse_rows
from lattice_inference.errors import CheckpointError, InvalidInputError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["MappedTensors", "PageAdvice", "TensorInfo", "open_mapped"]

T = TypeVar("T")

PageAdvice = Literal["sequential", "will-need", "preload"]
"""How the pages of a file are going to be read."""

_ADVICE: dict[PageAdvice, int | None] = {
    "sequential": getattr(mmap, "MADV_SEQUENTIAL", None),
    "will-need": getattr(mmap, "MADV_WILLNEED", None),
    "preload": 22 if sys.platform == "linux" else getattr(mmap, "MADV_WILLNEED", None),  # MADV_POPULATE_READ
}

# Elements converted and checked at a time: enough to amortise the call, few enough to stay in cache.
_CHUNK_ELEMENTS = 1 << 17


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is.

    Attributes:
        dtype: element type by its name in the format: ``"F32"``, ``"BF16"``, ``"Q4_K"``, ...
        shape: lengths of the dimensions, outermost first; ``()`` is a scalar.
        file: the file that holds it.
        offset: where its bytes begin, counted from the beginning of the file.
        nbytes: how many bytes it has.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


class MappedTensors:
    """One open, mapped file of tensors. A context manager.

    Any number of threads may read from it at once; ``close`` must not run at the same time.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, size: int, tensors: Mapping[str, TensorInfo]) -> None:
        self.path = path
        self._mapping: mmap.mmap | None = mapping
        self._size = size
        self._tensors = tensors

    def __repr__(self) -> str:
        state = "" if self._mapping is not None else ", closed"
        return f"{type(self).__name__}({str(self.path)!r}, {len(self._tensors)} tensors{state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or (isinstance(name, str) and self._rows(name) is not None)

    def __len__(self) -> int:
        return len(self._tensors)

    def close(self) -> None:
        """Let go of the mapping. Arrays handed out before stay valid; calling twice is harmless."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            # While views are out, closing is refused: each of them holds the mapping, and the last one lets it go.
            with contextlib.suppress(BufferError):
                mapping.close()

    def names(self) -> tuple[str, ...]:
        """Return every tensor's name, in the order of the header."""
        return tuple(self._tensors)

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Type, shape and place of every tensor, by its name."""
        return self._tensors

    def info(self, name: str) -> TensorInfo:
        """Return type, shape and place of the tensor ``name``, or of rows of one.

        See :mod:`~.tensor_rows`.

        Raises:
            CheckpointError: no tensor has that name.
        """
        info = self._tensors.get(name)
        if info is None:
            info = self._rows(name)
        if info is None:
            raise CheckpointError(f"{self.path}: holds no tensor {name!r}")
        return info

    def _rows(self, name: str) -> TensorInfo | None:
        """Return what ``name`` is if it names rows of a tensor that has them.

        The place of swapped rows is that of their matrix.
        """
        rows = parse_rows(name)
        info = None if rows is None else self._tensors.get(rows.tensor)
        if rows is None or info is None or not info.shape:
            return None
        *stack, width = info.shape if len(info.shape) > 1 else (*info.shape, 1)
        count = rows.end - rows.first
        if rows.swapped:
            if len(stack) != 2 or info.dtype in BLOCK_FORMATS or not rows.first < rows.end <= stack[0] * width:
                return None
            matrix = rows.first // width
            if rows.end > (matrix + 1) * width:
                return None
            nbytes = info.nbytes // stack[0]
            return TensorInfo(info.dtype, (count, stack[1]), info.file, info.offset + matrix * nbytes, nbytes)
        total = math.prod(stack)
        if not rows.first < rows.end <= total:
            return None
        row_bytes = info.nbytes // total
        shape = (count, *info.shape[-1:]) if len(info.shape) > 1 else (count,)
        return TensorInfo(info.dtype, shape, info.file, info.offset + rows.first * row_bytes, count * row_bytes)

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Return the tensor ``name`` as it is stored: a read-only view of the mapped file.

        BF16 comes as uint16 and the 8-bit floats as uint8, bit for bit; ``info(name).dtype`` tells which it is. A tensor
        in a block format comes as structured blocks of ``BLOCK_FORMATS[dtype].layout``, its last axis counted in blocks.
        Only a tensor whose offset is not a multiple of its element size is copied, for the sake of alignment.

        Raises:
            CheckpointError: no such tensor, the file is closed or was truncated meanwhile, or its type has no array form
                here.
        """
        return self._array(name, self.info(name))

    def _array(self, name: str, info: TensorInfo) -> npt.NDArray[np.generic]:
        storage, shape = self._storage(name, info)
        if name not in self._tensors and (rows := parse_rows(name)) is not None and rows.swapped:
            return self._swapped(rows)
        mapping = self._open_mapping()
        if info.nbytes == 0:
            empty: npt.NDArray[np.generic] = np.empty(shape, dtype=storage)
            empty.flags.writeable = False
            return empty
        flat = np.frombuffer(mapping, dtype=storage, count=info.nbytes // storage.itemsize, offset=info.offset)
        if not flat.flags.aligned:
            flat = flat.copy()
            flat.flags.writeable = False
        return flat.reshape(shape)

    def _swapped(self, rows: TensorRows) -> npt.NDArray[np.generic]:
        """Return rows of a matrix of a stack whose axes are stored swapped.

        It is a view, and one matrix is all that is read.
        """
        matrices = self._array(rows.tensor, self._tensors[rows.tensor])
        matrix, first = divmod(rows.first, matrices.shape[2])
        return matrices[matrix, :, first : first + rows.end - rows.first].T

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return the tensor ``name`` as a new, C-contiguous float32 array of finite numbers.

        F32, F16, BF16, F8_E4M3 and F8_E5M2 convert exactly; F64 rounds to nearest; block formats give what ggml's
        reference code gives.

        Raises:
            CheckpointError: no such tensor, its type is not one of these, or an element is NaN or infinite; the message
                then gives the tensor and the first such index.
        """
        info = self.info(name)
        chunks = self._chunks(name, info)
        result = np.empty(math.prod(info.shape), dtype=np.float32)
        position = 0
        for chunk in chunks:
            result[position : position + chunk.size] = chunk
            position += chunk.size
        return result.reshape(info.shape)

    def float32_chunks(self, name: str) -> Iterator[npt.NDArray[np.float32]]:
        """Yield a tensor's elements as :meth:`float32` does, in 1-D pieces of whole blocks.

        A piece is valid until the next one is requested.
        """
        yield from self._chunks(name, self.info(name))

    def _chunks(self, name: str, info: TensorInfo) -> Iterator[npt.NDArray[np.float32]]:
        format = BLOCK_FORMATS.get(info.dtype)
        dtype = DTYPES.get(info.dtype)
        if format is None and (dtype is None or not dtype.widens):
            known = [known.name for known in DTYPES.values() if known.widens] + list(BLOCK_FORMATS)
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is {info.dtype}; only {', '.join(known)} convert to float32"
            )
        stored = self._array(name, info).reshape(-1)
        step = 1 if format is None else format.elements
        buffer = np.empty(min(_CHUNK_ELEMENTS, stored.size * step), np.float32)
        for start in range(0, stored.size, _CHUNK_ELEMENTS // step):
            part = stored[start : start + _CHUNK_ELEMENTS // step]
            chunk = buffer[: part.size * step]
            if format is not None:
                dequantize_blocks(part.view(format.layout), format, chunk)
            elif dtype is not None:
                to_float32(part, dtype, chunk)
            finite = np.isfinite(chunk)
            if not finite.all():
                first = int(np.argmin(finite))
                index = tuple(int(axis) for axis in np.unravel_index(start * step + first, info.shape))
                raise CheckpointError(
                    f"{self.path}: tensor {name!r} ({info.dtype}) is {chunk[first]} at index {index} in float32; "
                    "weights must be finite, so the file is damaged or its training diverged"
                )
            yield chunk

    def drop_pages(self, name: str) -> None:
        """Tell the kernel that the mapped pages of tensor ``name`` are not needed soon.

        Worth doing once a tensor has been converted: the memory is then held once. Reading the tensor again stays
        right and costs another read of the file. Where the system has no such advice, nothing happens.
        """
        self._madvise(getattr(mmap, "MADV_DONTNEED", None), self.info(name))

    def advise(self, advice: PageAdvice, names: Iterable[str] | None = None) -> None:
        """Tell the kernel how tensors are going to be read. No content depends on it.

        Args:
            advice: ``"sequential"``: once and in order, so that it reads further ahead. ``"will-need"``: soon, so that it
                begins to read them now. ``"preload"``: they are in memory when this returns; where the kernel has no such
                advice (Linux has it since 5.14), as ``"will-need"``. Elsewhere nothing happens.
            names: the tensors; by default all.

        Raises:
            InvalidInputError: there is no such advice.
            CheckpointError: no such tensor, or the file is closed or was truncated meanwhile.
        """
        if advice not in _ADVICE:
            raise InvalidInputError(f"advice is {advice!r}; it must be one of {', '.join(map(repr, _ADVICE))}")
        for info in [self.info(name) for name in (self._tensors if names is None else names)]:
            try:
                self._madvise(_ADVICE[advice], info)
            except OSError:  # an older kernel
                self._madvise(_ADVICE["will-need"], info)

    def _madvise(self, advice: int | None, info: TensorInfo) -> None:
        mapping = self._open_mapping()
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

    def _storage(self, name: str, info: TensorInfo) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
        """Return the element type and the shape of the array that a tensor is handed out as."""
        format = BLOCK_FORMATS.get(info.dtype)
        if format is not None:
            return format.layout, (*info.shape[:-1], info.shape[-1] // format.elements)
        dtype = DTYPES.get(info.dtype)
        if dtype is None or dtype.storage is None:
            raise CheckpointError(f"{self.path}: tensor {name!r} is {info.dtype}, whose packed elements are not read")
        return dtype.storage, info.shape


def open_mapped(path: Path, read: Callable[[Path, mmap.mmap, int], T], *, magic: bytes = b"") -> T:
    """Open and map the file ``path`` and return ``read(path, mapping, size)``.

    The result owns the mapping.

    Args:
        path: the file.
        read: parses what the file says of itself.
        magic: how a file of the format begins; others may be one of the usual mix-ups, which the error then says.

    Raises:
        ModelNotFoundError: the file does not exist.
        CheckpointError: it cannot be mapped, or ``read`` refused it.
    """
    descriptor, size = open_model_file(path, error=CheckpointError)
    try:
        try:
            if size == 0:
                raise CheckpointError(f"{path}: is empty")
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        except OSError as cause:
            raise CheckpointError(f"{path}: cannot be mapped: {cause.strerror}") from cause
        try:
            return read(path, mapping, size)
        except BaseException:
            with contextlib.suppress(BufferError):
                mapping.close()
            raise
    except CheckpointError as cause:
        head = _head(descriptor)
        meaning = None if magic and head.startswith(magic) else foreign_content(head)
        if meaning is None:
            raise
        raise CheckpointError(f"{path}: this is {meaning}") from cause
    finally:
        os.close(descriptor)


def _head(descriptor: int) -> bytes:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, SNIFF_BYTES)
    except OSError:
        return b""
