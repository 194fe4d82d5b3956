"""What callers and files get wrong: a typed error, and nothing half-written."""

from __future__ import annotations

import math
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_tune import (
    AdapterGovernance,
    InvalidInputError,
    Lineage,
    ModelMetadata,
    ModelQuery,
    ModelRegistry,
    RegistryCorruptError,
    StorageError,
    TuneError,
    WeightIntegrityError,
)
from lattice_tune.registry import database as database_module

from .conftest import live

NAMES = ["", ".", "..", "a..b", "/", "a/b", "../a", "a\0b", "a b", "-a", ".a", "a.", "a\n", "ä", "\udc80", "x" * 129]
NAMES += ["x" * 10_000_000, None, 1, b"a", ["a"], float("nan")]  # type: ignore[list-item]
VERSIONS = [
    "1.0",
    "01.0.0",
    "1",
    "",
    "v1.0.0",
    "latest",
    "../1.0.0",
    "1.0.0\0",
    "1" * 10_000_000,
    None,
    1,
    1.0,
    b"1.0.0",
]


def shown(value: object) -> str:
    return repr(value)[:20]


@pytest.mark.parametrize("name", NAMES, ids=shown)
def test_wrong_name_is_refused(registry: ModelRegistry, name: Any) -> None:
    for call in (
        lambda: registry.register(name, "1.0.0", b"x"),
        lambda: registry.get(name, "1.0.0"),
        lambda: registry.get_latest(name),
        lambda: registry.get_production(name),
        lambda: registry.list(name) if name is not None else registry.get_latest(name),
        lambda: registry.remove_alias(name, "x"),
    ):
        with pytest.raises(InvalidInputError) as caught:
            call()
        assert len(str(caught.value)) < 500
    assert (registry.list(), registry.events()) == ([], [])


@pytest.mark.parametrize("version", VERSIONS, ids=shown)
def test_wrong_version_is_refused(registry: ModelRegistry, version: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        registry.register("intent", version, b"x")
    assert len(str(caught.value)) < 500
    with pytest.raises(TuneError):  # a word could be an alias
        registry.get("intent", version)
    assert (registry.list(), registry.events()) == ([], [])


@pytest.mark.parametrize(
    "source", [None, 1, ["x"], "", "no/such/file", "a\0b", "\udc80", Path("/dev/null"), object()], ids=shown
)
def test_wrong_source_is_refused(registry: ModelRegistry, source: Any) -> None:
    with pytest.raises((InvalidInputError, StorageError)):
        registry.register("intent", "1.0.0", source)
    assert registry.list() == []


def test_wrong_folders_are_refused(registry: ModelRegistry, tmp_path: Path) -> None:
    for number, spoil in enumerate(
        (
            lambda folder: None,
            lambda folder: (folder / "only a folder").mkdir(),
            lambda folder: os.mkfifo(folder / "fifo"),
            lambda folder: (folder / "link").symlink_to("/etc/passwd"),
            lambda folder: (folder / "links").symlink_to("/etc"),
            lambda folder: (folder / "back\\slash").write_bytes(b""),
            lambda folder: (folder / "line\nbreak").write_bytes(b""),
            lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_bytes(b""),
        )
    ):
        folder = tmp_path / f"folder {number}"
        folder.mkdir()
        spoil(folder)
        with pytest.raises((InvalidInputError, StorageError)):
            registry.register("intent", "1.0.0", folder)
    assert (registry.list(), registry.events(), list(registry.store.blobs.scan())) == ([], [], [])


def test_source_that_changes_while_it_is_read_is_refused(
    registry: ModelRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(b"before")
    claimed = registry.store.claimed

    def change(digests: list[str]) -> Any:
        path.write_bytes(b"after!")
        return claimed(digests)

    monkeypatch.setattr(registry.store, "claimed", change)
    with pytest.raises(InvalidInputError, match="changed while it was read"):
        registry.register("intent", "1.0.0", path)
    assert (registry.list(), list(registry.store.blobs.scan())) == ([], [])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModelMetadata(input_dim=-1),
        lambda: ModelMetadata(input_dim=1.5),  # type: ignore[arg-type]
        lambda: ModelMetadata(output_dim=True),
        lambda: ModelMetadata(num_parameters=10**400),
        lambda: ModelMetadata(validation_accuracy=math.nan),
        lambda: ModelMetadata(test_accuracy=1.01),
        lambda: ModelMetadata(metrics={"f1": math.inf}),
        lambda: ModelMetadata(metrics={"": 1.0}),
        lambda: ModelMetadata(metrics=[1]),  # type: ignore[arg-type]
        lambda: ModelMetadata(tags="abc"),  # type: ignore[arg-type]
        lambda: ModelMetadata(tags=("a\0b",)),
        lambda: ModelMetadata(extra={"x": object()}),
        lambda: ModelMetadata(extra={"x": math.nan}),
        lambda: ModelMetadata(extra={"x": "\ud800"}),
        lambda: ModelMetadata(extra={1: 2}),  # type: ignore[dict-item]
        lambda: ModelMetadata(extra={"x": "y" * 2_000_000}),
        lambda: ModelMetadata(architecture=None),  # type: ignore[arg-type]
        lambda: Lineage(teacher=1),  # type: ignore[arg-type]
        lambda: Lineage(code_versions={"a": 1}),  # type: ignore[dict-item]
        lambda: ModelQuery(status="x"),
        lambda: ModelQuery(limit=0),
        lambda: ModelQuery(min_accuracy=math.nan),
        lambda: ModelQuery(name="../x"),
        lambda: AdapterGovernance(rank=0),
        lambda: AdapterGovernance(alpha=math.nan),
        lambda: AdapterGovernance(status="fine"),  # type: ignore[arg-type]
    ],
)
def test_fields_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(InvalidInputError):
        make()


def test_deep_nesting_in_extra_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInputError, match="JSON"):
        ModelMetadata(extra={"deep": deep})
    for _ in range(100_000):  # taken apart by hand: Python would recurse
        deep = deep[0]


def test_numbers_of_numpy_are_taken(registry: ModelRegistry) -> None:
    metadata = ModelMetadata(
        input_dim=np.int64(3),  # type: ignore[arg-type]
        validation_accuracy=np.float32(0.5),  # type: ignore[arg-type]
        metrics={"f1": np.float64(0.25)},
    )
    made = registry.register("intent", "1.0.0", b"", metadata=metadata)
    assert (made.metadata.input_dim, made.metadata.validation_accuracy, made.metadata.metrics) == (3, 0.5, {"f1": 0.25})


# Files that were tampered with


def spoiled(registry: ModelRegistry, content: bytes | None) -> Any:
    model = live(registry, "intent", "1.0.0")
    path = registry.store.blobs.path_of(model.digest)
    assert stat.S_IMODE(path.stat().st_mode) & 0o222 == 0
    path.chmod(0o644)
    path.unlink() if content is None else path.write_bytes(content)
    return model


@pytest.mark.parametrize("content", [None, b"", b"intent 1.0.1", b"intent 1.0", b"intent 1.0.0 and more"])
def test_tampered_file_does_not_load_and_verify_names_it(
    registry: ModelRegistry, tmp_path: Path, content: bytes | None
) -> None:
    model = spoiled(registry, content)
    for call in (
        lambda: registry.load_weights_verified(model),
        lambda: registry.copy_to(model, tmp_path / "out"),
        lambda: registry.check_files(model),
    ):
        with pytest.raises(WeightIntegrityError) as caught:
            call()
        assert caught.value.expected == model.digest
    assert not (tmp_path / "out").exists()
    report = registry.verify()
    assert len(report.problems) == 1
    assert model.digest in report.problems[0].replace("/", "")
    # registering the same content again repairs the file
    registry.register("intent", "1.0.1", b"intent 1.0.0")
    assert registry.load_weights_verified(model) == b"intent 1.0.0"
    assert registry.verify().is_clean


def test_size_in_a_damaged_row_is_not_believed(registry: ModelRegistry) -> None:
    model = registry.register("intent", "1.0.0", b"x")
    database = registry.store.database
    with database.transaction():
        database.execute("UPDATE files SET size = ?", (2**50,))
    (found,) = registry.list()
    with pytest.raises(WeightIntegrityError):
        registry.load_weights_verified(found)
    assert model.digest in registry.verify().problems[0]
    with database.transaction():
        database.execute("UPDATE files SET size = ?", (2**60,))
    with pytest.raises(RegistryCorruptError):
        registry.list()


def test_quick_verify_looks_at_sizes_only(registry: ModelRegistry) -> None:
    spoiled(registry, b"intent 1.0.1")
    assert registry.verify(contents=False).is_clean
    assert not registry.verify().is_clean


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE models SET status = 'archived' WHERE version = '1.1.0'",
        "UPDATE models SET status = 'staged' WHERE version = '1.0.0'",
        "DELETE FROM aliases",
        "DELETE FROM events WHERE id = 3",
        "UPDATE events SET detail = '{}' WHERE kind = 'status'",
        "UPDATE events SET detail = '[' WHERE id = 2",
        "UPDATE models SET metadata = '{' WHERE version = '1.0.0'",
        "UPDATE models SET digest = 'x' WHERE version = '1.0.0'",
        "UPDATE files SET sha256 = 'x'",
        "UPDATE files SET path = '../x'",
        "UPDATE models SET metadata = replace(metadata, 'null', '0.5') WHERE version = '1.0.0'",
        "UPDATE models SET description = 'another' WHERE version = '1.0.0'",
        "UPDATE models SET precedence = x'00' WHERE version = '1.0.0'",
        "UPDATE events SET detail = replace(detail, 'record', 'other') WHERE id = 1",
        "UPDATE models SET version = '1.0' WHERE version = '1.0.0'",
        "DELETE FROM files",
    ],
)
def test_verify_finds_rows_that_something_else_changed(registry: ModelRegistry, statement: str) -> None:
    live(registry, "intent", "1.0.0")
    live(registry, "intent", "1.1.0")
    with closing(sqlite3.connect(registry.path / "registry.db")) as connection, connection:
        connection.execute(statement)
    assert registry.verify().problems


# Databases that are not ours


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    with ModelRegistry(tmp_path / "r") as registry:
        for number in range(40):
            registry.register("intent", f"1.{number}.0", b"%d" % number)
    return tmp_path / "r" / "registry.db"


@pytest.mark.parametrize("part", [0.0, 0.02, 0.3, 0.7, 0.99])
def test_truncated_database_is_refused(stored: Path, part: float) -> None:
    content = stored.read_bytes()
    stored.write_bytes(content[: int(len(content) * part)])
    try:
        registry = ModelRegistry(stored.parent)
    except RegistryCorruptError:
        return
    with registry:  # the tables are there, and what is in them is not
        assert part > 0.5
        assert not registry.verify().is_clean


def test_random_damage_is_a_typed_error_or_harmless(stored: Path) -> None:
    content = stored.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(content)
        for place in rng.integers(0, len(damaged), 20):
            damaged[place] ^= 1 << int(rng.integers(8))
        stored.write_bytes(damaged)
        try:
            with ModelRegistry(stored.parent) as registry:
                registry.list()
                registry.get_latest("intent")
                registry.events()
                registry.verify()
        except TuneError:
            pass


def alter(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["PRAGMA user_version = 2"], "has version 2, and this release reads version 1"),
        (["PRAGMA application_id = 7"], "another program"),
        (["CREATE TABLE more (x)"], "its tables are not those"),
        (["DROP TABLE claims"], "its tables are not those"),
    ],
)
def test_foreign_and_future_databases_are_refused(stored: Path, statements: list[str], reason: str) -> None:
    alter(stored, *statements)
    before = stored.read_bytes()
    with pytest.raises(RegistryCorruptError, match=reason):
        ModelRegistry(stored.parent)
    assert stored.read_bytes() == before


def test_files_that_are_no_database_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"x" * 10_000, b"SQLite format 3\0" + bytes(84)):
        (tmp_path / "registry.db").write_bytes(content)
        with pytest.raises(RegistryCorruptError):
            ModelRegistry(tmp_path)
    (tmp_path / "registry.db").unlink()
    (tmp_path / "registry.db").mkdir()
    with pytest.raises(StorageError):
        ModelRegistry(tmp_path)


def test_registry_that_is_not_there_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is no model registry"):
        ModelRegistry(tmp_path / "no", create=False)
    assert not (tmp_path / "no").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        ModelRegistry(tmp_path / "file" / "r")
    for path in (None, 1, "a\0b", b"bytes"):
        with pytest.raises(InvalidInputError):
            ModelRegistry(path)  # type: ignore[arg-type]
    for seconds in (-1, math.nan, "1"):
        with pytest.raises(InvalidInputError):
            ModelRegistry(tmp_path / "r", busy_seconds=seconds)  # type: ignore[arg-type]


def test_closed_registry_says_so(registry: ModelRegistry) -> None:
    registry.close()
    registry.close()
    with pytest.raises(StorageError, match="was closed"):
        registry.list()


# Older versions of the schema


def test_older_database_is_brought_to_this_version_in_one_step(tmp_path: Path) -> None:
    def upgrade(database: database_module.Database) -> None:
        database.execute("ALTER TABLE things ADD COLUMN size INTEGER NOT NULL DEFAULT 0")
        database.execute("UPDATE things SET size = length(name)")

    def failing(database: database_module.Database) -> None:
        upgrade(database)
        raise StorageError("the disk failed")

    path = tmp_path / "x.db"
    old = database_module.DatabaseFormat("thing", 5, 1, ("CREATE TABLE things (name TEXT)",))
    database_module.Database.create(path, old)
    alter(path, "INSERT INTO things VALUES ('abc')")
    schema = ("CREATE TABLE things (name TEXT, size INTEGER NOT NULL DEFAULT 0)",)
    broken = database_module.DatabaseFormat("thing", 5, 2, schema, {1: failing})
    with pytest.raises(StorageError, match="the disk failed"):
        database_module.Database(path, broken, busy_seconds=1)
    database_module.Database(path, old, busy_seconds=1).close()  # as it was
    new = database_module.DatabaseFormat("thing", 5, 2, schema, {1: upgrade})
    database = database_module.Database(path, new, busy_seconds=1)
    assert database.rows("SELECT * FROM things") == [("abc", 3)]
    database.close()
    database_module.Database(path, new, busy_seconds=1).close()
    with pytest.raises(RegistryCorruptError, match="has version 2"):
        database_module.Database(path, old, busy_seconds=1)
