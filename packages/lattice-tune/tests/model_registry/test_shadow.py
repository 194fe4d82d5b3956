"""Candidates beside the live version: samples by hash, an interval for the agreement, times, verdicts that last."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from lattice_tune import (
    InvalidInputError,
    ModelNotFoundError,
    ModelRegistry,
    PromotionRefusedError,
    RegisteredModel,
    RegistryCorruptError,
    RegistryError,
    ShadowConfig,
    ShadowPassed,
    ShadowSession,
    ShadowState,
    wilson_interval,
)

from .conftest import live, staged


@pytest.mark.parametrize(
    ("successes", "trials"), [(0, 1), (1, 1), (0, 40), (40, 40), (7, 9), (950, 1000), (99_999, 100_000)]
)
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_wilson_interval_is_that_of_scipy(successes: int, trials: int, confidence: float) -> None:
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson_interval(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_nothing_is_known_without_trials() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    for wrong in ((2, 1), (-1, 1), (1, 1, math.nan), (1, 1, 1.0), (1.5, 2)):
        with pytest.raises(InvalidInputError):
            wilson_interval(*wrong)  # type: ignore[arg-type]


@pytest.fixture
def candidate(registry: ModelRegistry) -> RegisteredModel:
    live(registry, "intent", "1.0.0")
    return staged(registry, "intent", "1.1.0")


SMALL = ShadowConfig(sample_rate=1.0, min_samples=20, min_agreement=0.8, max_latency_increase_ms=5.0)


def record(session: ShadowSession, count: int, *, agree: int, slower: float = 1.0, start: int = 0) -> int:
    rows = [(f"text {number}", number - start < agree, 10.0, 10.0 + slower) for number in range(start, start + count)]
    return session.record_many(rows)


def test_samples_are_chosen_by_hash_and_the_same_after_a_restart(
    registry: ModelRegistry, candidate: RegisteredModel
) -> None:
    session = ShadowSession.start(registry, candidate, ShadowConfig(sample_rate=0.25))
    texts = [f"text {number}" for number in range(4_000)]
    wanted = [session.wants(text) for text in texts]
    assert abs(sum(wanted) / 4_000 - 0.25) < 0.04
    with ModelRegistry(registry.path) as other:
        again = ShadowSession.resume(other, candidate)
        assert [again.wants(text.encode()) for text in texts] == wanted
        counted = [again.record(text, agreed=True, live_ms=1, candidate_ms=1) for text in texts[:100]]
        assert counted == wanted[:100]
    assert session.progress().samples == sum(wanted[:100])


def test_session_survives_restarts_and_counts_a_sample_once(tmp_path: Path) -> None:
    with ModelRegistry(tmp_path / "r") as registry:
        live(registry, "intent", "1.0.0")
        model = staged(registry, "intent", "1.1.0")
        session = ShadowSession.start(registry, model, SMALL)
        assert record(session, 15, agree=15) == 15
        number = session.session
    with ModelRegistry(tmp_path / "r") as registry:
        session = ShadowSession(registry, number)
        assert session.config == SMALL
        assert record(session, 15, agree=0) == 0
        assert record(session, 10, agree=10, start=10) == 5
        assert (session.progress().samples, session.progress().agreements) == (20, 20)
        assert session.evaluate().state is ShadowState.PASSED
    with ModelRegistry(tmp_path / "r") as registry:
        assert ShadowSession.resume(registry, model).progress().state is ShadowState.PASSED
        assert [event.kind for event in registry.events()][-2:] == ["shadow_started", "shadow_ended"]
        assert registry.verify().is_clean


def test_quantiles_are_those_of_numpy(registry: ModelRegistry, candidate: RegisteredModel) -> None:
    session = ShadowSession.start(registry, candidate, SMALL)
    assert math.isnan(session.progress().live_ms[0.5])
    times = np.random.default_rng(0).exponential(10, (50, 2))
    session.record_many([(f"{row}", True, *map(float, pair)) for row, pair in enumerate(times)])
    progress = session.progress()
    for column, found in enumerate((progress.live_ms, progress.candidate_ms)):
        assert list(found.values()) == pytest.approx(np.quantile(times[:, column], [0.5, 0.95, 0.99]).tolist())
    assert progress.latency_increase_ms == pytest.approx(np.diff(np.quantile(times, 0.95, axis=0)).item())


@pytest.mark.parametrize(
    ("count", "agree", "slower", "state"),
    [
        (19, 19, 0.0, "running"),  # too few
        (20, 20, 0.0, "passed"),
        (20, 20, 5.0, "passed"),
        (20, 20, 5.1, "failed"),  # too slow
        (20, 8, 0.0, "failed"),  # the whole interval is below
        (20, 17, 0.0, "running"),  # 0.8 is within the interval
        (200, 161, 0.0, "failed"),  # undecided after the most samples
        (200, 180, 0.0, "passed"),
    ],
)
def test_verdict(
    registry: ModelRegistry, candidate: RegisteredModel, count: int, agree: int, slower: float, state: str
) -> None:
    session = ShadowSession.start(registry, candidate, SMALL)
    record(session, count, agree=agree, slower=slower)
    progress = session.evaluate()
    assert progress.state.value == state
    assert bool(progress.reason) == (state != "running")
    assert session.evaluate() == progress
    if state == "passed":
        assert registry.promote(candidate, gates=[ShadowPassed()]).status.value == "production"
    else:
        with pytest.raises(PromotionRefusedError, match=f"is {state}"):
            registry.promote(candidate, gates=[ShadowPassed()])


def test_session_that_ended_takes_nothing_more(registry: ModelRegistry, candidate: RegisteredModel) -> None:
    session = ShadowSession.start(registry, candidate, SMALL)
    record(session, 20, agree=20)
    session.evaluate()
    assert record(session, 20, agree=0, start=100) == 0
    with pytest.raises(RegistryError, match="passed already"):
        session.cancel()
    second = ShadowSession.start(registry, candidate, SMALL)
    with pytest.raises(RegistryError, match="resume or cancel"):
        ShadowSession.start(registry, candidate)
    second.cancel(reason="a test")
    assert second.progress().state is ShadowState.CANCELLED
    assert ShadowSession.resume(registry, candidate).session == second.session


def test_session_beside_another_live_version_does_not_count(
    registry: ModelRegistry, candidate: RegisteredModel
) -> None:
    with pytest.raises(PromotionRefusedError, match="no shadow session"):
        registry.promote(candidate, gates=[ShadowPassed()])
    session = ShadowSession.start(registry, candidate, SMALL)
    record(session, 20, agree=20)
    session.evaluate()
    live(registry, "intent", "1.0.1")
    with pytest.raises(PromotionRefusedError, match="another version"):
        registry.promote(candidate, gates=[ShadowPassed()])


def test_only_candidates_beside_a_live_version_have_sessions(registry: ModelRegistry) -> None:
    model = staged(registry, "intent", "1.0.0")
    with pytest.raises(ModelNotFoundError, match="in production"):
        ShadowSession.start(registry, model)
    registry.promote(model)
    with pytest.raises(InvalidInputError, match="no candidate"):
        ShadowSession.start(registry, model)
    candidate = staged(registry, "intent", "1.1.0")
    with pytest.raises(ModelNotFoundError):
        ShadowSession.resume(registry, candidate)
    session = ShadowSession.start(registry, candidate)
    registry.delete(candidate)
    for call in (session.progress, session.evaluate, session.cancel, lambda: ShadowSession(registry, session.session)):
        with pytest.raises(ModelNotFoundError):
            call()


@pytest.mark.parametrize(
    "fields",
    [
        {"sample_rate": 0},
        {"sample_rate": 1.1},
        {"min_samples": 0},
        {"min_samples": 1.5},
        {"min_agreement": math.nan},
        {"confidence": 1.0},
        {"max_samples": 10},
        {"max_latency_increase_ms": -1},
        {"max_latency_increase_ms": math.inf},
    ],
    ids=str,
)
def test_limits_that_make_no_sense_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError):
        ShadowConfig(**fields)  # type: ignore[arg-type]


def test_presets_are_those_of_the_reference() -> None:
    def limits(config: ShadowConfig) -> tuple[float, ...]:
        return config.sample_rate, config.min_samples, config.min_agreement, config.max_latency_increase_ms

    assert limits(ShadowConfig()) == (0.1, 1_000, 0.95, 50)
    assert limits(ShadowConfig.quick()) == (0.2, 100, 0.9, 100)
    assert limits(ShadowConfig.strict()) == (0.1, 10_000, 0.99, 20)


@pytest.mark.parametrize(
    "row",
    [("x", True, -1, 1), ("x", True, 1, math.nan), ("x", "yes", 1, 1), (1, True, 1, 1), ("x", True), None, "abcd"],
)
def test_samples_that_make_no_sense_are_refused(
    registry: ModelRegistry, candidate: RegisteredModel, row: object
) -> None:
    session = ShadowSession.start(registry, candidate, SMALL)
    with pytest.raises(InvalidInputError):
        session.record_many([("good", True, 1, 1), row])  # type: ignore[list-item]
    assert session.progress().samples == 0


@pytest.mark.parametrize("fields", ["[" * 100_000, "[]", "{", '{"sample_rate": 2}', '{"no_such_field": 1}'])
def test_the_configuration_in_a_damaged_row_is_refused(
    registry: ModelRegistry, candidate: RegisteredModel, fields: str
) -> None:
    session = ShadowSession.start(registry, candidate, SMALL)
    database = registry.store.database
    with database.transaction():
        database.execute("UPDATE shadow_sessions SET config = ?", (fields,))
    with pytest.raises(RegistryCorruptError, match="shadow session"):
        ShadowSession(registry, session.session)
