"""One version as one file: an uncompressed zip archive of files and a description.

The description has their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.checkpoint.json_file import parse_json
from lattice_inference.checkpoint.model_file import open_model_file
from lattice_inference.errors import CheckpointError, LatticeError, WriteError
from lattice_tune.arguments import instance, whole
from lattice_tune.errors import (
    InvalidInputError,
    LineageError,
    ModelNotFoundError,
    RegistryCorruptError,
    StorageError,
    WeightIntegrityError,
)
from lattice_tune.registry.adapter_governance import AdapterGovernance
from lattice_tune.registry.blobs import BlobStore, copy_verified, storing
from lattice_tune.registry.new_version import NewVersion
from lattice_tune.registry.records import Lineage, RegisteredModel
from lattice_tune.registry.schema import metadata_of
from lattice_tune.registry.semantic_version import SemanticVersion
from lattice_tune.registry.sources import MOST_FILES, Source, SourceFile
from lattice_tune.registry.store import RegistryStore
from lattice_tune.registry.stored_values import MOST_COUNT, check_digest, check_name, check_relative_path

__all__ = ["Bundle", "open_bundle", "write_bundle"]

DESCRIPTION = "version.json"
FORMAT_NAME, FORMAT_VERSION = "lattice-tune version", 1
MOST_DESCRIPTION_BYTES = 8 << 20

_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OverflowError)


def write_bundle(blobs: BlobStore, model: RegisteredModel, parents: Sequence[RegisteredModel], target: Path) -> None:
    """Write a version into a file: the same version gives the same bytes.

    Raises:
        WeightIntegrityError: a content is missing, or is not what was registered.
        StorageError: ``target`` cannot be written.
    """
    description = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "model": model.to_fields(),
        "parents": [
            {"name": parent.name, "version": str(parent.version), "digest": parent.digest} for parent in parents
        ],
    }
    with (
        storing(target),
        atomic_file(target) as out,
        zipfile.ZipFile(out, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        archive.writestr(zipfile.ZipInfo(DESCRIPTION, _EPOCH), json.dumps(description, indent=1, sort_keys=True))
        for file in model.files:
            entry = zipfile.ZipInfo(f"files/{file.path}", _EPOCH)
            entry.file_size = file.size
            with blobs.open(file.sha256) as content, archive.open(entry, "w", force_zip64=file.size >= 2**31) as inside:
                copy_verified(content, inside, file.sha256, f"{model.reference}: {file.path}")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Bundle:
    """What a file of :func:`write_bundle` holds.

    Attributes:
        model: the fields of the version, checked.
        source: its files; they are read when they are stored.
        parents: name, version and digest of each parent.
    """

    model: NewVersion
    source: Source
    parents: tuple[tuple[str, str, str], ...] = field(default=())

    def parents_here(self, store: RegistryStore, *, detach: bool) -> list[str]:
        """Return the parents that a registry has, as references.

        Raises:
            LineageError: one is not there, or is other files under the same version; not with ``detach``.
        """
        found = []
        for name, version, digest in self.parents:
            try:
                model = store.model(store.number_of(name, version))
                problem = None if model.digest == digest else "has other files here"
            except ModelNotFoundError:
                problem = "is not here"
            if problem is None:
                found.append(f"{name}@{version}")
            elif not detach:
                raise LineageError(
                    f"the parent {name}@{version} {problem}: import it first, or leave it out with detach"
                )
        return found


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Read an exported version's description.

    Files are compared with it before anything is stored.

    Raises:
        RegistryCorruptError: the file is damaged, or no such file.
        StorageError: it cannot be read.
    """
    try:
        descriptor, _ = open_model_file(path, error=WriteError)
    except LatticeError as error:
        raise StorageError(str(error)) from error
    with storing(path), os.fdopen(descriptor, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield _bundle_of(archive, path)
        except _ZIP_ERRORS as error:
            raise RegistryCorruptError(f"{path} is damaged or no exported version: {error}") from error


def _bundle_of(archive: zipfile.ZipFile, path: Path) -> Bundle:
    entries = {entry.filename: entry for entry in archive.infolist()}
    if DESCRIPTION not in entries or len(entries) != len(archive.infolist()) or len(entries) > MOST_FILES + 1:
        raise RegistryCorruptError(f"{path} is no exported version: it has no {DESCRIPTION}, or too many files")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries.values()):
        raise RegistryCorruptError(f"{path} is no exported version: a file in it is compressed or encrypted")
    if sum(entry.file_size for entry in entries.values()) > os.path.getsize(path):
        raise RegistryCorruptError(f"{path} is damaged: its files overlap")
    if entries[DESCRIPTION].file_size > MOST_DESCRIPTION_BYTES:
        raise RegistryCorruptError(f"{path} is damaged: {DESCRIPTION} is over {MOST_DESCRIPTION_BYTES:,} bytes")
    try:
        description = parse_json(archive.read(DESCRIPTION), source=f"{path}: {DESCRIPTION}", error=CheckpointError)
        return _checked(_mapping(description), entries, archive, path)
    except (LatticeError, InvalidInputError, KeyError, TypeError) as error:
        raise RegistryCorruptError(f"{path} is damaged or no exported version: {error}") from error


def _checked(
    description: dict[str, Any], entries: dict[str, zipfile.ZipInfo], archive: zipfile.ZipFile, path: Path
) -> Bundle:
    if (description["format"], description["format_version"]) != (FORMAT_NAME, FORMAT_VERSION):
        raise InvalidInputError(f"its format is {description['format']!r:.40} {description['format_version']!r:.20}")
    fields = _mapping(description["model"])
    governance = fields["governance"]
    model = NewVersion(
        fields["name"],
        fields["version"],
        fields["kind"],
        metadata_of(_mapping(fields["metadata"])),
        Lineage(**_mapping(fields["lineage"])),
        (),
        fields["description"],
        fields["registered_by"],
        None if governance is None else AdapterGovernance.from_fields(governance),
    )
    files = tuple(
        _source_file(_mapping(file), entries, archive, path) for file in instance(fields["files"], "files", list)
    )
    source = Source(files, is_folder=fields["is_folder"] is True)
    if not files or (len(files) > 1 and not source.is_folder) or len({file.path for file in files}) != len(files):
        raise InvalidInputError("its list of files does not fit")
    if source.digest != fields["digest"] or {f"files/{file.path}" for file in files} != set(entries) - {DESCRIPTION}:
        raise InvalidInputError("its files are not those of its digest")
    parents = tuple(
        (
            check_name(parent["name"]),
            str(SemanticVersion.parse(parent["version"])),
            check_digest("digest", parent["digest"]),
        )
        for parent in instance(description["parents"], "parents", list)
    )
    return Bundle(model, source, parents)


def _source_file(
    fields: dict[str, Any], entries: dict[str, zipfile.ZipInfo], archive: zipfile.ZipFile, path: Path
) -> SourceFile:
    name = check_relative_path("path", fields["path"])
    sha256, size = check_digest("sha256", fields["sha256"]), whole(fields["size"], "size", most=MOST_COUNT)
    entry = entries[f"files/{name}"]
    if entry.file_size != size:
        raise InvalidInputError(f"{name} has {entry.file_size:,} bytes, and {size:,} are on record")
    return SourceFile(name, sha256, size, lambda: _Checked(archive, entry, sha256, path))  # type: ignore[return-value,arg-type]


class _Checked:
    """A file of the archive that is refused at its end if it is not what the description says."""

    def __init__(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, sha256: str, path: Path) -> None:
        self._file: BinaryIO = archive.open(entry)  # type: ignore[assignment]
        self._digest, self._sha256, self._where = hashlib.sha256(), sha256, f"{path}: {entry.filename}"

    def __enter__(self) -> _Checked:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, or none at the end."""
        content = self._file.read(size)
        self._digest.update(content)
        if not content and self._digest.hexdigest() != self._sha256:
            raise WeightIntegrityError(self._where, self._sha256, self._digest.hexdigest())
        return content


def _mapping(value: object) -> dict[str, Any]:
    return instance(value, "a part of its description", dict)
