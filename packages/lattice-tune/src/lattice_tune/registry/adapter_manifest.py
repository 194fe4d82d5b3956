"""Manifests of adapters: approved files, with their SHA-256 and the revisions that they fit.

A manifest is a JSON object ``{"version": 1, "adapters": [...]}``. Each adapter has an id, a name, an owner, and the
path of its file relative to the manifest. It also has the file's SHA-256, two revisions, rank, alpha, target modules,
dtype and status.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.checkpoint.json_file import parse_json
from lattice_inference.checkpoint.model_file import open_model_file, read_model_file
from lattice_inference.checkpoint.safetensors_header import Header, header_length, parse_header
from lattice_inference.errors import CheckpointError, LatticeError
from lattice_tune.arguments import flag, instance, listed, path_of
from lattice_tune.errors import (
    InvalidInputError,
    ModelNotFoundError,
    RegistryCorruptError,
    StorageError,
    WeightIntegrityError,
    shown,
)
from lattice_tune.registry.adapter_governance import AdapterGovernance
from lattice_tune.registry.blobs import storing
from lattice_tune.registry.records import RegisteredModel
from lattice_tune.registry.stored_values import check_digest, check_relative_path, check_text

__all__ = ["AdapterManifest", "ManifestEntry", "VerifiedAdapter"]

MANIFEST_VERSION = 1
MOST_MANIFEST_BYTES = 64 << 20
MOST_ADAPTER_BYTES = 10 << 30
MOST_ALPHA_DIFFERENCE = 1e-4

_GOVERNED = ("owner", "base_model_rev", "tokenizer_rev", "rank", "alpha", "target_modules", "dtype", "status")
_FIELDS = {"id", "name", "uri", "integrity_sha256", *_GOVERNED}
_MATRIX = re.compile(r"(?:.*\.)?([^.]+)\.lora_([AaBb])(?:\.weight)?", re.DOTALL)


@dataclass(frozen=True)
class ManifestEntry:
    """One adapter of a manifest.

    Attributes:
        id: unique in the manifest.
        name: for people.
        uri: path of the file, relative to the manifest's folder.
        integrity_sha256: of the whole file, in hex.
        governance: owner, revisions, rank, alpha, target modules, dtype and status.

    Raises:
        InvalidInputError: a field is not what it must be.
    """

    id: str
    name: str
    uri: str
    integrity_sha256: str
    governance: AdapterGovernance

    def __post_init__(self) -> None:
        check_text("id", self.id, empty=False)
        check_text("name", self.name)
        check_relative_path("uri", self.uri)
        check_digest("integrity_sha256", self.integrity_sha256)
        instance(self.governance, "governance", AdapterGovernance)

    def to_fields(self) -> dict[str, Any]:
        """Return the adapter's object of the manifest."""
        fields = {"id": self.id, "name": self.name, "uri": self.uri, "integrity_sha256": self.integrity_sha256}
        return fields | self.governance.to_fields()

    @classmethod
    def of(cls, model: RegisteredModel, *, uri: str, adapter_id: str | None = None) -> ManifestEntry:
        """Return the entry of an adapter of a registry, whose file will be at ``uri``.

        Args:
            model: a version with governance, of one file.
            uri: path of the file, relative to the manifest.
            adapter_id: its id in the manifest; by default ``name@version``.

        Raises:
            InvalidInputError: the version has no governance, or several files.
        """
        instance(model, "model", RegisteredModel)
        if model.governance is None or model.is_folder:
            raise InvalidInputError(f"{model.reference} is no adapter of one file that was registered with governance")
        name = model.reference if adapter_id is None else adapter_id
        return cls(name, model.name, uri, model.digest, model.governance)

    @classmethod
    def from_fields(cls, fields: object) -> ManifestEntry:
        """Return the adapter of an object of a manifest.

        Raises:
            InvalidInputError: a field is missing, unknown, or not what it must be.
        """
        mapping = instance(fields, "an adapter", dict)
        if set(mapping) != _FIELDS:
            wrong = sorted(map(str, set(mapping) ^ _FIELDS))
            raise InvalidInputError(f"an adapter's fields are not those of a manifest: {shown(wrong)}")
        governance = AdapterGovernance.from_fields({name: mapping[name] for name in _GOVERNED})
        return cls(mapping["id"], mapping["name"], mapping["uri"], mapping["integrity_sha256"], governance)


@dataclass(frozen=True)
class VerifiedAdapter:
    """An adapter's file that fits its manifest.

    Attributes:
        entry: of the manifest.
        path: the file.
        content: its bytes, which are what the manifest's SHA-256 is of.
        revisions_match: False only where ``permissive`` let other revisions pass.
    """

    entry: ManifestEntry
    path: Path
    content: bytes
    revisions_match: bool


@dataclass(frozen=True)
class AdapterManifest:
    """A list of adapters with what must hold before one loads.

    Attributes:
        adapters: no two have one id.
        folder: where their paths begin.

    Raises:
        InvalidInputError: a field is not what it must be.
    """

    adapters: tuple[ManifestEntry, ...]
    folder: Path = Path()

    def __post_init__(self) -> None:
        adapters = listed(self.adapters, "adapters", "ManifestEntry")
        entries = tuple(instance(entry, "an adapter", ManifestEntry) for entry in adapters)
        ids = [entry.id for entry in entries]
        if len(set(ids)) != len(ids):
            twice = next(each for each in ids if ids.count(each) > 1)
            raise InvalidInputError(f"two adapters have the id {shown(twice)}: which one counts would be chance")
        object.__setattr__(self, "adapters", entries)
        object.__setattr__(self, "folder", path_of(self.folder, "folder"))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> AdapterManifest:
        """Read a manifest; its folder is the file's.

        Raises:
            StorageError: the file cannot be read.
            RegistryCorruptError: it is no manifest, or of another version.
        """
        place = path_of(path, "path")
        try:
            content = read_model_file(place, max_bytes=MOST_MANIFEST_BYTES, error=CheckpointError)
        except LatticeError as error:
            raise StorageError(str(error)) from error
        try:
            fields = instance(parse_json(content, source=str(place), error=CheckpointError), "the manifest", dict)
            version = fields.get("version")
            if type(version) is not int or version != MANIFEST_VERSION:
                raise InvalidInputError(f"version is {shown(version)}; this release reads version {MANIFEST_VERSION}")
            entries = instance(fields.get("adapters"), "adapters", list)
            return cls(tuple(map(ManifestEntry.from_fields, entries)), place.parent)
        except (LatticeError, InvalidInputError) as error:
            raise RegistryCorruptError(f"{place} is no manifest of adapters: {error}") from error

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the manifest; one that was there is replaced in one step.

        Raises:
            StorageError: it cannot be written.
        """
        place = path_of(path, "path")
        fields = {"version": MANIFEST_VERSION, "adapters": [entry.to_fields() for entry in self.adapters]}
        with storing(place), atomic_file(place) as file:
            file.write(json.dumps(fields, indent=2).encode() + b"\n")
        return place

    def entry(self, adapter_id: str) -> ManifestEntry:
        """Return the adapter with an id.

        Raises:
            ModelNotFoundError: there is none.
        """
        check_text("adapter_id", adapter_id)
        for entry in self.adapters:
            if entry.id == adapter_id:
                return entry
        raise ModelNotFoundError(f"any adapter with the id {shown(adapter_id)} in the manifest")

    def load_verified(
        self,
        adapter_id: str,
        *,
        base_model_rev: str | None = None,
        tokenizer_rev: str | None = None,
        permissive: bool = False,
    ) -> VerifiedAdapter:
        """Read an adapter's file if it is approved, unchanged, and what the manifest says.

        Args:
            adapter_id: of the adapter.
            base_model_rev: revision of the model that it is for; ``None`` does not compare.
            tokenizer_rev: revision of the tokenizer; ``None`` does not compare.
            permissive: take other revisions, and say so in the result.

        Raises:
            ModelNotFoundError: the manifest has no such adapter.
            AdapterNotApprovedError: it is quarantined or revoked; its file was not opened.
            WeightIntegrityError: the file's SHA-256 is another.
            RegistryCorruptError: the file is no adapter, or rank, alpha, modules or id are not the manifest's.
            InvalidInputError: the revisions are not the manifest's, or the file lies outside of its folder.
            StorageError: the file cannot be read.
        """
        entry = self.entry(adapter_id)
        entry.governance.check_approved(entry.id)
        permissive = flag(permissive, "permissive")
        matches = all(
            wanted is None or check_text(name, wanted) == getattr(entry.governance, name)
            for name, wanted in (("base_model_rev", base_model_rev), ("tokenizer_rev", tokenizer_rev))
        )
        if not matches and not permissive:
            raise InvalidInputError(
                f"adapter {entry.id} is for base model {shown(entry.governance.base_model_rev)} and tokenizer "
                f"{shown(entry.governance.tokenizer_rev)}: load those, or pass permissive=True"
            )
        path = self.folder / entry.uri
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise InvalidInputError(f"{path} leads out of {self.folder}: put the adapter's file into that folder")
        content = _read_adapter(path)
        _check_adapter(entry, content, path)
        return VerifiedAdapter(entry, path, content, matches)


def _read_adapter(path: Path) -> bytes:
    try:
        descriptor, size = open_model_file(path, error=CheckpointError)
    except LatticeError as error:
        raise StorageError(str(error)) from error
    with storing(path), os.fdopen(descriptor, "rb") as file:
        if size > MOST_ADAPTER_BYTES:
            raise StorageError(f"{path}: {size:,} bytes, and at most {MOST_ADAPTER_BYTES:,} are read")
        return file.read(size)


def _check_adapter(entry: ManifestEntry, content: bytes, path: Path) -> None:
    """Compare a file with what the manifest says of it."""
    actual = hashlib.sha256(content).hexdigest()
    if actual != entry.integrity_sha256:
        raise WeightIntegrityError(str(path), entry.integrity_sha256, actual)
    try:
        length = header_length(content[:8], len(content), path)
        header = parse_header(content[8 : 8 + length], len(content), path)
    except LatticeError as error:
        raise RegistryCorruptError(str(error)) from error
    rank, modules = _rank_and_modules(header, path)
    governance, metadata = entry.governance, header.metadata
    if rank != governance.rank:
        raise RegistryCorruptError(f"{path}: its rank is {rank}, and the manifest says {governance.rank}")
    try:
        alpha = float(metadata["alpha"]) if "alpha" in metadata else float(rank)
    except ValueError:
        alpha = float("nan")
    if not abs(alpha - governance.alpha) <= MOST_ALPHA_DIFFERENCE:
        raise RegistryCorruptError(f"{path}: its alpha is {alpha:g}, and the manifest says {governance.alpha:g}")
    if not modules <= set(governance.target_modules):
        extra = ", ".join(sorted(modules - set(governance.target_modules)))
        raise RegistryCorruptError(f"{path} changes {extra:.200}, which the manifest does not name")
    if metadata.get("adapter_id", entry.id) != entry.id:
        raise RegistryCorruptError(f"{path} says that it is {shown(metadata['adapter_id'])}, not {entry.id}")


def _rank_and_modules(header: Header, path: Path) -> tuple[int, set[str]]:
    """Return the one rank of all matrices and the names of the modules that they change."""
    ranks, modules = set(), set()
    for name, tensor in header.tensors.items():
        found = _MATRIX.fullmatch(name)
        if found is None:
            continue
        if len(tensor.shape) != 2:
            raise RegistryCorruptError(f"{path}: {shown(name)} has {len(tensor.shape)} dimensions, and a matrix has 2")
        module, side = found.groups()
        # PEFT's A is (rank, in) and its B (out, rank); the lower-case names of MLX are the transposes
        ranks.add(tensor.shape[0 if side in "Ab" else 1])
        modules.add(module)
    if len(ranks) != 1:
        raise RegistryCorruptError(f"{path}: its matrices have {len(ranks)} ranks, and an adapter has one")
    return ranks.pop(), modules
