"""A disk that fails at the n-th step of a call, for every n: a typed error, and the registry as it was."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lattice_tune import ModelRegistry, RollbackController, StorageError, WeightIntegrityError
from lattice_tune.registry import database

from .conftest import live, staged

STEPS = ("open", "mkdir", "fsync", "replace", "rename", "link", "unlink", "utime", "listdir", "stat", "lstat")
MOST_STEPS = 200


@contextmanager
def failing_at(step: int) -> Iterator[list[str]]:
    """Let the ``step``-th call of the system fail, and yield the names of the calls that were made."""
    made: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if len(made) == step:
                raise OSError(errno.EIO, "Input/output error")
            return call(*arguments, **options)

        return counting

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield made


def make_source(folder: Path) -> Path:
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"a" * 100)
    (folder / "deep" / "b").write_bytes(b"b" * 100)
    return folder


Call = Callable[[ModelRegistry, Path], object]
CALLS: dict[str, Call] = {
    "register": lambda registry, folder: registry.register("intent", "3.0.0", b"new"),
    "register what is there": lambda registry, folder: registry.register("intent", "3.0.0", b"intent 1.0.0"),
    "register a folder": lambda registry, folder: registry.register("intent", "3.0.0", folder / "source"),
    "validate": lambda registry, folder: registry.set_status(registry.get("intent", "2.0.0"), "validated"),
    "promote": lambda registry, folder: registry.promote(registry.get("intent", "1.2.0")),
    "roll back": lambda registry, folder: RollbackController(registry).rollback("intent", reason="x"),
    "delete": lambda registry, folder: registry.delete(registry.get("intent", "2.0.0")),
    "collect": lambda registry, folder: registry.gc(grace_seconds=0),
    "import": lambda registry, folder: registry.import_(folder / "x.zip"),
}


def state(registry: ModelRegistry) -> tuple[list[object], list[object]]:
    return list(registry.list()), list(registry.events())


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_call_that_fails_at_any_step_changes_nothing(tmp_path: Path, call: str) -> None:
    with ModelRegistry(tmp_path / "whole") as registry:
        live(registry, "intent", "1.0.0")
        live(registry, "intent", "1.1.0")
        staged(registry, "intent", "1.2.0")
        registry.register("intent", "2.0.0", b"two")
        registry.delete(registry.register("intent", "2.1.0", b"for gc"))
        before = state(registry)
    make_source(tmp_path / "source")
    with ModelRegistry(tmp_path / "other") as other:
        other.export(other.register("imported", "1.0.0", tmp_path / "source"), tmp_path / "x.zip")
    refused = 0
    for step in range(1, MOST_STEPS):
        shutil.copytree(tmp_path / "whole", tmp_path / str(step))
        with ModelRegistry(tmp_path / str(step)) as registry:
            with failing_at(step) as made:
                try:
                    CALLS[call](registry, tmp_path)
                    done = True
                except (StorageError, WeightIntegrityError):
                    done = False
            refused += not done
            assert (state(registry) != before) == done, made[-1]
            assert registry.verify().is_clean, made[-1]
            # what a failure left does not keep the next call from being made, and goes with the next collection
            if not done:
                CALLS[call](registry, tmp_path)
            registry.gc(grace_seconds=0)
            assert registry.verify().unreferenced == 0
            assert not [path for path in registry.path.rglob("*") if path.name.endswith(".lattice-tmp")]
        shutil.rmtree(tmp_path / str(step))
        if len(made) < step:
            break
    assert len(made) < step
    assert refused >= (0 if call == "delete" else 1)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_copy_and_export_that_fail_leave_what_was_there(registry: ModelRegistry, tmp_path: Path, kind: str) -> None:
    source = make_source(tmp_path / "source")
    model = registry.register("intent", "1.0.0", source if kind == "folder" else source / "a")
    target, bundle = tmp_path / "out" / "target", tmp_path / "out" / "x.zip"
    target.parent.mkdir()
    bundle.write_bytes(b"before")
    for call in (lambda: registry.copy_to(model, target), lambda: registry.export(model, bundle)):
        for step in range(1, MOST_STEPS):
            try:
                with failing_at(step) as made:
                    call()
                break
            except (StorageError, WeightIntegrityError):
                last_of_all = made[-1] in ("fsync", "open") and (bundle.read_bytes() != b"before" or target.exists())
                if not last_of_all:  # there it is whole already, and only its name was not forced to the disk
                    assert bundle.read_bytes() == b"before"
                    assert not target.exists()
        assert not [path for path in target.parent.rglob("*") if path.name.endswith(".lattice-tmp")]
    if kind == "folder":
        assert (target / "deep" / "b").read_bytes() == b"b" * 100
    else:
        assert target.read_bytes() == b"a" * 100
    with ModelRegistry(tmp_path / "other") as other:
        assert other.import_(bundle).digest == model.digest


def test_database_that_is_full_changes_nothing(registry: ModelRegistry) -> None:
    live(registry, "intent", "1.0.0")
    before = state(registry)
    store = registry.store.database
    store.rows(f"PRAGMA max_page_count = {store.number('PRAGMA page_count')}")

    def fill() -> None:
        for number in range(100):
            registry.register("topic", f"1.{number}.0", b"x", description="d" * 10_000)

    with pytest.raises(StorageError, match="full"):
        fill()
    stored = registry.list("topic")
    assert [each for each in registry.list() if each.name == "intent"] == before[0]
    assert registry.verify().is_clean
    store.rows("PRAGMA max_page_count = 1000000")
    registry.register("topic", f"1.{len(stored)}.0", b"x", description="d" * 10_000)
    assert registry.verify().is_clean
    assert isinstance(store, database.Database)
