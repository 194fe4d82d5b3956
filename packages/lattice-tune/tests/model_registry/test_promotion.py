"""The graph of statuses, gates, the swap of the version in production, and the way back."""

from __future__ import annotations

from itertools import product

import pytest

from lattice_tune import (
    InvalidInputError,
    InvalidTransitionError,
    MetricThreshold,
    ModelMetadata,
    ModelNotFoundError,
    ModelRegistry,
    ModelStatus,
    NotWorseThanLive,
    PromotionRefusedError,
    RegisteredModel,
    RollbackController,
    WeightIntegrityError,
)
from lattice_tune.registry.statuses import check_transition

from .conftest import live, staged

ALLOWED = {
    *{("pending", "validated"), ("validated", "staged"), ("staged", "production"), ("archived", "staged")},
    *{(status, "archived") for status in ("pending", "validated", "staged", "production")},
    *{(status, "deprecated") for status in ("pending", "validated", "staged", "production", "archived")},
}


@pytest.mark.parametrize(("before", "after"), list(product(ModelStatus, ModelStatus)))
def test_graph_has_these_steps_and_no_others(before: ModelStatus, after: ModelStatus) -> None:
    if (before.value, after.value) in ALLOWED:
        check_transition("x", before, after)
    else:
        with pytest.raises(InvalidTransitionError, match=f"x is {before.value} and cannot become {after.value}"):
            check_transition("x", before, after)


def test_only_promote_leads_into_production(registry: ModelRegistry) -> None:
    model = registry.register("intent", "1.0.0", b"x")
    with pytest.raises(InvalidTransitionError, match=r"promote\(\)"):
        registry.set_status(model, "production")
    with pytest.raises(InvalidTransitionError, match="may become validated"):
        registry.promote(model)
    with pytest.raises(InvalidInputError, match="must be one of pending"):
        registry.set_status(model, "live")
    assert registry.promote(staged(registry, "intent", "1.1.0")).status is ModelStatus.PRODUCTION


def test_promotion_archives_the_version_before_and_moves_champion(registry: ModelRegistry) -> None:
    first = live(registry, "intent", "1.0.0")
    other = live(registry, "topic", "1.0.0")
    assert registry.get("intent", "champion").id == first.id
    second = live(registry, "intent", "1.1.0", kind="student")
    assert second.aliases == ("champion",)
    assert registry.get("intent", "1.0.0").status is ModelStatus.ARCHIVED
    assert registry.get_production("topic") == other
    registry.set_status(second, "archived")
    assert registry.get_production("intent") is None
    with pytest.raises(ModelNotFoundError):
        registry.get("intent", "champion")
    assert registry.verify().is_clean


def test_database_itself_refuses_a_second_version_in_production(registry: ModelRegistry) -> None:
    live(registry, "intent", "1.0.0")
    staged(registry, "intent", "1.1.0")
    database = registry.store.database
    with pytest.raises(Exception, match="UNIQUE"), database.transaction():
        database.execute("UPDATE models SET status = 'production'")
    assert registry.verify().is_clean


def measured(registry: ModelRegistry, version: str, **metrics: float) -> RegisteredModel:
    return staged(registry, "intent", version, metadata=ModelMetadata(validation_accuracy=0.9, metrics=metrics))


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (MetricThreshold("f1", at_least=0.8), None),
        (MetricThreshold("f1", at_least=0.81), "at least 0.81"),
        (MetricThreshold("f1", at_most=0.8), None),
        (MetricThreshold("f1", at_most=0.79), "at most 0.79"),
        (MetricThreshold("recall", at_least=0.0), "not measured"),
        (MetricThreshold("validation_accuracy", at_least=0.9), None),
        (MetricThreshold("test_accuracy", at_least=0.1), "not measured"),
        (NotWorseThanLive("f1"), "intent@1.0.0 has 0.85"),
        (NotWorseThanLive("f1", tolerance=0.06), None),
        (NotWorseThanLive("f1", higher_is_better=False), None),
        (NotWorseThanLive("same"), None),
        (NotWorseThanLive("same", higher_is_better=False), None),
        (NotWorseThanLive("lower", tolerance=0.25), None),
        (NotWorseThanLive("lower", tolerance=0.24), "intent@1.0.0 has 0.75"),
        (NotWorseThanLive("loss", higher_is_better=False), "not measured for intent@1.0.0"),
    ],
)
def test_gate_decides(registry: ModelRegistry, gate: MetricThreshold, reason: str | None) -> None:
    registry.promote(measured(registry, "1.0.0", f1=0.85, same=0.5, lower=0.75))
    candidate = measured(registry, "1.1.0", f1=0.8, loss=1.0, same=0.5, lower=0.5)
    if reason is None:
        assert registry.promote(candidate, gates=[gate]).status is ModelStatus.PRODUCTION
        assert gate.gate_name in registry.events()[-1].detail["gates"]
        return
    events = len(registry.events())
    with pytest.raises(PromotionRefusedError, match=reason) as caught:
        registry.promote(candidate, gates=[gate])
    assert [name for name, _ in caught.value.failed] == [gate.gate_name]
    assert len(registry.events()) == events
    assert registry.get("intent", "champion").version.minor == 0


def test_every_gate_that_refuses_is_named(registry: ModelRegistry) -> None:
    gates = [MetricThreshold(name, at_least=1) for name in ("a", "b")]
    with pytest.raises(PromotionRefusedError) as caught:
        registry.promote(staged(registry, "intent", "1.0.0"), gates=gates)
    assert [name for name, _ in caught.value.failed] == ["metric a", "metric b"]


def test_tampered_file_does_not_go_live(registry: ModelRegistry) -> None:
    model = staged(registry, "intent", "1.0.0")
    path = registry.store.blobs.path_of(model.digest)
    path.chmod(0o644)
    path.write_bytes(b"intent 1.0.1")
    with pytest.raises(PromotionRefusedError, match="hash verified"):
        registry.promote(model)
    with pytest.raises(WeightIntegrityError):
        registry.check_files(model)


def test_gates_see_the_version_that_is_live_when_it_is_replaced(registry: ModelRegistry) -> None:
    """Another version goes live while a gate decides: it decides again."""
    live(registry, "intent", "1.0.0")
    candidate, rival = staged(registry, "intent", "1.1.0"), staged(registry, "intent", "1.2.0")
    seen = []

    class Slow:
        gate_name = "slow"

        def refusal(self, registry: ModelRegistry, candidate: object, live: RegisteredModel | None) -> str | None:
            seen.append(str(live.version) if live else None)
            if len(seen) == 1:
                registry.promote(rival)
            return None

    registry.promote(candidate, gates=[Slow()])
    assert seen == ["1.0.0", "1.2.0"]
    assert registry.get("intent", "1.2.0").status is ModelStatus.ARCHIVED
    assert registry.verify().is_clean


@pytest.mark.parametrize("gates", [None, 1, "x", [1], [MetricThreshold], [None]])
def test_what_is_no_gate_is_refused(registry: ModelRegistry, gates: object) -> None:
    with pytest.raises(InvalidInputError):
        registry.promote(staged(registry, "intent", "1.0.0"), gates=gates)  # type: ignore[arg-type]


def test_rollback_goes_back_marks_the_loser_and_says_why(registry: ModelRegistry) -> None:
    for version in ("1.0.0", "1.1.0", "1.2.0"):
        live(registry, "intent", version)
    controller = RollbackController(registry)
    record = controller.rollback("intent", reason="accuracy fell", actor="me")
    assert (record.from_version, record.to_version, record.reason, record.actor) == (
        "1.2.0",
        "1.1.0",
        "accuracy fell",
        "me",
    )
    assert registry.get("intent", "1.2.0").status is ModelStatus.DEPRECATED
    assert registry.get("intent", "champion").version.minor == 1
    again = controller.rollback("intent", reason="this one as well")
    assert again.to_version == "1.0.0"
    assert controller.history("intent") == [record, again] == controller.history()
    assert controller.last("intent") == again
    assert controller.involving(registry.get("intent", "1.2.0")) == [record]
    assert controller.last("topic") is None
    with pytest.raises(ModelNotFoundError, match="to go back to"):
        controller.rollback("intent", reason="nothing is left")
    assert registry.verify().is_clean


def test_rollback_leaves_out_what_is_damaged_or_gone(registry: ModelRegistry) -> None:
    versions = {version: live(registry, "intent", version) for version in ("1.0.0", "1.1.0", "1.2.0", "1.3.0")}
    registry.store.blobs.path_of(versions["1.2.0"].digest).unlink()
    registry.delete(versions["1.1.0"])
    controller = RollbackController(registry)
    with pytest.raises(WeightIntegrityError):
        controller.rollback("intent", "1.2.0", reason="to a damaged one")
    assert controller.rollback("intent", reason="x").to_version == "1.0.0"


def test_rollback_takes_what_was_live_only(registry: ModelRegistry) -> None:
    controller = RollbackController(registry)
    with pytest.raises(ModelNotFoundError, match="in production"):
        controller.rollback("intent", reason="x")
    live(registry, "intent", "1.0.0")
    staged(registry, "intent", "1.1.0")
    with pytest.raises(InvalidTransitionError, match="archived version"):
        controller.rollback("intent", "1.1.0", reason="x")
    with pytest.raises(InvalidInputError, match="reason"):
        controller.rollback("intent", reason=" ")
