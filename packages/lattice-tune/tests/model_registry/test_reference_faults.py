"""The faults (a) to (f) that the reference's registry has: none of them is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_tune import DuplicateModelError, LineageError, ModelNotFoundError, ModelRegistry, ModelStatus

from .conftest import live, staged


def test_a_status_promotion_and_hash_are_there_after_a_restart(tmp_path: Path) -> None:
    with ModelRegistry(tmp_path / "r") as registry:
        first, second = live(registry, "intent", "1.0.0"), live(registry, "intent", "1.1.0")
        waiting = staged(registry, "intent", "1.2.0")
    with ModelRegistry(tmp_path / "r") as registry:
        statuses = {str(model.version): model.status for model in registry.list("intent")}
        assert statuses == {
            "1.0.0": ModelStatus.ARCHIVED,
            "1.1.0": ModelStatus.PRODUCTION,
            "1.2.0": ModelStatus.STAGED,
        }
        digests = [model.digest for model in registry.list("intent")]
        assert digests == [first.digest, second.digest, waiting.digest]
        assert registry.load_weights_verified(second) == b"intent 1.1.0"


def test_b_everything_can_be_found_after_a_restart(tmp_path: Path) -> None:
    with ModelRegistry(tmp_path / "r") as registry:
        models = [live(registry, "intent", "1.0.0"), registry.register("topic", "2.0.0", b"topic")]
        registry.set_alias(models[1], "nightly")
    with ModelRegistry(tmp_path / "r") as registry:
        assert registry.names() == ["intent", "topic"]
        assert [registry.get_by_id(model.id).id for model in models] == [model.id for model in models]
        assert registry.get_latest("topic").id == registry.get("topic", "nightly").id == models[1].id
        production = registry.get_production("intent")
        assert production is not None
        assert production.id == models[0].id


def test_c_registering_a_version_again_after_a_restart_leaves_the_stored_model(tmp_path: Path) -> None:
    with ModelRegistry(tmp_path / "r") as registry:
        stored = registry.register("intent", "1.0.0", b"the first")
    with ModelRegistry(tmp_path / "r") as registry:
        with pytest.raises(DuplicateModelError, match=r"version 1\.0\.0 already"):
            registry.register("intent", "1.0.0", b"another")
        assert registry.get("intent", "1.0.0") == stored
        assert registry.load_weights_verified(stored) == b"the first"
        assert registry.verify().is_clean
        assert len(registry.events()) == 1


def test_d_a_deleted_version_leaves_no_file(registry: ModelRegistry) -> None:
    folder = registry.path / "blobs"
    kept, gone = registry.register("intent", "1.0.0", b"kept"), registry.register("intent", "1.1.0", b"gone")
    registry.delete(gone)
    assert registry.gc(grace_seconds=0).blobs == 1
    assert [path.read_bytes() for path in folder.rglob("*") if path.is_file()] == [b"kept"]
    with pytest.raises(ModelNotFoundError):
        registry.load_weights_verified(gone)
    assert registry.load_weights_verified(kept) == b"kept"
    assert registry.register("intent", "1.1.0", b"again").digest != gone.digest


def test_e_a_write_that_fails_leaves_nothing(registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    from lattice_tune.registry import blobs

    def failing(file: object, out: object) -> str:
        out.write(b"half of ")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blobs, "_copy", failing)
    with pytest.raises(OSError, match="No space left"):
        registry.register("intent", "1.0.0", b"half of it")
    monkeypatch.undo()
    assert [path for path in registry.path.rglob("*") if path.is_file() and path.parent.name != "registry"] == []
    assert registry.list() == []
    assert registry.verify().is_clean
    assert registry.store.database.number("SELECT count(*) FROM claims") == 0


def test_f_parents_are_checked_and_children_known(registry: ModelRegistry) -> None:
    with pytest.raises(ModelNotFoundError, match=r"version 1\.0\.0 of base"):
        registry.register("intent", "1.0.0", b"child", parents=["base@1.0.0"])
    assert registry.list() == []
    base = registry.register("base", "1.0.0", b"base")
    child = registry.register("intent", "1.0.0", b"child", parents=[base])
    assert [model.id for model in registry.descendants(base)] == [child.id]
    with pytest.raises(LineageError, match=r"parent of intent@1\.0\.0"):
        registry.delete(base)
