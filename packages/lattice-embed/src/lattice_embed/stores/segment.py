"""One segment of a store in a folder: a NumPy file of vectors, and a JSON-lines file that says whose they are.

A segment is written once and never changed. Its two files are named after it: ``NAME.npy`` holds float32 (rows, dim);
``NAME.jsonl`` a line for each document, in the order of their rows, or for a document that was deleted.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import numpy as np

from lattice_embed.errors import StoreCorruptError
from lattice_embed.result import Float32Array
from lattice_embed.stores.document import DocumentState, DocumentVersion, StoredDocument
from lattice_embed.stores.durable_files import write_durably

__all__ = ["Deleted", "Entry", "Segment", "SegmentRecord", "write_segment"]

DELETED = "deleted"


@dataclass(frozen=True)
class Deleted:
    """What a segment holds of a document that was deleted."""

    id: str


@dataclass(frozen=True)
class SegmentRecord:
    """What the manifest says of a segment, to check its files by.

    Attributes:
        name: what its files are called.
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


@dataclass(frozen=True)
class Entry:
    """Where a segment holds a document. ``version`` is ``None`` for one that was deleted."""

    id: str
    version: DocumentVersion | None
    first_row: int
    rows: int
    line_start: int
    line_end: int


def write_segment(
    folder: Path, name: str, documents: Sequence[StoredDocument | Deleted], dimensions: int
) -> SegmentRecord:
    """Write the two files of a segment, and return the record of it. The folder has yet to be forced to the disk."""
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
        self._vectors_path = folder / f"{record.name}.npy"
        self._lines_path = folder / f"{record.name}.jsonl"
        self._lines = open(self._lines_path, "rb")  # noqa: SIM115 - open as long as the segment is
        try:
            self.vectors = self._map_vectors(dimensions)
            self.entries = list(self._read_entries())
        except BaseException:
            self.close()
            raise

    def document(self, entry: Entry) -> StoredDocument:
        """Return a document of this segment."""
        fields = self._fields(entry.line_start, self._read(entry.line_start, entry.line_end))
        try:
            rows = self.vectors[entry.first_row : entry.first_row + entry.rows]
            return StoredDocument(
                fields["id"],
                fields["text"],
                DocumentState(fields["state"]),
                np.array(rows, np.float32) if entry.rows else np.empty((0, 0), np.float32),
                spans=tuple((start, end) for start, end in fields["spans"]),
                fingerprint=fields["fingerprint"],
                reason=fields["reason"],
                truncated=fields["truncated"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._corrupt(f"the document at byte {entry.line_start} is damaged: {error!r}") from error

    def spans(self, entry: Entry) -> list[tuple[int, int]]:
        """Return what each vector of a document stands for."""
        fields = self._fields(entry.line_start, self._read(entry.line_start, entry.line_end))
        return [(start, end) for start, end in fields["spans"]]

    def verify(self) -> None:
        """Read both files and compare them with their digests.

        Raises:
            StoreCorruptError: one has changed.
        """
        for path, expected in (
            (self._vectors_path, self.record.vectors_blake3),
            (self._lines_path, self.record.lines_blake3),
        ):
            if blake3.blake3(path.read_bytes()).hexdigest() != expected:
                raise StoreCorruptError(f"{path} is not what was written: restore it from a copy")

    def close(self) -> None:
        """Close the file of lines; the mapping goes with the last array that looks into it."""
        self._lines.close()

    def _map_vectors(self, dimensions: int) -> Float32Array:
        size = self._vectors_path.stat().st_size
        if size != self.record.vectors_bytes:
            raise StoreCorruptError(f"{self._vectors_path} has {size:,} bytes instead of {self.record.vectors_bytes:,}")
        if self.record.rows == 0:
            return np.empty((0, dimensions), np.float32)
        try:
            mapped = np.load(self._vectors_path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise StoreCorruptError(f"{self._vectors_path} is no NumPy file: {error}") from error
        if mapped.dtype != np.dtype("<f4") or mapped.shape != (self.record.rows, dimensions):
            raise StoreCorruptError(
                f"{self._vectors_path} holds {mapped.dtype} of shape {mapped.shape} instead of float32 of shape "
                f"{(self.record.rows, dimensions)}"
            )
        return np.asarray(mapped)

    def _read_entries(self) -> Iterator[Entry]:
        data = self._lines.read()
        if len(data) != self.record.lines_bytes or blake3.blake3(data).hexdigest() != self.record.lines_blake3:
            raise StoreCorruptError(f"{self._lines_path} is not what was written: restore it from a copy")
        row = start = 0
        for line in data.splitlines(keepends=True):
            fields = self._fields(start, line)
            end = start + len(line)
            try:
                if fields["state"] == DELETED:
                    yield Entry(fields["id"], None, row, 0, start, end)
                else:
                    count = len(fields["spans"])
                    version = DocumentVersion(
                        fields["id"],
                        fields["digest"],
                        DocumentState(fields["state"]),
                        fields["fingerprint"],
                        fields["reason"],
                    )
                    yield Entry(fields["id"], version, row, count, start, end)
                    row += count
            except (KeyError, TypeError, ValueError) as error:
                raise self._corrupt(f"the line at byte {start} is damaged: {error!r}") from error
            start = end
        if row != self.record.rows:
            raise self._corrupt(f"its documents have {row} vectors, {self.record.rows} are there")

    def _read(self, start: int, end: int) -> bytes:
        return os.pread(self._lines.fileno(), end - start, start)  # a fork shares the file's position

    def _fields(self, start: int, line: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise self._corrupt(f"the line at byte {start} is no JSON: {error}") from error
        if not isinstance(fields, dict):
            raise self._corrupt(f"the line at byte {start} is no JSON object")
        return fields

    def _corrupt(self, what: str) -> StoreCorruptError:
        return StoreCorruptError(f"{self._lines_path}: {what}")


def _fields_of(document: StoredDocument | Deleted) -> dict[str, Any]:
    if isinstance(document, Deleted):
        return {"id": document.id, "state": DELETED}
    version = document.version
    return {
        "id": document.id,
        "state": document.state.value,
        "digest": version.digest,
        "fingerprint": document.fingerprint,
        "reason": document.reason,
        "truncated": document.truncated,
        "spans": document.spans,
        "text": document.text,
    }
