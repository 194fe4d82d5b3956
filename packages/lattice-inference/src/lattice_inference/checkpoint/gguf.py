"""GGUF files, single or split, as read-only views of the mapped files.

What a file claims is checked by :mod:`lattice_inference.checkpoint.gguf_header`. Tensors are handed out as those of
safetensors files are (:class:`~lattice_inference.checkpoint.mapped_tensors.MappedTensors`), with their dimensions in
NumPy's order, the longest stride first; the file states them the other way round.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Mapping
from pathlib import Path

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.gguf_header import MAGIC, GgufHeader, parse_gguf_header
from lattice_inference.checkpoint.mapped_tensors import MappedTensors, open_mapped
from lattice_inference.errors import CheckpointError

__all__ = ["MAX_PARTS", "GgufFile", "gguf_parts", "open_gguf", "open_gguf_file"]

#: Most files that a model may be split into.
MAX_PARTS = 1_000

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<suffix>\.gguf)", re.IGNORECASE)


class GgufFile(MappedTensors):
    """One open, mapped GGUF file. Made by :func:`open_gguf_file`; a context manager.

    Attributes:
        version: 2 or 3.
        alignment: what tensors' offsets are multiples of.
        data_offset: where tensors begin in the file.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, size: int, header: GgufHeader) -> None:
        super().__init__(path, mapping, size, header.tensors)
        self._metadata = header.metadata
        self._entries = header.entries
        self.version: int = header.version
        self.alignment: int = header.alignment
        self.data_offset: int = header.data_offset

    @property
    def metadata(self) -> Mapping[str, object]:
        """The metadata: ``int``, ``float``, ``bool`` and ``str`` values, and arrays.

        The width of numbers in the file does not matter. An array is a
        :class:`~lattice_inference.checkpoint.gguf_header.GgufArray`, decoded on demand.
        """
        return self._metadata

    def encoded_entry(self, key: str) -> bytes:
        """Return a metadata entry as stored: key, type and value.

        Raises CheckpointError if there is none.
        """
        if key not in self._entries:
            raise CheckpointError(f"{self.path}: has no metadata entry {key!r:.200}")
        start, end = self._entries[key]
        return self._open_mapping()[start:end]


def open_gguf_file(path: str | os.PathLike[str]) -> GgufFile:
    """Open and map one GGUF file of version 2 or 3, after checking everything that it claims.

    Raises:
        ModelNotFoundError: the file does not exist.
        CheckpointError: it is not a well-formed GGUF file, or one for big-endian machines; the message says what is wrong.
    """

    def read(path: Path, mapping: mmap.mmap, size: int) -> GgufFile:
        return GgufFile(path, mapping, size, parse_gguf_header(path, mapping, size))

    return open_mapped(Path(path), read, magic=MAGIC)


def open_gguf(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model's GGUF file, or, where ``path`` is one part of a split model, all its parts.

    The metadata are the first part's, which has all that the model needs.

    Raises:
        ModelNotFoundError: the file, or another part, does not exist.
        CheckpointError: a file is malformed, or the parts do not belong together.
    """
    path = Path(path)
    with contextlib.ExitStack() as opened:
        named = opened.enter_context(open_gguf_file(path))
        files = [named]
        count = _split_field(named, "split.count", 1)
        if count > 1:
            paths = _part_paths(named, count)
            files = [named if part == path else opened.enter_context(open_gguf_file(part)) for part in paths]
            _check_parts(files)
        opened.pop_all()
        return Checkpoint(path, tuple(files), files[0].metadata)


def gguf_parts(path: Path) -> list[Path]:
    """Return all files of a GGUF file's model, by its name.

    They are all parts, or the file alone.
    """
    match = _PART_NAME.fullmatch(path.name)
    if match is None or not 0 < int(match["count"]) <= MAX_PARTS:
        return [path]
    count = int(match["count"])
    return [
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}{match['suffix']}") for number in range(1, count + 1)
    ]


def _split_field(file: GgufFile, name: str, default: int) -> int:
    value = file.metadata.get(name, default)
    if type(value) is not int or not 0 <= value <= MAX_PARTS:
        raise CheckpointError(f"{file.path}: {name} is {value!r:.60}; expected an integer from 0 to {MAX_PARTS:,}")
    return value


def _part_paths(file: GgufFile, count: int) -> list[Path]:
    match = _PART_NAME.fullmatch(file.path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{file.path}: is one of {count} parts, which are found by their names, NAME-00001-of-{count:05}.gguf and so "
            "on: give it back its name"
        )
    return gguf_parts(file.path)


def _check_parts(files: list[GgufFile]) -> None:
    holder: dict[str, Path] = {}
    for number, file in enumerate(files):
        found = _split_field(file, "split.no", -1), _split_field(file, "split.count", -1)
        if found != (number, len(files)):
            raise CheckpointError(
                f"{file.path}: split.no and split.count are {found[0]} and {found[1]}; as the name says they should be "
                f"{number} and {len(files)}"
            )
        for name in file.names():
            if name in holder:
                raise CheckpointError(f"{file.path}: tensor {name!r} is in {holder[name].name}, too")
            holder[name] = file.path
    promised = files[0].metadata.get("split.tensors.count", len(holder))
    if promised != len(holder):
        raise CheckpointError(
            f"{files[0].path}: the parts hold {len(holder):,} tensors, not the {promised!r:.20} promised"
        )
