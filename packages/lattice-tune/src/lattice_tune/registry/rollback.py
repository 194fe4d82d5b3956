"""Going back to the version that was live before, with the loser marked and the reason kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from lattice_tune.arguments import instance
from lattice_tune.errors import ModelNotFoundError, RegistryBusyError, WeightIntegrityError
from lattice_tune.registry.adapter_governance import AdapterStatus
from lattice_tune.registry.model_registry import ModelRegistry
from lattice_tune.registry.promotion import ATTEMPTS, put_into_production
from lattice_tune.registry.records import RegisteredModel, RegistryEvent
from lattice_tune.registry.semantic_version import SemanticVersion
from lattice_tune.registry.statuses import ModelStatus, check_transition
from lattice_tune.registry.stored_values import check_name, check_text

__all__ = ["RollbackController", "RollbackRecord"]


@dataclass(frozen=True)
class RollbackRecord:
    """One rollback.

    Attributes:
        event: the number of its event.
        at: when, in UTC.
        name: of the model.
        from_version: the loser, which is deprecated since.
        to_version: the version that went live again.
        reason: why.
        actor: who did it.
    """

    event: int
    at: datetime
    name: str
    from_version: str
    to_version: str
    reason: str
    actor: str

    def to_fields(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self) | {"at": self.at.isoformat()}


class RollbackController:
    """Rolls models of a registry back, and says what was rolled back when and why.

    Args:
        registry: where the models are.

    Raises:
        InvalidInputError: it is no registry.
    """

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = instance(registry, "registry", ModelRegistry)

    def rollback(
        self, name: str, to: str | SemanticVersion | None = None, *, reason: str, actor: str = ""
    ) -> RollbackRecord:
        """Put an archived version into production again and deprecate the present one, in one step.

        Args:
            name: of the model.
            to: the version; by default the last one that was live before and is archived and sound.
            reason: why; it must say something.
            actor: who does it.

        Raises:
            ModelNotFoundError: nothing is in production, or there is no version to go back to.
            InvalidTransitionError: ``to`` is not archived.
            WeightIntegrityError: a file of ``to`` is missing, or is not what was registered.
            AdapterNotApprovedError: ``to`` is an adapter that is quarantined or revoked.
            RegistryBusyError: other versions went live again and again meanwhile.
        """
        check_name(name)
        reason, actor = check_text("reason", reason, empty=False), check_text("actor", actor)
        registry = self._registry
        for _ in range(ATTEMPTS):
            live = registry.get_production(name)
            if live is None:
                raise ModelNotFoundError(name, "in production")
            target = self._previous(live) if to is None else registry.get(name, to)
            check_transition(target.reference, target.status, ModelStatus.PRODUCTION, rollback=True)
            registry.check_files(target)
            done = put_into_production(
                registry.store, target, live, kind="rolled_back", actor=actor, detail={"reason": reason}, rollback=True
            )
            if done is not None:
                (event,) = registry.events(name, after=done.event - 1, limit=1)
                return _record_of(event)
        raise RegistryBusyError(f"{name} was not rolled back: {ATTEMPTS} times another version went live meanwhile")

    def history(self, name: str | None = None) -> list[RollbackRecord]:
        """Return the rollbacks of a model, or of all, in the order in which they happened."""
        return [_record_of(event) for event in self._registry.events(name, kind="rolled_back")]

    def last(self, name: str) -> RollbackRecord | None:
        """Return the last rollback of a model, or ``None``."""
        history = self.history(check_name(name))
        return history[-1] if history else None

    def involving(self, model: RegisteredModel) -> list[RollbackRecord]:
        """Return the rollbacks to or from a version."""
        version = str(instance(model, "model", RegisteredModel).version)
        return [record for record in self.history(model.name) if version in (record.from_version, record.to_version)]

    def _previous(self, live: RegisteredModel) -> RegisteredModel:
        """Return the last version that was live before ``live`` and can be again."""
        tried = {str(live.version)}
        swaps = self._registry.events(live.name, kind="promoted") + self._registry.events(live.name, kind="rolled_back")
        for event in sorted(swaps, key=lambda event: event.id, reverse=True):
            if event.version in tried:
                continue
            tried.add(event.version)
            try:
                model = self._registry.get(live.name, event.version)
                self._registry.check_files(model)
            except (ModelNotFoundError, WeightIntegrityError):
                continue
            approved = model.governance is None or model.governance.status is AdapterStatus.APPROVED
            if model.status is ModelStatus.ARCHIVED and approved:
                return model
        raise ModelNotFoundError(live.name, "to go back to", ": none that was live before is archived and sound")


def _record_of(event: RegistryEvent) -> RollbackRecord:
    return RollbackRecord(
        event=event.id,
        at=event.at,
        name=event.name,
        from_version=str(event.detail.get("from")),
        to_version=event.version,
        reason=str(event.detail.get("reason")),
        actor=event.actor,
    )
