"""The registry's records of a version: files, lineage, measures and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from lattice_tune.arguments import instance, number, whole
from lattice_tune.errors import InvalidInputError, shown
from lattice_tune.registry.adapter_governance import AdapterGovernance
from lattice_tune.registry.semantic_version import SemanticVersion
from lattice_tune.registry.statuses import ModelStatus
from lattice_tune.registry.stored_values import MOST_COUNT, check_name, check_text, check_texts, checked_json

__all__ = ["Lineage", "ModelKind", "ModelMetadata", "ModelQuery", "RegisteredModel", "RegistryEvent", "StoredFile"]


class ModelKind(Enum):
    """What a version's files are."""

    STUDENT = "student"
    ADAPTER = "adapter"
    MERGED = "merged"
    OTHER = "other"

    @classmethod
    def of(cls, value: object) -> ModelKind:
        """Return a kind, given as itself or by its name.

        Raises:
            InvalidInputError: it is none.
        """
        if isinstance(value, ModelKind):
            return value
        if isinstance(value, str) and value in {kind.value for kind in cls}:
            return cls(value)
        raise InvalidInputError(f"kind is {shown(value)}; it must be one of {', '.join(kind.value for kind in cls)}")


@dataclass(frozen=True)
class ModelMetadata:
    """What a version is and how it did.

    Attributes:
        architecture: such as ``"mlp 384-64-6"``.
        input_dim: components of an input vector.
        output_dim: classes, or components of an output.
        num_parameters: how many numbers were learned.
        config_hash: of the configuration that it was trained with.
        dataset_id: a name of the data, for people; the digest is part of the :class:`Lineage`.
        num_training_examples: how many there were.
        validation_accuracy: from 0 to 1.
        test_accuracy: from 0 to 1.
        metrics: other measures by name.
        tags: words to find it by.
        extra: anything else that JSON can hold, up to 1 MiB.

    Raises:
        InvalidInputError: a field is out of range or of another type.
    """

    architecture: str = ""
    input_dim: int | None = None
    output_dim: int | None = None
    num_parameters: int | None = None
    config_hash: str | None = None
    dataset_id: str | None = None
    num_training_examples: int | None = None
    validation_accuracy: float | None = None
    test_accuracy: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text("architecture", self.architecture)
        for name in ("input_dim", "output_dim", "num_parameters", "num_training_examples"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name, most=MOST_COUNT))
        for name in ("config_hash", "dataset_id"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        for name in ("validation_accuracy", "test_accuracy"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(getattr(self, name), name, least=0.0, most=1.0))
        metrics = instance(self.metrics, "metrics", Mapping)  # type: ignore[type-abstract]
        checked = {
            check_text("a name of metrics", name, empty=False): number(value, f"metrics[{shown(name)}]")
            for name, value in metrics.items()
        }
        object.__setattr__(self, "metrics", checked)
        object.__setattr__(self, "tags", check_texts("tags", self.tags))
        object.__setattr__(self, "extra", checked_json("extra", self.extra))

    def metric(self, name: str) -> float | None:
        """Return a measure by name, the two accuracies included; ``None`` if it is missing."""
        if check_text("name", name) in ("validation_accuracy", "test_accuracy"):
            accuracy: float | None = getattr(self, name)
            return accuracy
        return self.metrics.get(name)


@dataclass(frozen=True)
class Lineage:
    """What a version was made of, apart from its parents.

    Attributes:
        dataset_digest: of the data.
        teacher: the model that labelled them.
        base_model: the model that was trained further, or that makes the vectors.
        code_versions: version by package or repository.

    Raises:
        InvalidInputError: a field is not a text, or ``code_versions`` no mapping of texts.
    """

    dataset_digest: str | None = None
    teacher: str | None = None
    base_model: str | None = None
    code_versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dataset_digest", "teacher", "base_model"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        versions = checked_json("code_versions", self.code_versions)
        for name, version in versions.items():
            check_text(f"code_versions[{shown(name)}]", version)
        object.__setattr__(self, "code_versions", versions)


@dataclass(frozen=True)
class StoredFile:
    """One file of a version.

    Attributes:
        path: relative to the version, with ``/``.
        sha256: of its content, in hex.
        size: in bytes.
    """

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class RegisteredModel:
    """One version of a model, as it was when it was read; later changes do not show in it.

    Attributes:
        id: a UUID in hex; a deleted version's is not given again.
        name: of the model.
        version: of the model.
        kind: what its files are.
        status: where it stands.
        files: in order of their paths.
        digest: the file's SHA-256, or, of a folder, the SHA-256 of its list of files.
        size: of all files, in bytes.
        is_folder: whether a folder was registered.
        metadata: what it is and how it did.
        lineage: what it was made of.
        parents: the versions that it comes from, each as ``name@version``.
        aliases: words that name it.
        description: for people.
        registered_by: who registered it.
        registered_at: when, in UTC.
        updated_at: when its status, lineage or governance last changed, in UTC.
        governance: whether and for what an adapter may be used.
    """

    id: str
    name: str
    version: SemanticVersion
    kind: ModelKind
    status: ModelStatus
    files: tuple[StoredFile, ...]
    digest: str
    size: int
    is_folder: bool
    metadata: ModelMetadata
    lineage: Lineage
    parents: tuple[str, ...]
    aliases: tuple[str, ...]
    description: str
    registered_by: str
    registered_at: datetime
    updated_at: datetime
    governance: AdapterGovernance | None = None

    @property
    def reference(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    def is_newer_than(self, other: RegisteredModel) -> bool:
        """Whether its version has higher precedence; build metadata does not count."""
        return self.version.precedence > instance(other, "other", RegisteredModel).version.precedence

    def to_fields(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "id": self.id,
            "name": self.name,
            "version": str(self.version),
            "kind": self.kind.value,
            "status": self.status.value,
            "digest": self.digest,
            "size": self.size,
            "is_folder": self.is_folder,
            "files": [asdict(file) for file in self.files],
            "metadata": asdict(self.metadata),
            "lineage": asdict(self.lineage),
            "parents": list(self.parents),
            "aliases": list(self.aliases),
            "description": self.description,
            "registered_by": self.registered_by,
            "registered_at": self.registered_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
            "governance": None if self.governance is None else self.governance.to_fields(),
        }


@dataclass(frozen=True)
class RegistryEvent:
    """One change of the registry. Events are numbered without gaps and never removed.

    Attributes:
        id: from 1.
        at: when, in UTC.
        kind: such as ``"registered"``, ``"status"``, ``"promoted"``, ``"rolled_back"``, ``"deleted"``.
        name: of the model, or ``""`` for a change of the whole registry.
        version: of the model, or ``""``.
        actor: who did it.
        detail: what changed, as JSON values.
    """

    id: int
    at: datetime
    kind: str
    name: str
    version: str
    actor: str
    detail: Mapping[str, Any]

    def to_fields(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self) | {"at": self.at.isoformat(), "detail": dict(self.detail)}


@dataclass(frozen=True)
class ModelQuery:
    """Which versions to find; what is left out does not count.

    Attributes:
        name: of the model.
        status: a status or its name.
        kind: a kind or its name.
        min_accuracy: the least validation accuracy; versions without one do not match.
        tags: all of these must be there.
        limit: the most versions to return.

    Raises:
        InvalidInputError: a field is out of range or of another type.
    """

    name: str | None = None
    status: ModelStatus | str | None = None
    kind: ModelKind | str | None = None
    min_accuracy: float | None = None
    tags: tuple[str, ...] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)
        if self.status is not None:
            object.__setattr__(self, "status", ModelStatus.of(self.status))
        if self.kind is not None:
            object.__setattr__(self, "kind", ModelKind.of(self.kind))
        if self.min_accuracy is not None:
            number(self.min_accuracy, "min_accuracy", least=0.0, most=1.0)
        object.__setattr__(self, "tags", check_texts("tags", self.tags))
        if self.limit is not None:
            object.__setattr__(self, "limit", whole(self.limit, "limit", least=1, most=MOST_COUNT))

    def matches(self, model: RegisteredModel) -> bool:
        """Whether a version meets all conditions; ``limit`` does not count."""
        accuracy = model.metadata.validation_accuracy
        return (
            self.name in (None, model.name)
            and self.status in (None, model.status)
            and self.kind in (None, model.kind)
            and (self.min_accuracy is None or (accuracy is not None and accuracy >= self.min_accuracy))
            and set(self.tags) <= set(model.metadata.tags)
        )


def moment(microseconds: int) -> datetime:
    """Return the moment so many microseconds after 1970, in UTC."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC)
