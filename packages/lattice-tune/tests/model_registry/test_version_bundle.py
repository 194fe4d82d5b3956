"""One version as one file: the same on the other side, or refused with nothing stored."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lattice_tune import (
    AdapterGovernance,
    DuplicateModelError,
    Lineage,
    LineageError,
    ModelMetadata,
    ModelRegistry,
    RegisteredModel,
    RegistryCorruptError,
    StorageError,
    TuneError,
    WeightIntegrityError,
)


@pytest.fixture
def other(tmp_path: Path) -> ModelRegistry:
    return ModelRegistry(tmp_path / "other")


def folder_model(registry: ModelRegistry, tmp_path: Path, **more: Any) -> RegisteredModel:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True, exist_ok=True)
    (source / "a.bin").write_bytes(b"a" * 3_000)
    (source / "deep" / "b.bin").write_bytes(b"b")
    return registry.register("style", "1.0.0-rc.1+b", source, kind="adapter", **more)


def test_version_is_the_same_in_the_other_registry(
    registry: ModelRegistry, other: ModelRegistry, tmp_path: Path
) -> None:
    made = folder_model(
        registry,
        tmp_path,
        metadata=ModelMetadata(metrics={"f1": 0.5}, tags=("x",), extra={"a": [1]}),
        lineage=Lineage(teacher="t", code_versions={"c": "1"}),
        description="naïve",
        governance=AdapterGovernance(rank=3, target_modules=("q",)),
        registered_by="me",
    )
    path = registry.export(made, tmp_path / "x.zip")
    assert registry.export(made, tmp_path / "y.zip").read_bytes() == path.read_bytes()
    found = other.import_(path)
    for name in (
        "version",
        "kind",
        "files",
        "digest",
        "metadata",
        "lineage",
        "description",
        "governance",
        "registered_by",
    ):
        assert getattr(found, name) == getattr(made, name), name
    assert found.status.value == "pending"
    assert other.verify().is_clean
    assert [event.kind for event in other.events()] == ["imported"]
    with pytest.raises(DuplicateModelError):
        other.import_(path)


def test_parents_are_linked_or_told(registry: ModelRegistry, other: ModelRegistry, tmp_path: Path) -> None:
    base = registry.register("base", "1.0.0", b"base")
    child = registry.register("intent", "1.0.0", b"child", parents=[base])
    path = registry.export(child, tmp_path / "x.zip")
    with pytest.raises(LineageError, match=r"base@1\.0\.0 is not here"):
        other.import_(path)
    other.register("base", "1.0.0", b"another base")
    with pytest.raises(LineageError, match="other files here"):
        other.import_(path)
    other.delete(other.get("base", "1.0.0"))
    other.import_(registry.export(base, tmp_path / "base.zip"))
    assert other.import_(path).parents == ("base@1.0.0",)
    other.delete(other.get("intent", "1.0.0"))
    other.delete(other.get("base", "1.0.0"))
    assert other.import_(path, detach=True).parents == ()


def test_damaged_content_is_not_exported(registry: ModelRegistry, tmp_path: Path) -> None:
    model = folder_model(registry, tmp_path)
    blob = registry.store.blobs.path_of(model.files[0].sha256)
    blob.chmod(0o644)
    blob.write_bytes(b"A" * 3_000)
    (tmp_path / "x.zip").write_bytes(b"before")
    with pytest.raises(WeightIntegrityError):
        registry.export(model, tmp_path / "x.zip")
    assert (tmp_path / "x.zip").read_bytes() == b"before"
    blob.unlink()
    with pytest.raises(WeightIntegrityError, match="missing"):
        registry.export(model, tmp_path / "x.zip")


def changed(path: Path, change: Any, *, compression: int = zipfile.ZIP_STORED) -> Path:
    """Write an exported file again, its description and entries changed."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    description = json.loads(entries["version.json"])
    change(description, entries)
    if "version.json" in entries and entries["version.json"] != b"raw":
        entries["version.json"] = json.dumps(description).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    target = path.with_name("changed.zip")
    target.write_bytes(out.getvalue())
    return target


CHANGES: dict[str, Any] = {
    "content": lambda d, e: e.__setitem__("files/a.bin", b"A" * 3_000),
    "longer content": lambda d, e: e.__setitem__("files/a.bin", b"a" * 3_001),
    "missing content": lambda d, e: e.pop("files/a.bin"),
    "more content": lambda d, e: e.__setitem__("files/c.bin", b"c"),
    "no description": lambda d, e: e.pop("version.json"),
    "raw description": lambda d, e: e.__setitem__("version.json", b"raw"),
    "format": lambda d, e: d.__setitem__("format", "other"),
    "future format": lambda d, e: d.__setitem__("format_version", 2),
    "name": lambda d, e: d["model"].__setitem__("name", "../x"),
    "version": lambda d, e: d["model"].__setitem__("version", "1.0"),
    "kind": lambda d, e: d["model"].__setitem__("kind", "virus"),
    "digest": lambda d, e: d["model"].__setitem__("digest", "0" * 64),
    "path": lambda d, e: d["model"]["files"][0].__setitem__("path", "../../a.bin"),
    "absolute path": lambda d, e: d["model"]["files"][0].__setitem__("path", "/a.bin"),
    "size": lambda d, e: d["model"]["files"][0].__setitem__("size", 2**40),
    "negative size": lambda d, e: d["model"]["files"][0].__setitem__("size", -1),
    "no files": lambda d, e: d["model"].__setitem__("files", []),
    "files twice": lambda d, e: d["model"]["files"].append(d["model"]["files"][0]),
    "not a folder": lambda d, e: d["model"].__setitem__("is_folder", False),
    "metadata": lambda d, e: d["model"]["metadata"].__setitem__("test_accuracy", 2),
    "unknown metadata": lambda d, e: d["model"]["metadata"].__setitem__("more", 2),
    "lineage": lambda d, e: d["model"].__setitem__("lineage", []),
    "governance": lambda d, e: d["model"].__setitem__("governance", {}),
    "parents": lambda d, e: d.__setitem__("parents", [{"name": "a"}]),
    "model": lambda d, e: d.__setitem__("model", None),
    "description text": lambda d, e: d["model"].__setitem__("description", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_file_is_refused_and_nothing_stored(
    registry: ModelRegistry, other: ModelRegistry, tmp_path: Path, change: str
) -> None:
    path = changed(registry.export(folder_model(registry, tmp_path), tmp_path / "x.zip"), CHANGES[change])
    with pytest.raises((RegistryCorruptError, WeightIntegrityError)):
        other.import_(path)
    assert other.list() == []
    assert other.events() == []
    assert other.store.database.number("SELECT count(*) FROM claims") == 0
    assert not [each for each in other.path.rglob("*") if each.name.endswith(".lattice-tmp")]


def test_unchanged_file_written_again_is_taken(registry: ModelRegistry, other: ModelRegistry, tmp_path: Path) -> None:
    path = registry.export(folder_model(registry, tmp_path), tmp_path / "x.zip")
    assert other.import_(changed(path, lambda description, entries: None)).version.build == ("b",)


def test_compressed_file_is_refused(registry: ModelRegistry, other: ModelRegistry, tmp_path: Path) -> None:
    path = registry.export(folder_model(registry, tmp_path), tmp_path / "x.zip")
    with pytest.raises(RegistryCorruptError, match="compressed"):
        other.import_(changed(path, lambda description, entries: None, compression=zipfile.ZIP_DEFLATED))


def test_damaged_file_is_refused_or_the_same(registry: ModelRegistry, tmp_path: Path) -> None:
    """Bytes flipped and cut at random: a typed error, or, where it is of no account, the same version."""
    made = folder_model(registry, tmp_path)
    content = registry.export(made, tmp_path / "x.zip").read_bytes()
    rng = random.Random(0)
    damaged = tmp_path / "damaged.zip"
    with ModelRegistry(tmp_path / "other") as other:
        for number in range(60):
            wrong = bytearray(content)
            if number % 3:
                wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
            else:
                del wrong[rng.randrange(len(wrong)) :]
            damaged.write_bytes(wrong)
            try:
                found = other.import_(damaged)
            except TuneError:
                continue
            assert found.digest == made.digest
            other.delete(found)
            other.gc(grace_seconds=0)
        assert other.verify().is_clean


def test_what_is_no_file_is_refused(other: ModelRegistry, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/dev/null")):
        with pytest.raises(StorageError):
            other.import_(path)
    for content in (b"", b"PK", b"x" * 1000):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(RegistryCorruptError):
            other.import_(tmp_path / "x")
