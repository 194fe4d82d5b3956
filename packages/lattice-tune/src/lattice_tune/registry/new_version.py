"""A version that is about to be stored: its fields, checked, and its row."""

from __future__ import annotations

import uuid
from dataclasses import asdict

from lattice_tune.arguments import instance
from lattice_tune.errors import InvalidInputError, shown
from lattice_tune.registry.adapter_governance import AdapterGovernance
from lattice_tune.registry.records import Lineage, ModelKind, ModelMetadata, RegisteredModel
from lattice_tune.registry.schema import now_microseconds, to_json
from lattice_tune.registry.semantic_version import SemanticVersion
from lattice_tune.registry.sources import Source
from lattice_tune.registry.statuses import ModelStatus
from lattice_tune.registry.stored_values import check_name, check_text

__all__ = ["NewVersion"]

MOST_PARENTS = 1_000


class NewVersion:
    """The arguments of :meth:`ModelRegistry.register` but for the source, checked."""

    def __init__(
        self,
        name: object,
        version: object,
        kind: object,
        metadata: object,
        lineage: object,
        parents: object,
        description: object,
        registered_by: object,
        governance: object,
    ) -> None:
        self.name: str = check_name(name)
        self.version: SemanticVersion = (
            version if isinstance(version, SemanticVersion) else SemanticVersion.parse(version)
        )
        self.kind: ModelKind = ModelKind.of(kind)
        self.metadata: ModelMetadata
        self.metadata = ModelMetadata() if metadata is None else instance(metadata, "metadata", ModelMetadata)
        self.lineage: Lineage = Lineage() if lineage is None else instance(lineage, "lineage", Lineage)
        if not isinstance(parents, (list, tuple)) or len(parents) > MOST_PARENTS:
            raise InvalidInputError(
                f"parents is {shown(parents)}; it must be a list of at most {MOST_PARENTS:,} versions, as name@version"
            )
        self.parents: tuple[str | RegisteredModel, ...] = tuple(parents)
        self.description: str = check_text("description", description)
        self.registered_by: str = check_text("registered_by", registered_by)
        self.governance: AdapterGovernance | None
        self.governance = None if governance is None else instance(governance, "governance", AdapterGovernance)

    def row(self, source: Source) -> tuple[object, ...]:
        """Return the values of the columns of ``models`` after the first."""
        now = now_microseconds()
        return (
            uuid.uuid4().hex,
            self.name,
            str(self.version),
            int(self.version.is_prerelease),
            self.version.precedence,
            self.kind.value,
            ModelStatus.PENDING.value,
            int(source.is_folder),
            source.digest,
            to_json(asdict(self.metadata)),
            to_json(asdict(self.lineage)),
            self.description,
            self.registered_by,
            now,
            now,
            None if self.governance is None else to_json(self.governance.to_fields()),
        )
