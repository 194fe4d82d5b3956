"""The registry: versions of models with their files, statuses, aliases, lineage and history."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from lattice_tune.arguments import flag, number, path_of
from lattice_tune.errors import DuplicateModelError, InvalidInputError, InvalidTransitionError, RegistryError
from lattice_tune.registry import lineage_graph, maintenance, promotion, version_bundle
from lattice_tune.registry.adapter_governance import AdapterGovernance, AdapterStatus
from lattice_tune.registry.maintenance import GcReport
from lattice_tune.registry.new_version import NewVersion
from lattice_tune.registry.promotion_gates import PromotionGate
from lattice_tune.registry.records import Lineage, ModelKind, ModelMetadata, RegisteredModel
from lattice_tune.registry.registry_reader import RegistryReader
from lattice_tune.registry.schema import RECORD_COLUMNS, add_event, now_microseconds, record_digest, to_json
from lattice_tune.registry.semantic_version import SemanticVersion
from lattice_tune.registry.sources import Source, read_source
from lattice_tune.registry.statuses import ModelStatus, check_transition
from lattice_tune.registry.stored_values import check_alias, check_text

__all__ = ["ModelRegistry"]

GRACE_SECONDS = 86_400.0


class ModelRegistry(RegistryReader):
    """Versions of models in a folder, shared by any number of processes and threads.

    The folder holds an SQLite database and the contents of files by SHA-256. What a call did is on the disk when it
    returns; a call that raises, or is killed, has changed nothing, or all of it. Every change is an event.

    Args:
        path: the folder.
        create: make the folder and its database if they are not there.
        busy_seconds: how long a call waits for other processes' transactions.

    Raises:
        InvalidInputError: an argument is out of range.
        StorageError: the folder cannot be made or opened.
        RegistryCorruptError: the database is damaged, another program's, or of another version.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, ModelRegistry(f"{folder}/registry") as registry:
    ...     registered = registry.register("intent", "1.0.0", b"weights")
    ...     registered.status.value, registry.get("intent", "1.0.0").files[0].size
    ('pending', 7)
    """

    def register(
        self,
        name: str,
        version: str | SemanticVersion,
        source: str | os.PathLike[str] | bytes,
        *,
        kind: ModelKind | str = ModelKind.OTHER,
        metadata: ModelMetadata | None = None,
        lineage: Lineage | None = None,
        parents: Sequence[str | RegisteredModel] = (),
        description: str = "",
        registered_by: str = "",
        governance: AdapterGovernance | None = None,
    ) -> RegisteredModel:
        """Store a version; its status is pending.

        Args:
            name: of the model.
            version: by SemVer 2.0.0.
            source: a file, a folder, or the bytes of a file. It is copied.
            kind: what the files are.
            metadata: what it is and how it did.
            lineage: what it was made of.
            parents: versions of this registry that it comes from, as ``name@version`` or as they were returned.
            description: for people.
            registered_by: who registers it.
            governance: whether and for what an adapter may be used.

        Raises:
            InvalidInputError: an argument is out of range, or the source holds what cannot be stored.
            DuplicateModelError: there is such a version; it was not touched.
            ModelNotFoundError: there is no such parent.
            StorageError: the source cannot be read, or the registry not written.
        """
        new = NewVersion(name, version, kind, metadata, lineage, parents, description, registered_by, governance)
        self._check_free(new.name, new.version)
        with self._database.snapshot():
            for parent in new.parents:
                self.store.reference_of(parent)
        return self._store_version(new, read_source(source), "registered")

    def import_(
        self, path: str | os.PathLike[str], *, detach: bool = False, registered_by: str = ""
    ) -> RegisteredModel:
        """Store the version that a file of :meth:`export` holds; its status is pending.

        Args:
            path: the file.
            detach: leave out parents that this registry does not have, instead of refusing.
            registered_by: who imports it.

        Raises:
            RegistryCorruptError: the file is damaged, or no such file.
            DuplicateModelError: there is such a version already.
            LineageError: a parent is not here, or is another version of the same name.
            StorageError: the file cannot be read, or the registry not written.
        """
        detach = flag(detach, "detach")
        actor = check_text("registered_by", registered_by)
        with version_bundle.open_bundle(path_of(path, "path")) as bundle:
            model = bundle.model
            self._check_free(model.name, model.version)
            with self._database.snapshot():
                parents = bundle.parents_here(self.store, detach=detach)
            new = NewVersion(
                model.name,
                model.version,
                model.kind,
                model.metadata,
                model.lineage,
                parents,
                model.description,
                actor or model.registered_by,
                model.governance,
            )
            return self._store_version(new, bundle.source, "imported")

    def _check_free(self, name: str, version: SemanticVersion) -> None:
        if self._database.rows("SELECT 1 FROM models WHERE name = ? AND version = ?", (name, str(version))):
            raise DuplicateModelError(name, str(version))

    def _store_version(self, new: NewVersion, source: Source, event: str) -> RegisteredModel:
        with self.store.claimed([file.sha256 for file in source.files]) as writer:
            for file in source.files:
                self.store.blobs.add(file)
            with self._database.transaction():
                self._check_free(new.name, new.version)
                number = self._database.execute(
                    f"INSERT INTO models VALUES (NULL, {', '.join('?' * 16)})", new.row(source)
                ).lastrowid
                assert number is not None
                self._database.execute_many(
                    "INSERT INTO files VALUES (?, ?, ?, ?)",
                    [(number, file.path, file.sha256, file.size) for file in source.files],
                )
                lineage_graph.add_parent_rows(
                    self.store, number, [self.store.reference_of(parent) for parent in new.parents]
                )
                self.store.release(writer)
                model = self.store.model(number)
                (record,) = self._database.rows(f"SELECT {RECORD_COLUMNS} FROM models WHERE id = ?", (number,))
                detail = {"id": model.id, "digest": model.digest, "size": model.size, "parents": list(model.parents)}
                detail["record"] = record_digest(record)
                add_event(self._database, event, model.name, str(model.version), new.registered_by, detail)
                return model

    # Statuses

    def set_status(
        self, model: RegisteredModel, status: ModelStatus | str, *, actor: str = "", reason: str = ""
    ) -> RegisteredModel:
        """Move a version along the graph of statuses; :meth:`promote` alone leads into production.

        To become validated, every file is read and compared with its SHA-256.

        Args:
            model: a version as it was returned. Its status counts as it is now.
            status: the new status.
            actor: who does it.
            reason: why.

        Raises:
            InvalidTransitionError: the graph has no such step.
            ModelNotFoundError: the version was deleted.
            WeightIntegrityError: a file is missing, or is not what was registered.
        """
        wanted = ModelStatus.of(status)
        actor, reason = check_text("actor", actor), check_text("reason", reason)
        current = self._current(model)
        if wanted is ModelStatus.PRODUCTION:
            raise InvalidTransitionError(
                current.reference, current.status.value, wanted.value, "promote() puts a staged version into production"
            )
        check_transition(current.reference, current.status, wanted)
        if wanted is ModelStatus.VALIDATED:
            self.check_files(current)
        return promotion.change_status(self.store, current, wanted, actor=actor, reason=reason)

    def promote(
        self, model: RegisteredModel, *, gates: Iterable[PromotionGate] = (), actor: str = "", reason: str = ""
    ) -> RegisteredModel:
        """Put a staged version into production and archive the former one, in one step.

        Args:
            model: a version as it was returned. Its status counts as it is now.
            gates: what may refuse, beside :class:`HashVerified`, which every promotion has.
            actor: who does it.
            reason: why.

        Raises:
            InvalidTransitionError: it is not staged.
            PromotionRefusedError: a gate refused; nothing was changed.
            AdapterNotApprovedError: it is an adapter that is quarantined or revoked.
            ModelNotFoundError: the version was deleted.
        """
        actor, reason = check_text("actor", actor), check_text("reason", reason)
        checked = promotion.checked_gates(gates)
        return promotion.promote(self, self._current(model), gates=checked, actor=actor, reason=reason)

    # Aliases

    def set_alias(self, model: RegisteredModel, alias: str, *, actor: str = "") -> RegisteredModel:
        """Let an alias name a version; if it named another of the same model, it is moved.

        Raises:
            InvalidInputError: the alias cannot be one, or is ``champion``, which follows production.
            ModelNotFoundError: the version was deleted.
        """
        check_alias(alias)
        actor = check_text("actor", actor)
        with self._database.transaction():
            number = self._number(model)
            self._database.execute(
                "INSERT INTO aliases VALUES (?, ?, ?) ON CONFLICT (name, alias) DO UPDATE SET model = excluded.model",
                (model.name, alias, number),
            )
            add_event(self._database, "alias_set", model.name, str(model.version), actor, {"alias": alias})
            return self.store.model(number)

    def remove_alias(self, name: str, alias: str, *, actor: str = "") -> RegisteredModel:
        """Remove an alias, and return the version that it named.

        Raises:
            InvalidInputError: the alias cannot be one, or is ``champion``, which follows production.
            ModelNotFoundError: there is no such alias.
        """
        check_alias(alias)
        actor = check_text("actor", actor)
        with self._database.transaction():
            number = self.store.number_of(name, alias)
            self._database.execute("DELETE FROM aliases WHERE name = ? AND alias = ?", (name, alias))
            model = self.store.model(number)
            add_event(self._database, "alias_removed", name, str(model.version), actor, {"alias": alias})
            return model

    # Lineage and governance

    def add_parent(self, model: RegisteredModel, parent: str | RegisteredModel, *, actor: str = "") -> RegisteredModel:
        """Note that a version comes from another one, too.

        Raises:
            LineageError: the parent is the version itself or comes from it.
            ModelNotFoundError: one of them is not there.
        """
        actor = check_text("actor", actor)
        with self._database.transaction():
            number, above = self._number(model), self.store.reference_of(parent)
            lineage_graph.add_parent_rows(self.store, number, [above])
            self._touch(number)
            detail = {"parent": self.store.model(above).reference}
            add_event(self._database, "parent_added", model.name, str(model.version), actor, detail)
            return self.store.model(number)

    def set_adapter_status(
        self, model: RegisteredModel, status: AdapterStatus | str, *, actor: str = "", reason: str = ""
    ) -> RegisteredModel:
        """Approve, quarantine or revoke an adapter.

        From then on every process loads it, or refuses it.

        Raises:
            InvalidInputError: the version has no governance.
            ModelNotFoundError: the version was deleted.
        """
        wanted = AdapterStatus.of(status)
        actor, reason = check_text("actor", actor), check_text("reason", reason)
        with self._database.transaction():
            current = self._current(model)
            if current.governance is None:
                raise InvalidInputError(f"{current.reference} has no governance: register adapters with governance=")
            changed = replace(current.governance, status=wanted)
            number = self._number(current)
            self._database.execute(
                "UPDATE models SET governance = ? WHERE id = ?", (to_json(changed.to_fields()), number)
            )
            self._touch(number)
            detail = {"from": current.governance.status.value, "to": wanted.value, "reason": reason}
            add_event(self._database, "governance", current.name, str(current.version), actor, detail)
            return self.store.model(number)

    def _touch(self, number: int) -> None:
        self._database.execute("UPDATE models SET updated_at = ? WHERE id = ?", (now_microseconds(), number))

    # Removing

    def delete(self, model: RegisteredModel, *, actor: str = "", reason: str = "") -> None:
        """Remove a version. Its events stay; its files go with a later :meth:`gc`.

        Raises:
            ModelNotFoundError: it was deleted already.
            InvalidTransitionError: it is in production.
            LineageError: other versions come from it.
            RegistryError: an alias names it.
        """
        actor, reason = check_text("actor", actor), check_text("reason", reason)
        with self._database.transaction():
            number, current = self._number(model), self._current(model)
            if current.status is ModelStatus.PRODUCTION:
                raise InvalidTransitionError(
                    current.reference, current.status.value, "deleted", "promote another version or archive it first"
                )
            if current.aliases:
                raise RegistryError(
                    f"{current.reference} is named by {', '.join(current.aliases)}: remove the aliases first"
                )
            lineage_graph.check_childless(self.store, number)
            for file in current.files:
                with suppress(OSError):
                    os.utime(self.store.blobs.path_of(file.sha256))  # gc counts its grace period from here
            self._database.execute("DELETE FROM models WHERE id = ?", (number,))
            detail = {"id": current.id, "digest": current.digest, "status": current.status.value, "reason": reason}
            add_event(self._database, "deleted", current.name, str(current.version), actor, detail)

    def gc(self, *, grace_seconds: float = GRACE_SECONDS, dry_run: bool = False, actor: str = "") -> GcReport:
        """Remove contents that no version and no running writer names.

        Args:
            grace_seconds: contents stay so long after they were written, or last lost a version.
            dry_run: count, and remove nothing.
            actor: who does it.

        Raises:
            StorageError: a file cannot be removed.
        """
        return maintenance.collect(
            self.store,
            grace_seconds=number(grace_seconds, "grace_seconds", least=0.0),
            dry_run=flag(dry_run, "dry_run"),
            actor=check_text("actor", actor),
        )
