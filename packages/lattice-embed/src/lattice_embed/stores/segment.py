"""One segment of a store in a folder: a NumPy file of vectors and a JSON-lines index.

A segment is written once and never changed. Its two files are named after it: ``NAME.npy`` holds float32 (rows, dim);
``NAME.jsonl`` a line for each document, in the order of their rows, or for a document that was deleted.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import blake3
import numpy as np

from lattice_embed.errors import StoreCorruptError
from lattice_embed.result import Float32Array
from lattice_embed.stores.document import DocumentState, DocumentVersion, StoredDocument, check_id
from lattice_embed.stores.durable_files import write_durably

__all__ = ["Deleted", "Entry", "Segment", "SegmentRecord", "write_segment"]

DELETED = "deleted"
PREFIX = "segment-"
VECTORS_DIGEST = "vectors_blake3"
"""A line's field: 128 bits over the document's vectors, so that a copy of a document is what was stored. Segments
of manifests of version 1 may be without it."""

MOST_BYTES = 2**63 - 1

_NAME = re.compile(r"segment-[0-9]{8,18}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 4096


@dataclass(frozen=True)
class Deleted:
    """What a segment holds of a document that was deleted."""

    id: str


@dataclass(frozen=True)
class SegmentRecord:
    """What the manifest says of a segment, to check its files by.

    Attributes:
        name: what its files are called: ``segment-`` and a number.
        documents: lines, deleted documents included.
        rows: vectors.
        vectors_bytes, lines_bytes: the files' sizes.
        vectors_blake3, lines_blake3: their digests, 256 bits in hex.
    """

    name: str
    documents: int
    rows: int
    vectors_bytes: int
    lines_bytes: int
    vectors_blake3: str
    lines_blake3: str

    @property
    def number(self) -> int:
        """The number in the name."""
        return int(self.name.removeprefix(PREFIX))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> SegmentRecord:
        """Return the record that a manifest holds.

        Raises:
            ValueError, TypeError: a field is missing, unknown or no such value; the name is not a plain one of ours.
        """
        record = cls(**fields)
        if not isinstance(record.name, str) or not _NAME.fullmatch(record.name):
            raise ValueError(f"the segment's name is {record.name!r:.80}; it must be {PREFIX!r} and a number")
        for name in ("documents", "rows", "vectors_bytes", "lines_bytes"):
            value = getattr(record, name)
            if type(value) is not int or not 0 <= value <= MOST_BYTES:
                raise ValueError(f"{record.name}: {name} is {value!r:.40}")
        for name in ("vectors_blake3", "lines_blake3"):
            value = getattr(record, name)
            if not isinstance(value, str) or not _DIGEST.fullmatch(value):
                raise ValueError(f"{record.name}: {name} is {value!r:.80}")
        return record


@dataclass(frozen=True)
class Entry:
    """Where a segment holds a document. ``version`` is ``None`` for one that was deleted.

    The checksum is of the line as it was when the whole file was compared with its digest.
    """

    id: str
    version: DocumentVersion | None
    first_row: int
    rows: int
    line_start: int
    line_end: int
    line_checksum: int


def write_segment(
    folder: Path, name: str, documents: Sequence[StoredDocument | Deleted], dimensions: int
) -> SegmentRecord:
    """Write the two files of a segment and return its record.

    The folder is not yet flushed to disk.
    """
    lines = bytearray()
    matrices = []
    for document in documents:
        lines += json.dumps(_fields_of(document)).encode() + b"\n"
        if isinstance(document, StoredDocument) and len(document.vectors):
            matrices.append(document.vectors)
    vectors = np.concatenate(matrices) if matrices else np.empty((0, dimensions), np.float32)
    array = io.BytesIO()
    np.save(array, vectors.astype("<f4", copy=False), allow_pickle=False)
    write_durably(folder / f"{name}.npy", array.getbuffer())
    write_durably(folder / f"{name}.jsonl", bytes(lines))
    return SegmentRecord(
        name=name,
        documents=len(documents),
        rows=len(vectors),
        vectors_bytes=array.getbuffer().nbytes,
        lines_bytes=len(lines),
        vectors_blake3=blake3.blake3(array.getbuffer()).hexdigest(),
        lines_blake3=blake3.blake3(lines).hexdigest(),
    )


class Segment:
    """An open segment: vectors mapped into memory, entries of its documents.

    Raises:
        FileNotFoundError: a file is gone; another process may have merged the segment into a larger one.
        StoreCorruptError: a file is not what the record says.
    """

    def __init__(self, folder: Path, record: SegmentRecord, dimensions: int) -> None:
        self.record = record
        self._dimensions = dimensions
        self._vectors_path = folder / f"{record.name}.npy"
        self._lines_path = folder / f"{record.name}.jsonl"
        self._lines = open(self._lines_path, "rb")  # noqa: SIM115 - open as long as the segment is
        try:
            self.vectors: Float32Array = self._map_vectors()
            self.entries: list[Entry] = list(self._read_entries())
        except BaseException:
            self.close()
            raise

    def document(self, entry: Entry) -> StoredDocument:
        """Return a document of this segment."""
        return self._document(entry, self._line(entry), self.vectors)

    def spans(self, entry: Entry) -> list[tuple[int, int]]:
        """Return what each vector of a document stands for."""
        return _spans_of(self._fields(entry.line_start, self._line(entry)))

    def sound_documents(self, entries: Sequence[Entry]) -> list[StoredDocument]:
        """Return documents to be written again.

        The files were read whole and compared with their digests.

        Raises:
            StoreCorruptError: one has changed.
        """
        try:
            vectors, lines = self._sound_files()
        except FileNotFoundError as error:
            raise StoreCorruptError(f"{error.filename} is gone: restore it from a copy") from error
        rows = np.empty((0, self._dimensions), np.float32)
        if self.record.rows:
            rows = np.frombuffer(vectors, "<f4", offset=self._vectors_start).reshape(-1, self._dimensions)
        return [self._document(entry, lines[entry.line_start : entry.line_end], rows) for entry in entries]

    def verify(self) -> None:
        """Read both files and compare them with their digests.

        Raises:
            StoreCorruptError: one has changed.
        """
        self._sound_files()

    def close(self) -> None:
        """Close the file of lines; the mapping goes with the last array that looks into it."""
        self._lines.close()

    def _sound_files(self) -> tuple[bytes, bytes]:
        contents = []
        for path, expected in (
            (self._vectors_path, self.record.vectors_blake3),
            (self._lines_path, self.record.lines_blake3),
        ):
            contents.append(path.read_bytes())
            if blake3.blake3(contents[-1]).hexdigest() != expected:
                raise StoreCorruptError(f"{path} is not what was written: restore it from a copy")
        return contents[0], contents[1]

    def _document(self, entry: Entry, line: bytes, vectors: Float32Array) -> StoredDocument:
        fields = self._fields(entry.line_start, line)
        try:
            rows = vectors[entry.first_row : entry.first_row + entry.rows]
            document = StoredDocument(
                fields["id"],
                fields["text"],
                DocumentState(fields["state"]),
                np.array(rows, np.float32) if entry.rows else np.empty((0, 0), np.float32),
                spans=tuple(_spans_of(fields)),
                fingerprint=fields["fingerprint"],
                reason=fields["reason"],
                truncated=fields["truncated"] is True,
            )
            if document.version != entry.version:
                raise ValueError("its text is not its digest's")
            if fields.get(VECTORS_DIGEST, digest := _digest_of_vectors(document)) != digest:
                raise ValueError("its vectors are not what was written: restore the segment from a copy")
            return document
        except (KeyError, TypeError, ValueError) as error:
            raise self._corrupt(f"the document {entry.id!r} at byte {entry.line_start} is damaged: {error}") from error

    def _map_vectors(self) -> Float32Array:
        """Map the file of vectors.

        Its header must be the one that NumPy writes for what the record says.
        """
        size = self._vectors_path.stat().st_size
        if size != self.record.vectors_bytes:
            raise StoreCorruptError(f"{self._vectors_path} has {size:,} bytes instead of {self.record.vectors_bytes:,}")
        shape = (self.record.rows, self._dimensions)
        with open(self._vectors_path, "rb") as file:
            start = file.read(10)
            length = int.from_bytes(start[8:], "little")
            header = file.read(min(length, _MOST_HEADER_BYTES))
        expected = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
        self._vectors_start = 10 + length
        if (
            start[:8] != _MAGIC + b"\1\0"
            or header.rstrip() != expected
            or size != self._vectors_start + 4 * math.prod(shape)
        ):
            raise StoreCorruptError(f"{self._vectors_path} is no NumPy file of float32 numbers of shape {shape}")
        if self.record.rows == 0:
            return np.empty(shape, np.float32)
        try:
            return np.asarray(np.memmap(self._vectors_path, "<f4", "r", offset=self._vectors_start, shape=shape))
        except ValueError as error:  # it became shorter since its size was read
            raise StoreCorruptError(f"{self._vectors_path} cannot be mapped: {error}") from error

    def _read_entries(self) -> Iterator[Entry]:
        data = self._lines.read()
        if len(data) != self.record.lines_bytes or blake3.blake3(data).hexdigest() != self.record.lines_blake3:
            raise StoreCorruptError(f"{self._lines_path} is not what was written: restore it from a copy")
        row = start = count = 0
        for line in data.splitlines(keepends=True):
            fields = self._fields(start, line)
            end = start + len(line)
            try:
                document_id = check_id(fields["id"])
                rows, version = 0, None
                if fields["state"] != DELETED:
                    rows = len(_spans_of(fields))
                    texts = [fields[name] for name in ("digest", "fingerprint", "reason")]
                    if not all(isinstance(text, str) for text in texts):
                        raise TypeError("a text that is no string")
                    digest, fingerprint, reason = texts
                    version = DocumentVersion(document_id, digest, DocumentState(fields["state"]), fingerprint, reason)
            except (KeyError, TypeError, ValueError) as error:
                raise self._corrupt(f"the line at byte {start} is damaged: {error!r}") from error
            yield Entry(document_id, version, row, rows, start, end, crc32(line))
            row, start, count = row + rows, end, count + 1
        if (row, count) != (self.record.rows, self.record.documents):
            raise self._corrupt(
                f"it has {count} documents with {row} vectors instead of {self.record.documents} with {self.record.rows}"
            )

    def _line(self, entry: Entry) -> bytes:
        """Read a line again.

        The mapped or cached file may have changed since it was compared with its digest.
        """
        line = os.pread(
            self._lines.fileno(), entry.line_end - entry.line_start, entry.line_start
        )  # forks share the position
        if crc32(line) != entry.line_checksum:
            raise self._corrupt(f"the line at byte {entry.line_start} is not what was written: restore it from a copy")
        return line

    def _fields(self, start: int, line: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._corrupt(f"the line at byte {start} is no JSON: {error}") from error
        if not isinstance(fields, dict):
            raise self._corrupt(f"the line at byte {start} is no JSON object")
        return fields

    def _corrupt(self, what: str) -> StoreCorruptError:
        return StoreCorruptError(f"{self._lines_path}: {what}")


def _digest_of_vectors(document: StoredDocument) -> str:
    return blake3.blake3(document.vectors.astype("<f4", copy=False).tobytes()).hexdigest(16)


def _spans_of(fields: Mapping[str, Any]) -> list[tuple[int, int]]:
    spans = fields["spans"]
    if not isinstance(spans, list) or not all(
        isinstance(span, list) and len(span) == 2 and type(span[0]) is type(span[1]) is int for span in spans
    ):
        raise ValueError("its spans are no pairs of whole numbers")
    return [(start, end) for start, end in spans]


def _fields_of(document: StoredDocument | Deleted) -> dict[str, Any]:
    if isinstance(document, Deleted):
        return {"id": document.id, "state": DELETED}
    version = document.version
    return {
        "id": document.id,
        "state": document.state.value,
        "digest": version.digest,
        VECTORS_DIGEST: _digest_of_vectors(document),
        "fingerprint": document.fingerprint,
        "reason": document.reason,
        "truncated": document.truncated,
        "spans": document.spans,
        "text": document.text,
    }
