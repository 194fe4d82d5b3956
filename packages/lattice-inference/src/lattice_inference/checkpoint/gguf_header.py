"""The header of a GGUF file: parsed, and every claim checked against the file's size.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) begins with ``GGUF``, a version, and the
numbers of tensors and metadata entries. The entries follow, each a key, a type and a value; then each tensor's name,
dimensions, type and offset. The tensors' bytes begin at the next multiple of ``general.alignment``. Whatever ggml's
reader refuses is refused here. Stricter than it are: the caps below, a dimension of 0, and bytes after the last
tensor.

Nothing is allocated because a file says so: a count is first compared with the bytes that are left, and arrays are
decoded on demand.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.ggml_types import GGML_TYPES
from lattice_inference.checkpoint.mapped_tensors import TensorInfo
from lattice_inference.errors import CheckpointError

__all__ = [
    "MAGIC",
    "MAX_ALIGNMENT",
    "MAX_ARRAY_STRINGS",
    "MAX_DIMENSIONS",
    "MAX_ENTRIES",
    "MAX_NAME_BYTES",
    "MAX_TENSORS",
    "MAX_TEXT_BYTES",
    "NO_TOKEN",
    "VALUE_TYPES",
    "GgufArray",
    "GgufHeader",
    "parse_gguf_header",
]

#: How every GGUF file begins.
MAGIC = b"GGUF"

#: What stands where the id of a token is expected, if there is no such token; other writers leave the key out.
NO_TOKEN = 2**32 - 1

#: Most metadata entries; published files have some dozens.
MAX_ENTRIES = 100_000

#: Most tensors in one file; the largest published models have some thousands.
MAX_TENSORS = 100_000

#: Most dimensions of a tensor, as in ggml.
MAX_DIMENSIONS = 4

#: Longest key and tensor name in bytes.
MAX_NAME_BYTES = 1024

#: Most bytes in all keys and strings together, those in arrays not counted: chat templates are the longest.
MAX_TEXT_BYTES = 16 * 2**20

#: Most strings in all arrays together; the largest published vocabularies and merges have some 700,000.
MAX_ARRAY_STRINGS = 2_000_000

#: Largest ``general.alignment``.
MAX_ALIGNMENT = 2**20

_DEFAULT_ALIGNMENT = 32
_HEADER_BYTES = 24

# The smallest that an entry and a tensor can be: what follows from their fields with empty strings.
_LEAST_ENTRY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8

# ggml counts elements and bytes in signed 64-bit integers.
_INT64_END = 2**63

_STRING = 8
_ARRAY = 9

#: The types of metadata values by their numbers; ``STRING`` and ``ARRAY`` have no NumPy type.
VALUE_TYPES: dict[int, tuple[str, np.dtype[np.generic] | None]] = {
    0: ("UINT8", np.dtype("<u1")),
    1: ("INT8", np.dtype("<i1")),
    2: ("UINT16", np.dtype("<u2")),
    3: ("INT16", np.dtype("<i2")),
    4: ("UINT32", np.dtype("<u4")),
    5: ("INT32", np.dtype("<i4")),
    6: ("FLOAT32", np.dtype("<f4")),
    7: ("BOOL", np.dtype("?")),
    _STRING: ("STRING", None),
    _ARRAY: ("ARRAY", None),
    10: ("UINT64", np.dtype("<u8")),
    11: ("INT64", np.dtype("<i8")),
    12: ("FLOAT64", np.dtype("<f8")),
}

_UINT64 = struct.Struct("<Q")


class GgufArray(Sequence[object]):
    """An array in a file's metadata, decoded on demand.

    This needs the file to be open.

    Attributes:
        kind: the type of its elements: ``"FLOAT32"``, ``"STRING"``, ...
        key: its key, for messages.
    """

    def __init__(
        self, path: Path, mapping: mmap.mmap, key: str, kind: str, count: int, offset: int, end: int, ends: array[int]
    ) -> None:
        self.key = key
        self.kind = kind
        self._path = path
        self._mapping = mapping
        self._count = count
        self._offset = offset
        self._end = end
        self._ends = ends  # where in the file each string ends; none for numbers

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> object:  # type: ignore[override]  # one type for both forms is enough
        return self._values()[index]

    def __iter__(self) -> Iterator[object]:
        return iter(self._values())

    def __repr__(self) -> str:
        return f"GgufArray({self.key!r}, {self.kind}, {self._count:,} elements)"

    def numbers(self) -> npt.NDArray[np.generic]:
        """Return the elements as a new array of the stored type.

        Raises:
            CheckpointError: they are strings, a BOOL is neither 0 nor 1, or the file is closed.
        """
        dtype = next(dtype for kind, dtype in VALUE_TYPES.values() if kind == self.kind)
        if dtype is None:
            raise CheckpointError(f"{self._path}: {self.key} is an array of {self.kind}; expected numbers")
        content = self._content()
        if self.kind == "BOOL" and content.translate(None, b"\0\1"):
            raise CheckpointError(f"{self._path}: {self.key} has a BOOL that is neither 0 nor 1")
        return np.frombuffer(content, dtype)

    def strings(self) -> list[str]:
        """Return the elements as strings.

        Raises:
            CheckpointError: they are not strings, one is not UTF-8, or the file is closed.
        """
        content, starts, ends = self._text()
        # Decoded all at once, which is several times as fast as one by one. If no string begins within a character
        # and all of them together are UTF-8, so is each.
        is_first = (content & 0xC0) != 0x80
        try:
            text = content.tobytes().decode()
        except UnicodeDecodeError as cause:
            raise self._not_utf8(int(np.searchsorted(ends, cause.start, side="right"))) from cause
        begins_badly = (
            (starts < ends) & ~is_first[np.minimum(starts, max(content.size - 1, 0))] if content.size else None
        )
        if begins_badly is not None and begins_badly.any():
            raise self._not_utf8(int(np.argmax(begins_badly)))
        characters = np.concatenate([[0], np.cumsum(is_first)])
        bounds = characters[np.concatenate([[0], ends])].tolist()
        return [text[start:end] for start, end in itertools.pairwise(bounds)]

    @property
    def text_bytes(self) -> int:
        """How many bytes all strings have together."""
        return self._end - self._offset - 8 * self._count

    def first(self, count: int) -> tuple[object, ...]:
        """Return the first ``count`` elements, or all if they are fewer.

        A string that is not UTF-8 is returned as bytes.
        """
        if self.kind != "STRING":
            return tuple(self.numbers()[:count].tolist())
        return tuple(_text_or_bytes(value) for value in self.bytes_strings(count))

    def bytes_strings(self, count: int | None = None) -> list[bytes]:
        """Return the elements, strings, as the bytes that the file has: the first ``count``, or all."""
        if self.kind != "STRING":
            raise CheckpointError(f"{self._path}: {self.key} is an array of {self.kind}; expected strings")
        ends = self._ends if count is None else self._ends[:count]
        starts = itertools.chain([self._offset], ends)
        return [self._read(start + 8, end) for start, end in zip(starts, ends, strict=False)]

    def _values(self) -> Sequence[object]:
        if self.kind == "STRING":
            return self.strings()
        values: list[object] = self.numbers().tolist()
        return values

    def _text(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return all strings laid end to end, and where in that each begins and ends."""
        if self.kind != "STRING":
            raise CheckpointError(f"{self._path}: {self.key} is an array of {self.kind}; expected strings")
        written = np.frombuffer(self._read(self._offset, self._end), np.uint8)
        ends = np.frombuffer(self._ends, np.int64) - self._offset
        befores = np.concatenate([[0], ends])[:-1]
        is_text = np.ones(written.size, np.bool_)
        is_text[(befores[:, None] + np.arange(8)).reshape(-1)] = False
        number = np.arange(self._count)
        return written[is_text], befores - 8 * number, ends - 8 * (number + 1)

    def _not_utf8(self, index: int) -> CheckpointError:
        value = self.bytes_strings(index + 1)[index]
        return CheckpointError(f"{self._path}: {self.key}[{index}] is not UTF-8: {value[:60]!r}")

    def _content(self) -> bytes:
        return self._read(self._offset, self._end)

    def _read(self, start: int, end: int) -> bytes:
        try:
            return self._mapping[start:end]
        except ValueError as cause:
            raise CheckpointError(f"{self._path}: the file is closed") from cause


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


@dataclass(frozen=True)
class GgufHeader:
    """A file's content without tensor data.

    See :class:`~lattice_inference.checkpoint.gguf.GgufFile`.

    ``entries`` are the ranges of bytes in which each metadata entry is written, its key included.
    """

    version: int
    metadata: Mapping[str, object]
    entries: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, TensorInfo]
    alignment: int
    data_offset: int


def parse_gguf_header(path: Path, mapping: mmap.mmap, size: int) -> GgufHeader:
    """Parse and check everything before the tensors of a mapped file of ``size`` bytes.

    Raises:
        CheckpointError: a claim is malformed, contradicts another or does not fit the file.
    """
    reader = _Reader(path, mapping, size)
    version, tensor_count, entry_count = _parse_counts(reader)
    metadata, ranges = _parse_metadata(reader, entry_count)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise reader.error(f"general.alignment is {alignment!r:.60}; expected a power of two up to {MAX_ALIGNMENT:,}")
    entries = [_parse_tensor(reader) for _ in range(tensor_count)]
    data_offset = _aligned(reader.position, alignment)
    tensors = _place_tensors(reader, entries, data_offset, alignment)
    return GgufHeader(
        version, MappingProxyType(metadata), MappingProxyType(ranges), MappingProxyType(tensors), alignment, data_offset
    )


class _Reader:
    """A position in a mapped file, and reads that never leave it."""

    def __init__(self, path: Path, mapping: mmap.mmap, size: int) -> None:
        self.path = path
        self.mapping = mapping
        self.size = size
        self.position = 0
        self.text_bytes = 0
        self.array_strings = 0

    @property
    def left(self) -> int:
        """Bytes after the position."""
        return self.size - self.position

    def error(self, problem: str) -> CheckpointError:
        """Return (not raise) the error that names the file."""
        return CheckpointError(f"{self.path}: {problem}")

    def bytes(self, count: int, what: str) -> bytes:
        """Read ``count`` bytes; ``what`` they are is for the message."""
        if count > self.left:
            raise self.error(
                f"{what} needs {count:,} bytes at byte {self.position:,}, where {self.left:,} are left: the file is "
                "truncated or damaged"
            )
        start = self.position
        self.position += count
        return self.mapping[start : self.position]

    def unsigned(self, nbytes: int, what: str) -> int:
        """Read an unsigned integer."""
        return int.from_bytes(self.bytes(nbytes, what), "little")

    def text(self, what: str, limit: int) -> str:
        """Read a string of at most ``limit`` bytes."""
        length = self.unsigned(8, f"the length of {what}")
        if length > limit:
            raise self.error(f"{what} has {length:,} bytes, and at most {limit:,} are read")
        self.text_bytes += length
        if self.text_bytes > MAX_TEXT_BYTES:
            raise self.error(f"keys and strings have more than the {MAX_TEXT_BYTES:,} bytes that are read")
        content = self.bytes(length, what)
        try:
            return content.decode()
        except UnicodeDecodeError as cause:
            raise self.error(f"{what} is not UTF-8: {content[:60]!r}") from cause


def _parse_counts(reader: _Reader) -> tuple[int, int, int]:
    """Return version, number of tensors and number of entries."""
    if reader.size < _HEADER_BYTES:
        raise reader.error(f"{reader.size} bytes are too few for a GGUF file, which begins with {_HEADER_BYTES}")
    magic = reader.bytes(4, "the magic number")
    if magic != MAGIC:
        raise reader.error(f"begins with {magic!r}; a GGUF file begins with {MAGIC!r}")
    version = reader.unsigned(4, "the version")
    if version and version & 0xFFFF == 0:
        raise reader.error(
            "is a GGUF file for big-endian machines, which are not read: get the usual one, or convert it with the gguf "
            "package's gguf_convert_endian"
        )
    if version not in (2, 3):
        raise reader.error(f"is of GGUF version {version}; versions 2 and 3 are read")
    tensor_count = reader.unsigned(8, "the number of tensors")
    entry_count = reader.unsigned(8, "the number of metadata entries")
    for what, count, cap, least in (
        ("tensors", tensor_count, MAX_TENSORS, _LEAST_TENSOR_BYTES),
        ("metadata entries", entry_count, MAX_ENTRIES, _LEAST_ENTRY_BYTES),
    ):
        if count * least > reader.left:
            raise reader.error(f"claims {count:,} {what}, for which its {reader.size:,} bytes are too few")
        if count > cap:
            raise reader.error(f"has {count:,} {what}, and at most {cap:,} are read")
    return version, tensor_count, entry_count


def _parse_metadata(reader: _Reader, count: int) -> tuple[dict[str, object], dict[str, tuple[int, int]]]:
    """Return the entries' values and where they are written."""
    metadata: dict[str, object] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for index in range(count):
        start = reader.position
        key = reader.text(f"the key of metadata entry {index}", MAX_NAME_BYTES)
        if not key:
            raise reader.error(f"metadata entry {index} has an empty key")
        if key in metadata:
            raise reader.error(f"the key {key!r:.200} stands twice in the metadata")
        type_id = reader.unsigned(4, f"the type of {key!r:.200}")
        metadata[key] = _parse_array(reader, key) if type_id == _ARRAY else _parse_value(reader, key, type_id)
        ranges[key] = (start, reader.position)
    return metadata, ranges


def _value_type(reader: _Reader, key: str, type_id: int) -> tuple[str, np.dtype[np.generic] | None]:
    try:
        return VALUE_TYPES[type_id]
    except KeyError:
        raise reader.error(f"{key!r:.200} is of the unknown value type {type_id}") from None


def _parse_value(reader: _Reader, key: str, type_id: int) -> object:
    kind, dtype = _value_type(reader, key, type_id)
    if dtype is None:
        return reader.text(f"the value of {key!r:.200}", MAX_TEXT_BYTES)
    content = reader.bytes(dtype.itemsize, f"the value of {key!r:.200}")
    if kind == "BOOL" and content not in (b"\0", b"\1"):
        raise reader.error(f"{key!r:.200} is a BOOL of {content[0]}; expected 0 or 1")
    value: object = np.frombuffer(content, dtype)[0].item()
    return value


def _parse_array(reader: _Reader, key: str) -> GgufArray:
    type_id = reader.unsigned(4, f"the element type of {key!r:.200}")
    kind, dtype = _value_type(reader, key, type_id)
    count = reader.unsigned(8, f"the number of elements of {key!r:.200}")
    if type_id == _ARRAY:
        raise reader.error(f"{key!r:.200} is an array of arrays, which the format does not have")
    least = 8 if dtype is None else dtype.itemsize
    if count * least > reader.left:
        raise reader.error(
            f"{key!r:.200} claims {count:,} elements at byte {reader.position:,}, where {reader.left:,} bytes are left"
        )
    start = reader.position
    ends = array("q")
    if dtype is None:
        reader.array_strings += count
        if reader.array_strings > MAX_ARRAY_STRINGS:
            raise reader.error(f"arrays have more than the {MAX_ARRAY_STRINGS:,} strings that are read")
        ends = _ends_of_strings(reader, key, count)
        reader.position = ends[-1] if count else start
    else:
        reader.position += count * dtype.itemsize
    return GgufArray(reader.path, reader.mapping, key, kind, count, start, reader.position, ends)


def _ends_of_strings(reader: _Reader, key: str, count: int) -> array[int]:
    """Return where each string of an array ends, having walked over their lengths."""
    mapping, position, last = reader.mapping, reader.position, reader.size - 8
    unpack = _UINT64.unpack_from
    ends = array("q")
    append = ends.append
    for _ in range(count):
        if position > last:
            position = reader.size + 1
            break
        position += 8 + unpack(mapping, position)[0]
        if position > reader.size:
            break
        append(position)
    if position > reader.size:
        raise reader.error(f"{key!r:.200} is an array of {count:,} strings that ends after the file's end")
    return ends


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """A tensor as stored: dimensions in the file's order, offset from the beginning of the data."""

    name: str
    dimensions: tuple[int, ...]
    type_id: int
    offset: int


def _parse_tensor(reader: _Reader) -> _TensorEntry:
    name = reader.text("a tensor's name", MAX_NAME_BYTES)
    if not name:
        raise reader.error("has a tensor without a name")
    rank = reader.unsigned(4, f"the rank of tensor {name!r:.200}")
    if rank > MAX_DIMENSIONS:
        raise reader.error(f"tensor {name!r:.200} has {rank:,} dimensions, and at most {MAX_DIMENSIONS} are read")
    dimensions = tuple(reader.unsigned(8, f"a dimension of tensor {name!r:.200}") for _ in range(rank))
    type_id = reader.unsigned(4, f"the type of tensor {name!r:.200}")
    offset = reader.unsigned(8, f"the offset of tensor {name!r:.200}")
    if not all(dimensions):
        raise reader.error(f"tensor {name!r:.200} has the dimensions {dimensions}, and none may be 0")
    if math.prod(dimensions) >= _INT64_END:
        raise reader.error(f"the dimensions {dimensions} of tensor {name!r:.200} overflow 64 bits")
    return _TensorEntry(name, dimensions, type_id, offset)


def _place_tensors(
    reader: _Reader, entries: Sequence[_TensorEntry], data_offset: int, alignment: int
) -> dict[str, TensorInfo]:
    """Return the tensors.

    They must follow each other without gap or overlap and end with the file. Where a type is unknown, so is the
    tensor's end; it is taken to reach to the next tensor.
    """
    tensors: dict[str, TensorInfo] = {}
    expected: int | None = 0
    for index, entry in enumerate(entries):
        if entry.name in tensors:
            raise reader.error(f"two tensors are called {entry.name!r:.200}")
        if entry.offset % alignment:
            raise reader.error(
                f"tensor {entry.name!r:.200} is at data offset {entry.offset:,}, no multiple of the alignment {alignment}"
            )
        if expected is not None and entry.offset != expected:
            raise reader.error(
                f"tensor {entry.name!r:.200} is at data offset {entry.offset:,}, where {expected:,} is expected: there is "
                "a gap or an overlap"
            )
        nbytes = _tensor_bytes(reader, entry)
        if nbytes is None:
            following = entries[index + 1].offset if index + 1 < len(entries) else reader.size - data_offset
            nbytes = following - entry.offset
            expected = None
        else:
            expected = _aligned(entry.offset + nbytes, alignment)
        if nbytes < 0 or data_offset + entry.offset + nbytes > reader.size:
            raise reader.error(
                f"tensor {entry.name!r:.200} ends at byte {data_offset + entry.offset + nbytes:,}, but the file has "
                f"{reader.size:,}: it is truncated"
            )
        known = GGML_TYPES.get(entry.type_id)
        dtype = f"ggml type {entry.type_id}" if known is None else known.name
        shape = entry.dimensions[::-1]
        tensors[entry.name] = TensorInfo(dtype, shape, reader.path, data_offset + entry.offset, nbytes)
    if expected is not None and reader.size > data_offset + expected:
        raise reader.error(
            f"{reader.size - data_offset - expected:,} bytes follow the last tensor, and nothing says what they are"
        )
    return tensors


def _tensor_bytes(reader: _Reader, entry: _TensorEntry) -> int | None:
    """Return the size of a tensor, or None where its type is unknown."""
    known = GGML_TYPES.get(entry.type_id)
    if known is None:
        return None
    row = entry.dimensions[0] if entry.dimensions else 1
    if row % known.elements:
        raise reader.error(
            f"tensor {entry.name!r:.200} is {known.name} with rows of {row:,}, no multiple of its blocks of {known.elements}"
        )
    nbytes = math.prod(entry.dimensions) // known.elements * known.nbytes
    if nbytes >= _INT64_END:
        raise reader.error(f"the size of tensor {entry.name!r:.200} overflows 64 bits")
    return nbytes


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
