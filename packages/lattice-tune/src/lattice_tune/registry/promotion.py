"""Changes of status.

Each name has one version in production, swapped in one transaction with the live pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lattice_tune.arguments import listed
from lattice_tune.errors import InvalidInputError, ModelNotFoundError, PromotionRefusedError, RegistryBusyError, shown
from lattice_tune.registry.promotion_gates import HashVerified, PromotionGate
from lattice_tune.registry.records import RegisteredModel
from lattice_tune.registry.schema import add_event, now_microseconds
from lattice_tune.registry.statuses import ModelStatus, check_transition
from lattice_tune.registry.store import RegistryStore
from lattice_tune.registry.stored_values import CHAMPION

if TYPE_CHECKING:
    from lattice_tune.registry.model_registry import ModelRegistry

__all__ = ["change_status", "checked_gates", "promote", "put_into_production"]

ATTEMPTS = 10
"""How often gates are tried again because another version went live meanwhile."""


@dataclass(frozen=True)
class Swap:
    """A version that went live, and the number of the event that says so."""

    model: RegisteredModel
    event: int


def checked_gates(gates: object) -> tuple[PromotionGate, ...]:
    """Return a list of gates as a tuple.

    Raises:
        InvalidInputError: one is no gate.
    """
    checked = tuple(listed(gates, "gates", "gates, such as MetricThreshold"))
    for gate in checked:
        if isinstance(gate, type) or not isinstance(gate, PromotionGate):
            raise InvalidInputError(
                f"{shown(gate)} is no promotion gate, such as MetricThreshold('macro_f1', at_least=0.8)"
            )
    return checked


def change_status(
    store: RegistryStore, model: RegisteredModel, wanted: ModelStatus, *, actor: str, reason: str
) -> RegisteredModel:
    """Set a status that is not production.

    Raises:
        InvalidTransitionError: the graph has no such step from the version's status, as it is now.
        ModelNotFoundError: the version was deleted meanwhile.
    """
    with store.database.transaction():
        number, status = _row_of(store, model)
        check_transition(model.reference, status, wanted)
        _set_status(store, number, wanted)
        if status is ModelStatus.PRODUCTION:
            store.database.execute("DELETE FROM aliases WHERE name = ? AND alias = ?", (model.name, CHAMPION))
        detail = {"from": status.value, "to": wanted.value, "reason": reason}
        add_event(store.database, "status", model.name, str(model.version), actor, detail)
        return store.model(number)


def promote(
    registry: ModelRegistry, model: RegisteredModel, *, gates: Sequence[PromotionGate], actor: str, reason: str
) -> RegisteredModel:
    """Put a staged version into production if every gate lets it.

    Raises:
        InvalidTransitionError: it is not staged.
        AdapterNotApprovedError: it is an adapter that is quarantined or revoked.
        PromotionRefusedError: a gate refused.
        RegistryBusyError: other versions went live again and again while the gates were tried.
    """
    gates = (HashVerified(), *gates)
    for _ in range(ATTEMPTS):
        candidate, live = registry.get(model.name, model.version), registry.get_production(model.name)
        if candidate.id != model.id:
            raise ModelNotFoundError(model.name, str(model.version), " any more: it was deleted and registered again")
        check_transition(candidate.reference, candidate.status, ModelStatus.PRODUCTION)
        if candidate.governance is not None:
            candidate.governance.check_approved(candidate.reference)
        refusals = [(gate.gate_name, gate.refusal(registry, candidate, live)) for gate in gates]
        failed = tuple((name, reason) for name, reason in refusals if reason is not None)
        if failed:
            raise PromotionRefusedError(candidate.reference, failed)
        detail: dict[str, object] = {"reason": reason, "gates": [gate.gate_name for gate in gates]}
        promoted = put_into_production(
            registry.store, candidate, live, kind="promoted", actor=actor, detail=detail, rollback=False
        )
        if promoted is not None:
            return promoted.model
    raise RegistryBusyError(f"{model.reference} was not promoted: {ATTEMPTS} times another version went live meanwhile")


def put_into_production(
    store: RegistryStore,
    candidate: RegisteredModel,
    live: RegisteredModel | None,
    *,
    kind: str,
    actor: str,
    detail: dict[str, object],
    rollback: bool,
) -> Swap | None:
    """Swap the version in production.

    ``None``, and nothing changed, if another than ``live`` is there now.

    Raises:
        InvalidTransitionError: the candidate's status, as it is now, does not lead to production.
        AdapterNotApprovedError: it is an adapter that is quarantined or revoked.
    """
    with store.database.transaction():
        now_live = store.live_row(candidate.name)
        if (now_live[1] if now_live else None) != (live.id if live else None):
            return None
        number, status = _row_of(store, candidate)
        check_transition(candidate.reference, status, ModelStatus.PRODUCTION, rollback=rollback)
        governance = store.model(number).governance
        if governance is not None:
            governance.check_approved(candidate.reference)
        if now_live is not None:
            _set_status(store, now_live[0], ModelStatus.DEPRECATED if rollback else ModelStatus.ARCHIVED)
        _set_status(store, number, ModelStatus.PRODUCTION)
        store.database.execute(
            "INSERT INTO aliases VALUES (?, ?, ?) ON CONFLICT (name, alias) DO UPDATE SET model = excluded.model",
            (candidate.name, CHAMPION, number),
        )
        swapped = {"from": str(live.version) if live is not None else None}
        event = add_event(store.database, kind, candidate.name, str(candidate.version), actor, swapped | detail)
        return Swap(store.model(number), event)


def _row_of(store: RegistryStore, model: RegisteredModel) -> tuple[int, ModelStatus]:
    rows = store.database.rows("SELECT id, status FROM models WHERE uuid = ?", (model.id,), of=(int, str))
    if not rows:
        raise ModelNotFoundError(model.name, str(model.version), " any more")
    return int(rows[0][0]), ModelStatus.of(rows[0][1])


def _set_status(store: RegistryStore, number: int, status: ModelStatus) -> None:
    store.database.execute(
        "UPDATE models SET status = ?, updated_at = ? WHERE id = ?", (status.value, now_microseconds(), number)
    )
