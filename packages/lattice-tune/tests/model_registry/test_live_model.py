"""The version that is live, seen by readers: never waiting, never half of one and half of another."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from lattice_tune import (
    InvalidInputError,
    LiveModel,
    ModelNotFoundError,
    ModelRegistry,
    RegisteredModel,
    RollbackController,
    WeightIntegrityError,
)

from .conftest import live, staged

PROMOTE = """
import sys
from lattice_tune import ModelRegistry
with ModelRegistry(sys.argv[1]) as registry:
    registry.promote(registry.get("intent", sys.argv[2]))
"""


def weights(registry: ModelRegistry, model: RegisteredModel) -> bytes:
    return registry.load_weights_verified(model)


def test_refresh_sees_promotions_and_rollbacks(registry: ModelRegistry) -> None:
    live(registry, "intent", "1.0.0")
    with LiveModel(registry, "intent", weights, poll_seconds=None) as follower:
        assert follower.current.value == b"intent 1.0.0"
        assert follower.refresh() is False
        before = follower.current
        live(registry, "intent", "1.1.0")
        assert follower.current is before
        assert follower.refresh() is True
        assert (str(follower.current.model.version), follower.current.value) == ("1.1.0", b"intent 1.1.0")
        assert before.value == b"intent 1.0.0"
        RollbackController(registry).rollback("intent", reason="x")
        assert follower.refresh() is True
        assert follower.current.value == b"intent 1.0.0"


def test_another_process_promotes_and_the_thread_sees_it(registry: ModelRegistry) -> None:
    live(registry, "intent", "1.0.0")
    staged(registry, "intent", "1.1.0")
    loaded = threading.Event()

    def load(registry: ModelRegistry, model: RegisteredModel) -> bytes:
        if str(model.version) == "1.1.0":
            loaded.set()
        return weights(registry, model)

    with LiveModel(registry, "intent", load, poll_seconds=0.01) as follower:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(
            [sys.executable, "-c", PROMOTE, str(registry.path), "1.1.0"], check=True, env=environment, timeout=120
        )
        assert loaded.wait(60)
        follower.close()  # waits for the thread, which swaps after it has loaded
        assert follower.current.value == b"intent 1.1.0"
        assert follower.last_error is None


def test_readers_do_not_wait_for_a_load_and_see_whole_pairs(registry: ModelRegistry) -> None:
    live(registry, "intent", "1.0.0")
    started, go_on = threading.Event(), threading.Event()

    def load(registry: ModelRegistry, model: RegisteredModel) -> str:
        if str(model.version) != "1.0.0":
            started.set()
            assert go_on.wait(60)
        return f"value of {model.version}"

    with LiveModel(registry, "intent", load, poll_seconds=None) as follower:
        live(registry, "intent", "1.1.0")
        refreshing = threading.Thread(target=follower.refresh)
        refreshing.start()
        assert started.wait(60)
        for _ in range(100):  # the load is on its way: readers have the version before
            current = follower.current
            assert current.value == "value of 1.0.0"
            assert current.value == f"value of {current.model.version}"
        go_on.set()
        refreshing.join(60)
        assert follower.current.value == "value of 1.1.0"


def test_version_that_cannot_be_loaded_leaves_the_one_before(registry: ModelRegistry) -> None:
    live(registry, "intent", "1.0.0")
    failed = threading.Event()

    def load(registry: ModelRegistry, model: RegisteredModel) -> bytes:
        if str(model.version) == "1.1.0":
            registry.store.blobs.path_of(model.digest).unlink(missing_ok=True)
            try:
                return weights(registry, model)
            finally:
                failed.set()
        return weights(registry, model)

    with LiveModel(registry, "intent", load, poll_seconds=0.01) as follower:
        live(registry, "intent", "1.1.0")
        assert failed.wait(60)
        follower.close()
        assert isinstance(follower.last_error, WeightIntegrityError)
        assert follower.current.value == b"intent 1.0.0"


def test_nothing_in_production_is_refused(registry: ModelRegistry) -> None:
    with pytest.raises(ModelNotFoundError, match="in production"):
        LiveModel(registry, "intent", weights)
    model = live(registry, "intent", "1.0.0")
    for wrong in (
        {"poll_seconds": 0},
        {"poll_seconds": float("nan")},
        {"load": None},
        {"name": "../x"},
        {"registry": 1},
    ):
        arguments = {"registry": registry, "name": "intent", "load": weights, "poll_seconds": None} | wrong
        with pytest.raises(InvalidInputError):
            LiveModel(**arguments)  # type: ignore[arg-type]
    with LiveModel(registry, "intent", weights, poll_seconds=None) as follower:
        registry.set_status(model, "archived")
        with pytest.raises(ModelNotFoundError):
            follower.refresh()
        assert follower.current.model.id == model.id
