"""Storing, finding, loading and removing versions."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from lattice_tune import (
    InvalidInputError,
    InvalidTransitionError,
    Lineage,
    ModelMetadata,
    ModelNotFoundError,
    ModelQuery,
    ModelRegistry,
    RegistryError,
    WeightIntegrityError,
)

from .conftest import live


def test_version_is_returned_as_it_was_registered(registry: ModelRegistry) -> None:
    metadata = ModelMetadata(
        architecture="mlp", input_dim=384, metrics={"f1": 0.5}, tags=("a", "b"), extra={"deep": [1, {"x": None}]}
    )
    lineage = Lineage(dataset_digest="d", teacher="t", base_model="b", code_versions={"lattice-tune": "0.1.0"})
    made = registry.register(
        "intent",
        "1.0.0-rc.1+build",
        b"x",
        kind="student",
        metadata=metadata,
        lineage=lineage,
        description="naïve — 日本",
        registered_by="me",
    )
    found = registry.get("intent", "1.0.0-rc.1+build")
    assert found == made
    assert (found.metadata, found.lineage, found.description) == (metadata, lineage, "naïve — 日本")
    assert (found.size, found.is_folder, found.status.value, found.kind.value) == (1, False, "pending", "student")


def test_folder_is_stored_and_copied_back(registry: ModelRegistry, tmp_path: Path) -> None:
    source = tmp_path / "adapter"
    (source / "deep" / "er").mkdir(parents=True)
    contents = {"a.bin": b"a" * 100, "deep/b.json": b"{}", "deep/er/empty": b"", "same.bin": b"a" * 100}
    for name, content in contents.items():
        (source / name).write_bytes(content)
    model = registry.register("style", "1.0.0", source, kind="adapter")
    assert [file.path for file in model.files] == sorted(contents)
    assert registry.verify().blobs == 3
    target = registry.copy_to(model, tmp_path / "out")
    found = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == contents
    with pytest.raises(InvalidInputError, match="holds files already"):
        registry.copy_to(model, source)
    with pytest.raises(InvalidInputError, match="is a file"):
        registry.copy_to(model, source / "a.bin")
    assert registry.load_weights_verified(model, path="deep/b.json") == b"{}"
    with pytest.raises(InvalidInputError, match="pass path"):
        registry.load_weights_verified(model)
    with pytest.raises(ModelNotFoundError, match="with a file"):
        registry.load_weights_verified(model, path="../a.bin")
    assert registry.register("style", "1.0.1", source).digest == model.digest
    (source / "deep" / "b.json").rename(source / "deep" / "c.json")
    assert registry.register("style", "1.0.2", source).digest != model.digest


def test_file_is_copied_back(registry: ModelRegistry, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"weights")
    model = registry.register("intent", "1.0.0", tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"changed since")
    assert registry.copy_to(model, tmp_path / "out.safetensors").read_bytes() == b"weights"
    with pytest.raises(InvalidInputError, match="is a folder"):
        registry.copy_to(model, tmp_path)


def test_latest_is_the_highest_release(registry: ModelRegistry) -> None:
    for version in ("1.9.0", "1.10.0", "1.10.0-rc.2", "2.0.0-rc.11", "2.0.0-rc.2", "0.99.99"):
        registry.register("intent", version, version.encode())
    assert str(registry.get_latest("intent").version) == "1.10.0"
    assert str(registry.get_latest("intent", prereleases=True).version) == "2.0.0-rc.11"
    registry.set_status(registry.get("intent", "1.10.0"), "deprecated")
    assert str(registry.get_latest("intent", active=True).version) == "1.9.0"
    registry.register("intent", "1.10.0+b", b"b")
    registry.register("intent", "1.10.0+a", b"a")
    assert str(registry.get_latest("intent").version) == "1.10.0+a"  # the last registered of equal precedence
    registry.register("topic", "1.0.0-rc.1", b"")
    with pytest.raises(ModelNotFoundError, match="pre-releases left out"):
        registry.get_latest("topic")
    assert [str(model.version) for model in registry.list("intent")][:3] == ["0.99.99", "1.9.0", "1.10.0-rc.2"]
    assert registry.get("intent", "1.10.0").is_newer_than(registry.get("intent", "1.9.0"))
    assert not registry.get("intent", "1.10.0+a").is_newer_than(registry.get("intent", "1.10.0"))


def test_query_takes_what_has_everything(registry: ModelRegistry) -> None:
    for number, accuracy in enumerate((None, 0.7, 0.8, 0.9)):
        metadata = ModelMetadata(validation_accuracy=accuracy, tags=("nightly", f"n{number}"))
        registry.register("intent", f"1.{number}.0", b"%d" % number, kind="student", metadata=metadata)
    registry.register("topic", "1.0.0", b"topic")

    def found(**asked: object) -> list[str]:
        return [model.reference for model in registry.query(ModelQuery(**asked))]  # type: ignore[arg-type]

    assert found(min_accuracy=0.8) == ["intent@1.2.0", "intent@1.3.0"]
    assert found(tags=("nightly", "n1")) == ["intent@1.1.0"]
    assert found(kind="other") == ["topic@1.0.0"]
    assert found(name="intent", limit=2) == ["intent@1.0.0", "intent@1.1.0"]
    assert found(status="production") == []
    assert len(found()) == 5


def test_alias_names_one_version_and_moves(registry: ModelRegistry) -> None:
    first, second = registry.register("intent", "1.0.0", b"1"), registry.register("intent", "1.1.0", b"2")
    assert registry.set_alias(first, "canary").aliases == ("canary",)
    registry.set_alias(second, "canary")
    assert registry.get("intent", "canary").id == second.id
    assert registry.get("intent", "1.0.0").aliases == ()
    with pytest.raises(RegistryError, match="canary"):
        registry.delete(second)
    assert registry.remove_alias("intent", "canary").id == second.id
    with pytest.raises(ModelNotFoundError):
        registry.remove_alias("intent", "canary")
    registry.delete(second)
    for wrong in ("champion", "1.0.0", "", "a b", "x" * 65, None):
        with pytest.raises(InvalidInputError):
            registry.set_alias(first, wrong)  # type: ignore[arg-type]
    assert registry.verify().is_clean


def test_deleted_version_is_gone_for_every_call(registry: ModelRegistry, tmp_path: Path) -> None:
    model = registry.register("intent", "1.0.0", b"x")
    registry.delete(model, actor="me", reason="a test")
    for call in (
        lambda: registry.get("intent", "1.0.0"),
        lambda: registry.get_by_id(model.id),
        lambda: registry.delete(model),
        lambda: registry.set_status(model, "validated"),
        lambda: registry.promote(model),
        lambda: registry.set_alias(model, "x"),
        lambda: registry.load_weights_verified(model),
        lambda: registry.export(model, tmp_path / "x.zip"),
        lambda: registry.ancestors(model),
    ):
        with pytest.raises(ModelNotFoundError):
            call()
    assert [(event.kind, event.actor) for event in registry.events()] == [("registered", ""), ("deleted", "me")]
    again = registry.register("intent", "1.0.0", b"x")
    with pytest.raises(ModelNotFoundError):
        registry.load_weights_verified(model)
    assert registry.load_weights_verified(again) == b"x"


def test_version_in_production_is_not_deleted(registry: ModelRegistry) -> None:
    model = live(registry, "intent", "1.0.0")
    with pytest.raises(InvalidTransitionError, match="archive it first"):
        registry.delete(model)
    registry.delete(registry.set_status(model, "archived"))
    assert registry.verify().is_clean


def test_changed_record_does_not_load(registry: ModelRegistry) -> None:
    model, other = registry.register("intent", "1.0.0", b"x"), registry.register("intent", "1.1.0", b"y")
    for forged in (dataclasses.replace(model, digest=other.digest), dataclasses.replace(model, files=other.files)):
        with pytest.raises(WeightIntegrityError):
            registry.load_weights_verified(forged)


def test_gc_keeps_what_is_young_named_or_claimed(registry: ModelRegistry) -> None:
    registry.register("intent", "1.0.0", b"named")
    shared = registry.register("intent", "1.1.0", b"shared")
    registry.register("intent", "1.2.0", b"shared")
    for model in (shared, registry.register("intent", "1.3.0", b"deleted")):
        os.utime(registry.store.blobs.path_of(model.digest), (0, 0))
        registry.delete(model)
    assert registry.gc().kept == 1  # deleted a moment ago
    assert registry.gc(grace_seconds=0, dry_run=True).blobs == 1
    digest = next(sha256 for sha256, path, _ in registry.store.blobs.scan() if path.read_bytes() == b"deleted")
    with registry.store.claimed([digest]):
        assert registry.gc(grace_seconds=0).blobs == 0
    report = registry.gc(grace_seconds=0)
    assert (report.blobs, report.size) == (1, 7)
    assert registry.verify() == dataclasses.replace(registry.verify(), versions=2, blobs=2, unreferenced=0, problems=())


def test_claims_of_a_dead_writer_hold_nothing(registry: ModelRegistry) -> None:
    model = registry.register("intent", "1.0.0", b"x")
    registry.delete(model)
    database = registry.store.database
    with database.transaction():
        database.execute("INSERT INTO claims VALUES ('.writer.0123456789abcdef.lattice-tmp', ?)", (model.digest,))
    assert registry.gc(grace_seconds=0).blobs == 1
    assert database.number("SELECT count(*) FROM claims") == 0


def test_events_are_pages(registry: ModelRegistry) -> None:
    for number in range(4):
        registry.register("intent" if number % 2 else "topic", f"1.{number}.0", b"%d" % number)
    assert [event.id for event in registry.events(after=1, limit=2)] == [2, 3]
    assert [event.id for event in registry.events("intent")] == [2, 4]
    assert registry.events(kind="deleted") == []


def test_registry_serves_threads_and_forks(registry: ModelRegistry) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: registry.register("intent", f"1.{number}.0", b"%d" % number), range(24)))
    child = os.fork()
    if child == 0:
        try:
            registry.register("intent", "2.0.0", b"of the child")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert str(registry.get_latest("intent").version) == "2.0.0"
    assert registry.verify().is_clean
