"""The header of a safetensors file: parsed, and every claim checked against the file.

The format is eight bytes of little-endian header length, a JSON object that maps tensor names to
``{"dtype", "shape", "data_offsets"}`` (and ``"__metadata__"`` to a flat map of strings), then the tensors' bytes.
Whatever the reference implementation refuses is refused here. Stricter than it are: the caps below, a tensor name or
metadata key that stands twice, fields that the format does not define, and a tensor given as an array instead of an
object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from lattice_inference.checkpoint.dtypes import DTYPES
from lattice_inference.checkpoint.json_file import parse_json
from lattice_inference.checkpoint.mapped_tensors import TensorInfo
from lattice_inference.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_HEADER_BYTES",
    "MAX_HEADER_DEPTH",
    "MAX_METADATA_CHARACTERS",
    "MAX_RANK",
    "MAX_TENSORS",
    "Header",
    "parse_header",
]

#: Largest header in bytes. The reference implementation stops at 100,000,000, yet a legitimate header of 132,095,296
#: bytes (1.3 million tensors) has been seen; this is twice that. A header is never larger than the file that holds it,
#: so the cap bounds what a large file can cost, and a small file costs nothing.
MAX_HEADER_BYTES = 256 * 1024 * 1024

#: Deepest nesting of a header: the object, a tensor's object, a list in it.
MAX_HEADER_DEPTH = 3

#: Most tensors in one file.
MAX_TENSORS = 2_000_000

#: Most dimensions of a tensor: what NumPy 1 can represent.
MAX_RANK = 32

#: Most characters in all keys and values of the metadata together.
MAX_METADATA_CHARACTERS = 16 * 1024 * 1024

# Sizes in the format are unsigned 64-bit integers, and arithmetic on them must not leave that range.
_UINT64_END = 2**64

_LENGTH_BYTES = 8
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))


@dataclass(frozen=True)
class Header:
    """A checked header: the tensors in the order of the header, and the free-form metadata."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


def header_length(prefix: bytes, file_size: int, path: Path) -> int:
    """Return the header's length from the file's first eight bytes.

    It is checked against size and cap.
    """
    if len(prefix) < _LENGTH_BYTES:
        raise CheckpointError(
            f"{path}: {file_size} bytes are too few for a safetensors file, which begins with 8 of length"
        )
    length = int.from_bytes(prefix[:_LENGTH_BYTES], "little")
    if length > file_size - _LENGTH_BYTES:
        raise CheckpointError(
            f"{path}: the header claims {length:,} bytes, but only {file_size - _LENGTH_BYTES:,} follow: "
            "the file is truncated or is not in the safetensors format"
        )
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: the header has {length:,} bytes, and at most {MAX_HEADER_BYTES:,} are read")
    return length


def parse_header(content: bytes, file_size: int, path: Path) -> Header:
    """Parse and check a header.

    Args:
        content: the header's JSON bytes, without the eight bytes of length.
        file_size: size of the whole file in bytes.
        path: the file, for messages and for :attr:`TensorInfo.file`.

    Raises:
        CheckpointError: any claim of the header is malformed, contradicts another or does not fit the file.
    """
    raw = parse_json(content, source=f"{path} (header)", max_depth=MAX_HEADER_DEPTH, error=CheckpointError)
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object")
    metadata = _parse_metadata(raw.pop("__metadata__", None), path)
    if len(raw) > MAX_TENSORS:
        raise CheckpointError(f"{path}: {len(raw):,} tensors, and at most {MAX_TENSORS:,} are read")
    data_start = _LENGTH_BYTES + len(content)
    tensors = cast("dict[str, TensorInfo]", raw)
    for name, entry in raw.items():
        # In place, so that a large header's parsed form goes away entry by entry.
        try:
            tensors[name] = _parse_tensor(entry, data_start, path)
        except _EntryError as cause:
            raise CheckpointError(f"{path}: tensor {_shown(name)}: {cause}") from None
    _check_coverage(tensors, data_start, file_size, path)
    return Header(MappingProxyType(tensors), MappingProxyType(metadata))


def _parse_metadata(raw: object, path: Path) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: __metadata__ is not an object of strings")
    characters = 0
    for key, value in raw.items():
        if not isinstance(value, str):
            raise CheckpointError(f"{path}: __metadata__[{key!r:.80}] is {_shown(value)}, and only strings are allowed")
        characters += len(key) + len(value)
    if characters > MAX_METADATA_CHARACTERS:
        raise CheckpointError(
            f"{path}: __metadata__ has {characters:,} characters, and at most {MAX_METADATA_CHARACTERS:,} are read"
        )
    return raw


class _EntryError(Exception):
    """What is wrong with one tensor's entry; the caller adds which tensor of which file."""


def _parse_tensor(raw: object, data_start: int, path: Path) -> TensorInfo:
    if not isinstance(raw, dict):
        raise _EntryError(f"its entry is {_shown(raw)}, and an object is needed")
    if raw.keys() != _FIELDS:
        missing = sorted(_FIELDS - raw.keys())
        if missing:
            raise _EntryError(f"its entry lacks {', '.join(missing)}")
        raise _EntryError(f"its entry has the unknown field {_shown(min(raw.keys() - _FIELDS))}")

    dtype_name = raw["dtype"]
    dtype = DTYPES.get(dtype_name) if isinstance(dtype_name, str) else None
    if dtype is None:
        raise _EntryError(f"unknown dtype {_shown(dtype_name)}; known are {', '.join(DTYPES)}")

    shape = raw["shape"]
    if not isinstance(shape, list) or not _are_sizes(shape):
        raise _EntryError(f"shape {_shown(shape)} is not a list of non-negative integers")
    if len(shape) > MAX_RANK:
        raise _EntryError(f"{len(shape)} dimensions, and at most {MAX_RANK} are read")
    # NumPy counts an array's bytes as if a length of zero were one, and the format forbids an overflow even before a
    # zero. So zeros are left out of the checked size.
    nonzero_elements = math.prod([length for length in shape if length])
    if nonzero_elements * dtype.bits >= _UINT64_END:
        raise _EntryError(f"the size of shape {_shown(shape)} in {dtype.name} overflows 64 bits")
    elements = nonzero_elements if all(shape) else 0

    offsets = raw["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not _are_sizes(offsets):
        raise _EntryError(f"data_offsets {_shown(offsets)} is not a pair of non-negative integers")
    begin, end = offsets
    if begin > end:
        raise _EntryError(f"data_offsets begin at {begin:,} and end before that, at {end:,}")
    if elements * dtype.bits != (end - begin) * 8:
        raise _EntryError(
            f"shape {_shown(shape)} in {dtype.name} needs {elements * dtype.bits / 8:,.15g} bytes, "
            f"but data_offsets span {end - begin:,}"
        )
    return TensorInfo(dtype.name, tuple(shape), path, data_start + begin, end - begin)


def _check_coverage(tensors: Mapping[str, TensorInfo], data_start: int, file_size: int, path: Path) -> None:
    """Check that the tensors cover the file's data exactly.

    No gap, no overlap, nothing missing, nothing after them.
    """
    covered = data_start
    previous: str | None = None
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if info.offset != covered:
            problem = "leaves a gap after" if info.offset > covered else "overlaps"
            before = "the header" if previous is None else f"tensor {_shown(previous)}"
            raise CheckpointError(
                f"{path}: tensor {_shown(name)} {problem} {before}: it begins at data offset "
                f"{info.offset - data_start:,} where {covered - data_start:,} is expected"
            )
        covered += info.nbytes
        previous = name
    last = "the header" if previous is None else f"tensor {_shown(previous)}"
    if covered > file_size:
        raise CheckpointError(
            f"{path}: {last} ends at byte {covered:,}, but the file has {file_size:,}: it is truncated"
        )
    if covered < file_size:
        raise CheckpointError(f"{path}: {file_size - covered:,} bytes follow {last}, and nothing says what they are")


def _are_sizes(values: list[Any]) -> bool:
    """Whether all are non-negative integers of 64 bits.

    Called once per list, since there are thousands of tensors.
    """
    return set(map(type, values)) <= {int} and (not values or (min(values) >= 0 and max(values) < _UINT64_END))


def _shown(value: object) -> str:
    """Return ``value`` for a message, quoted and cut: a hostile name may have megabytes."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 200 else f"{value[:200]!r}..."
    if isinstance(value, list):
        return (
            repr(value)
            if len(value) <= 40 and not any(isinstance(item, (list, dict, str)) for item in value)
            else "a list"
        )
    return "an object" if isinstance(value, dict) else repr(value)[:200]
