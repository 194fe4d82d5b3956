"""Several processes do the same thing at the same moment: one of them wins, and the others are told."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lattice_tune import (
    DuplicateModelError,
    InvalidTransitionError,
    ModelNotFoundError,
    ModelRegistry,
    ModelStatus,
    RollbackController,
    TuneError,
)

from .conftest import live, staged

PROCESSES = 8


def together(work: Callable[[int], object]) -> list[str]:
    """Call ``work`` with its number in several processes that wait for each other, and return what each ended with."""
    waiting, started = os.pipe()
    children = []
    for number in range(PROCESSES):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(started)
                os.read(waiting, 1)  # until the parent closes its end
                try:
                    work(number)
                    outcome = "done"
                except TuneError as error:
                    outcome = type(error).__name__
                os.write(writing, outcome.encode())
                os._exit(0)
            except BaseException:
                os._exit(1)
        os.close(writing)
        children.append((child, reading))
    os.close(waiting)
    os.close(started)
    outcomes = []
    for child, reading in children:
        with os.fdopen(reading) as pipe:
            outcomes.append(pipe.read())
        assert os.waitpid(child, 0)[1] == 0
    return outcomes


def test_one_registry_is_made(tmp_path: Path) -> None:
    def make(number: int) -> None:
        with ModelRegistry(tmp_path / "r") as registry:
            registry.register("intent", f"1.{number}.0", b"x")

    assert together(make) == ["done"] * PROCESSES
    with ModelRegistry(tmp_path / "r") as registry:
        assert len(registry.list()) == PROCESSES
        registry.gc(grace_seconds=0)
        assert registry.verify().is_clean
        assert sorted(path.name for path in registry.path.iterdir() if "-" not in path.name) == [
            "blobs",
            "registry.db",
            "writers",
        ]


def test_one_of_several_registrations_of_a_version_wins_whole(registry: ModelRegistry) -> None:
    contents = [b"content %d" % number for number in range(PROCESSES)]
    outcomes = together(lambda number: registry.register("intent", "1.0.0", contents[number], description=str(number)))
    assert Counter(outcomes) == {"done": 1, DuplicateModelError.__name__: PROCESSES - 1}
    (model,) = registry.list()
    winner = outcomes.index("done")
    assert (model.description, registry.load_weights_verified(model)) == (str(winner), contents[winner])
    assert len(registry.events()) == 1
    registry.gc(grace_seconds=0)
    assert registry.verify().unreferenced == 0


def test_promotions_at_once_leave_one_version_live(registry: ModelRegistry) -> None:
    live(registry, "intent", "0.1.0")
    candidates = [staged(registry, "intent", f"1.{number}.0") for number in range(PROCESSES)]
    assert together(lambda number: registry.promote(candidates[number])) == ["done"] * PROCESSES
    statuses = Counter(model.status for model in registry.list())
    assert statuses == {ModelStatus.PRODUCTION: 1, ModelStatus.ARCHIVED: PROCESSES}
    # each promotion replaced the one before it
    promoted = registry.events(kind="promoted")
    assert [event.detail["from"] for event in promoted] == [None, *(event.version for event in promoted[:-1])]
    assert registry.verify().is_clean


def test_one_version_is_promoted_once(registry: ModelRegistry) -> None:
    model = staged(registry, "intent", "1.0.0")
    outcomes = together(lambda number: registry.promote(model))
    assert Counter(outcomes) == {"done": 1, InvalidTransitionError.__name__: PROCESSES - 1}


def test_rollbacks_at_once_use_each_version_once(registry: ModelRegistry) -> None:
    for number in range(4):
        live(registry, "intent", f"1.{number}.0")
    outcomes = together(lambda number: RollbackController(registry).rollback("intent", reason=str(number)))
    assert outcomes.count("done") == 3
    assert set(outcomes) <= {"done", ModelNotFoundError.__name__}
    records = RollbackController(registry).history()
    assert [(record.from_version, record.to_version) for record in records] == [
        ("1.3.0", "1.2.0"),
        ("1.2.0", "1.1.0"),
        ("1.1.0", "1.0.0"),
    ]
    assert registry.verify().is_clean


def test_an_alias_set_by_several_names_one_version(registry: ModelRegistry) -> None:
    models = [registry.register("intent", f"1.{number}.0", b"x") for number in range(PROCESSES)]
    assert together(lambda number: registry.set_alias(models[number], "canary")) == ["done"] * PROCESSES
    assert sum("canary" in model.aliases for model in registry.list()) == 1
    assert registry.events()[-1].version == str(registry.get("intent", "canary").version)


@pytest.mark.parametrize("step", ["BEGIN IMMEDIATE", "before COMMIT"])
def test_an_interrupt_leaves_no_transaction_open(
    registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    model = registry.register("intent", "1.0.0", b"x")
    database = registry.store.database
    rows = database.rows

    writes = False

    def interrupted(statement: str, values: tuple[object, ...] = (), **options: Any) -> object:
        nonlocal writes
        writes |= statement == "BEGIN IMMEDIATE"
        if statement == "COMMIT" and writes:
            raise KeyboardInterrupt
        found = rows(statement, values, **options)
        if statement == step:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(database, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        registry.set_status(model, "archived")
    monkeypatch.undo()
    assert registry.get("intent", "1.0.0").status is ModelStatus.PENDING
    assert registry.set_status(model, "archived").status is ModelStatus.ARCHIVED
    assert registry.verify().is_clean
