"""A vector store in a plain folder of NumPy files.

The folder holds segments (:mod:`lattice_embed.stores.segment`) and ``store.json``, the manifest: the space, and the
segments from the oldest to the newest; of a document in several, the newest holds. A write adds a segment and then
replaces the manifest, which is the moment it happens. Eight segments of about one size are merged. So there are few
segments, and each document is written about log8(n) times.

Before a merge, a segment is read whole and compared with the digests in the manifest. The manifest has a digest of
all that it says. So damage is found, and never written again with a digest that fits it.
"""

from __future__ import annotations

import bisect
import json
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import blake3
import numpy as np
import numpy.typing as npt

from lattice_embed.errors import StoreCorruptError, StoreError
from lattice_embed.stores.document import DocumentVersion, Match, StoredDocument
from lattice_embed.stores.durable_files import exclusive_lock, place_of, sync_folder, write_durably
from lattice_embed.stores.exact_search import SearchBlock, check_query, nearest_documents
from lattice_embed.stores.segment import Deleted, Entry, Segment, SegmentRecord, write_segment
from lattice_embed.stores.space import VectorSpace, checked_space
from lattice_embed.stores.vector_store import DEFAULT_SCAN
from lattice_embed.stores.writing import check_after, check_documents, check_ids
from lattice_embed.validation import check_limit
from lattice_inference.checkpoint.atomic_file import remove_leftovers

__all__ = ["NumpyVectorStore"]

MANIFEST = "store.json"
LOCK = "store.lock"
FORMAT = "lattice-vector-store"
VERSION = 2
OLDEST_VERSION = 1
"""Its manifest has no digest; the next write gives it one."""

DIGEST = "blake3"
"""The manifest's field that holds the digest of all others."""

MOST_SEGMENTS = 10**18 - 1
FAN_IN = 8
"""Segments of one size class that are merged into one of the next."""

_live: weakref.WeakSet[NumpyVectorStore] = weakref.WeakSet()

READ_ATTEMPTS = 20
"""How often a reader starts again because a writer removed a segment that it was about to open."""


class NumpyVectorStore:
    """A :class:`VectorStore` in a folder that any program with NumPy can read.

    Vectors are mapped, not read, so that a store may be larger than memory. A context manager.

    Args:
        path: a folder that :meth:`create` made.

    Raises:
        StoreError: there is no such store, or it cannot be read.
        StoreCorruptError: a file is damaged.

    >>> import tempfile
    >>> from lattice_embed.stores import StoredDocument
    >>> with tempfile.TemporaryDirectory() as folder, NumpyVectorStore.create(f"{folder}/store") as store:
    ...     store.put([StoredDocument.pending("1", "A cat sleeps."), StoredDocument.pending("2", "Stocks fell.")])
    ...     len(store), [document.text for document in store.get(["2"])]
    (2, ['Stocks fell.'])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._folder = place_of(path)
        self._lock = threading.RLock()
        self._closed = False
        self._manifest = b""
        self._next_number = 1
        self._segments: dict[str, Segment] = {}
        self._order: list[str] = []
        self._entries: dict[str, tuple[Segment, Entry]] = {}
        self._ids: list[str] | None = None
        self._blocks: list[SearchBlock] | None = None
        self._names: list[str] = []
        if not (self._folder / MANIFEST).is_file():
            raise StoreError(f"there is no vector store in {self._folder}: it has no {MANIFEST}")
        self._space = VectorSpace()
        with self._reading():
            pass
        _live.add(self)

    @classmethod
    def create(cls, path: str | os.PathLike[str], space: VectorSpace | None = None) -> Self:
        """Make a new, empty store; without a space, one of texts only.

        Raises:
            StoreError: there is something at ``path`` already, or it cannot be written.
        """
        space, folder = checked_space(space), place_of(path)
        if not folder.parent.is_dir():
            raise StoreError(f"{folder}: the folder {folder.parent} does not exist")
        try:
            folder.mkdir(exist_ok=True)
            with exclusive_lock(folder / LOCK):
                remove_leftovers(folder)
                if {entry.name for entry in folder.iterdir()} - {LOCK}:
                    raise StoreError(f"{folder} is not empty: open the store in it, or name another folder")
                _write_manifest(folder, space, [], 1)
            sync_folder(folder.parent)
        except FileExistsError:
            raise StoreError(f"{folder} is a file: name a folder") from None
        except OSError as error:
            raise StoreError(f"{folder} cannot be written: {error}") from error
        return cls(folder)

    @property
    def path(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def space(self) -> VectorSpace:
        """The embedding space of the vectors."""
        return self._space

    def put(self, documents: Sequence[StoredDocument]) -> None:
        """Store documents at once or not at all; each replaces the one with its id.

        Raises:
            SpaceMismatchError, DimensionMismatchError: vectors of another space.
            InvalidInputError: two documents with one id.
        """
        checked = check_documents(self._space, documents)
        if checked:
            with self._writing():
                self._append(checked)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents, and return how many there were."""
        checked = check_ids(ids)
        with self._writing():
            there = [document_id for document_id in dict.fromkeys(checked) if document_id in self._entries]
            if there:
                self._append([Deleted(document_id) for document_id in there])
            return len(there)

    def get(self, ids: Sequence[str]) -> list[StoredDocument | None]:
        """Return documents in the order of ``ids``, ``None`` for one that is not there.

        Raises:
            StoreCorruptError: a document's line is damaged.
        """
        checked = check_ids(ids)
        with self._reading():
            found = (self._entries.get(document_id) for document_id in checked)
            return [None if place is None else place[0].document(place[1]) for place in found]

    def versions(self, ids: Sequence[str]) -> list[DocumentVersion | None]:
        """Return what :meth:`get` does, without texts and vectors."""
        checked = check_ids(ids)
        with self._reading():
            found = (self._entries.get(document_id) for document_id in checked)
            return [None if place is None else place[1].version for place in found]

    def scan(self, *, after: str = "", limit: int = DEFAULT_SCAN) -> list[DocumentVersion]:
        """Return up to ``limit`` documents with ids after ``after``, in order.

        An empty list at the end.
        """
        check_after(after)
        check_limit("limit", limit)
        with self._reading():
            if self._ids is None:
                self._ids = sorted(self._entries)
            first = bisect.bisect_right(self._ids, after)
            versions = (self._entries[name][1].version for name in self._ids[first : first + limit])
            return [version for version in versions if version is not None]

    def query(self, vector: npt.ArrayLike, k: int = 10, *, fingerprint: str | None = None) -> list[Match]:
        """Return the ``k`` documents nearest to ``vector``, best first; exact.

        Raises:
            SpaceMismatchError, DimensionMismatchError, InvalidInputError: the query is not one of this store's space.
        """
        query, wanted = check_query(self._space, vector, k, fingerprint)
        with self._reading():
            matches = []
            for best in nearest_documents(self._search_blocks(), query, wanted, self._names.__getitem__):
                segment, entry = self._entries[self._names[best.owner]]
                chunk = best.row - entry.first_row
                matches.append(Match(entry.id, best.score, chunk, *segment.spans(entry)[chunk]))
            return matches

    def __len__(self) -> int:
        with self._reading():
            return len(self._entries)

    def verify(self) -> int:
        """Read everything and compare it with its digests; return how many documents were checked.

        Raises:
            StoreCorruptError: something is damaged.
        """
        for _ in range(READ_ATTEMPTS):
            with suppress(FileNotFoundError), self._reading():  # a writer may merge segments while they are read
                for segment in self._segments.values():
                    segment.verify()
                return len(self._entries)
        raise self._lacks_segments()

    def close(self) -> None:
        """Release the files. Calling it twice is allowed."""
        with self._lock:
            self._closed = True
            for segment in self._segments.values():
                segment.close()
            self._segments, self._entries, self._blocks, self._ids = {}, {}, None, None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"NumpyVectorStore({self.path!r}, model={self._space.model!r})"

    def _forget_parent(self) -> None:
        """In a fork: another thread of the parent may have been at what is in memory just then."""
        self._lock = threading.RLock()
        for segment in self._segments.values():
            segment.close()
        self._manifest, self._segments, self._order, self._entries = b"", {}, [], {}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            try:
                self._refresh()
                yield
            except FileNotFoundError:
                raise
            except OSError as error:
                raise StoreError(f"{self._folder} cannot be read: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            self._check_open()
            try:
                with exclusive_lock(self._folder / LOCK):
                    self._refresh()
                    yield
            except OSError as error:
                raise StoreError(f"{self._folder} cannot be written: {error}") from error

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._folder} was closed: open it again")

    def _append(self, documents: Sequence[StoredDocument | Deleted]) -> None:
        """Add a segment, merge where that is due, and replace the manifest. The lock is held."""
        records = [self._segments[name].record for name in self._order]
        number = self._next_number
        self._remove_strays({record.name for record in records})
        records.append(write_segment(self._folder, _segment_name(number), documents, self._space.dimensions))
        number += 1
        with ExitStack() as opened:
            while (count := _due_for_merging(records)) > 0:
                merged = _merged(
                    [
                        self._segments.get(record.name) or self._open_segment(record, opened)
                        for record in records[-count:]
                    ],
                    keep_deleted=count < len(records),
                )
                records[-count:] = [write_segment(self._folder, _segment_name(number), merged, self._space.dimensions)]
                number += 1
        sync_folder(self._folder)
        _write_manifest(self._folder, self._space, records, number)
        self._refresh()
        self._remove_strays({record.name for record in records})

    def _open_segment(self, record: SegmentRecord, opened: ExitStack) -> Segment:
        segment = Segment(self._folder, record, self._space.dimensions)
        opened.callback(segment.close)
        return segment

    def _remove_strays(self, kept: set[str]) -> None:
        """Remove segment files that the manifest does not name.

        They are merged ones, or a killed writer's.
        """
        for entry in list(os.scandir(self._folder)):
            if entry.name in (MANIFEST, LOCK):
                continue
            stem, suffix = os.path.splitext(entry.name)
            is_ours = (suffix in (".npy", ".jsonl") and stem.startswith("segment-")) or suffix == ".tmp"
            if is_ours and stem not in kept:
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)

    def _refresh(self) -> None:
        """Bring what is in memory up to the manifest."""
        self._check_open()
        for _ in range(READ_ATTEMPTS):
            try:
                data = (self._folder / MANIFEST).read_bytes()
            except OSError as error:
                raise StoreError(f"{self._folder / MANIFEST} cannot be read: {error}") from error
            if data == self._manifest:
                return
            try:
                self._load(self._parse_manifest(data))
            except FileNotFoundError:
                continue  # a writer has merged segments since the manifest was read: it has written another
            self._manifest = data
            return
        raise self._lacks_segments()

    def _lacks_segments(self) -> StoreCorruptError:
        return StoreCorruptError(
            f"{self._folder}: {MANIFEST} names segments that are not there: restore them from a copy"
        )

    def _parse_manifest(self, data: bytes) -> dict[str, Any]:
        path = self._folder / MANIFEST
        try:
            manifest = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise StoreCorruptError(f"{path} is no JSON: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise StoreCorruptError(f"{path} is no manifest of a vector store")
        version, digest = manifest.get("version"), manifest.pop(DIGEST, None)
        if type(version) is not int or not OLDEST_VERSION <= version <= VERSION:
            raise StoreError(
                f"{path} has version {version!r:.40}, this release reads versions {OLDEST_VERSION} to {VERSION}: use the "
                "release of lattice-embed that wrote it"
            )
        if version > OLDEST_VERSION and digest != _digest_of(manifest):
            raise StoreCorruptError(f"{path} (version {version}) is not what was written: restore it from a copy")
        return manifest

    def _load(self, manifest: dict[str, Any]) -> None:
        try:
            space = VectorSpace.from_fields(manifest["space"])
            records = [SegmentRecord.from_fields(fields) for fields in manifest["segments"]]
            next_number = manifest["next_segment"]
            numbers = {record.number for record in records}
            if type(next_number) is not int or not max(numbers, default=0) < next_number <= MOST_SEGMENTS:
                raise ValueError(f"next_segment is {next_number!r:.40}")
            if len(numbers) < len(records):
                raise ValueError("two segments have one name")
        except (KeyError, TypeError, ValueError) as error:
            raise StoreCorruptError(f"{self._folder / MANIFEST} is damaged: {error!r:.300}") from error
        opened: dict[str, Segment] = {}
        try:
            for record in records:
                opened[record.name] = self._segments.get(record.name) or Segment(self._folder, record, space.dimensions)
        except BaseException:
            for name, segment in opened.items():
                if name not in self._segments:
                    segment.close()
            raise
        order = [record.name for record in records]
        added = order[len(self._order) :] if order[: len(self._order)] == self._order else None
        for name, segment in self._segments.items():
            if name not in opened:
                segment.close()
        self._space, self._segments, self._order, self._next_number = space, opened, order, next_number
        if added is None:
            self._entries = {}
        for name in order if added is None else added:
            for entry in opened[name].entries:
                if entry.version is None:
                    self._entries.pop(entry.id, None)
                else:
                    self._entries[entry.id] = (opened[name], entry)
        self._ids = self._blocks = None

    def _search_blocks(self) -> list[SearchBlock]:
        """Return each segment's rows with their documents, by number in ``_names``.

        Made when a query needs them.
        """
        if self._blocks is None:
            self._names = list(self._entries)
            owners = {name: np.full(len(self._segments[name].vectors), -1, np.int64) for name in self._order}
            for number, (segment, entry) in enumerate(self._entries.values()):
                owners[segment.record.name][entry.first_row : entry.first_row + entry.rows] = number
            self._blocks = [
                SearchBlock(self._segments[name].vectors, owners[name]) for name in self._order if len(owners[name])
            ]
        return self._blocks


def _segment_name(number: int) -> str:
    return f"segment-{number:08d}"


def _size_class(record: SegmentRecord) -> int:
    """Return the power of FAN_IN that a segment's documents reach."""
    size, documents = 0, record.documents
    while documents >= FAN_IN:
        size, documents = size + 1, documents // FAN_IN
    return size


def _due_for_merging(records: Sequence[SegmentRecord]) -> int:
    """Return how many of the newest segments are to be merged.

    FAN_IN, when they are of one size class or below.
    """
    newest = records[-FAN_IN:]
    if len(newest) < FAN_IN:
        return 0
    return FAN_IN if max(map(_size_class, newest)) <= _size_class(newest[-1]) else 0


def _merged(segments: Sequence[Segment], *, keep_deleted: bool) -> list[StoredDocument | Deleted]:
    """Return the newest version of each document in ``segments``.

    Deleted ones only if older segments remain.

    Raises:
        StoreCorruptError: a segment is damaged; what it holds must not be written with a new digest.
    """
    newest: dict[str, tuple[Segment, Entry]] = {}
    for segment in segments:
        for entry in segment.entries:
            newest.pop(entry.id, None)
            newest[entry.id] = (segment, entry)
    merged: list[StoredDocument | Deleted] = []
    for segment in segments:
        kept = [entry for holder, entry in newest.values() if holder is segment]
        merged += segment.sound_documents([entry for entry in kept if entry.version is not None])
        if keep_deleted:
            merged += [Deleted(entry.id) for entry in kept if entry.version is None]
    return merged


def _write_manifest(folder: Path, space: VectorSpace, records: Sequence[SegmentRecord], next_segment: int) -> None:
    manifest: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "space": space.to_fields(),
        "next_segment": next_segment,
        "segments": [asdict(record) for record in records],
    }
    manifest[DIGEST] = _digest_of(manifest)
    write_durably(folder / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
    sync_folder(folder)


def _digest_of(manifest: Mapping[str, object]) -> str:
    """Return 256 bits of BLAKE3, in hex, over what a manifest says."""
    return blake3.blake3(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _forget_parents() -> None:
    for store in list(_live):
        store._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
