"""Damage of any kind, drawn from a seed, in stores and journals: every call answers or raises an error of the package."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest
from mutated_files import mutate_database, mutate_file, mutated_bytes, mutated_json

from lattice_embed import InvalidInputError, LatticeEmbedError, StoreError
from lattice_embed.migration import BackfillCoordinator, MigrationController
from lattice_embed.stores import StoredDocument, VectorSpace, create_store, open_store

from .damaged_stores import SPACE, documents, make_store
from .hash_service import HashService

pytestmark = pytest.mark.usefixtures("no_sync")

Damage = Callable[[Path, random.Random], object]
QUERY = np.ones(16, np.float32)


def use_store(path: Path) -> None:
    """Call everything that a store has; errors of the package are the only ones."""
    with suppress(LatticeEmbedError), open_store(path) as store:
        names = [f"document-{number}" for number in range(41)]
        calls: list[Callable[[], object]] = [
            store.verify,
            lambda: store.get(names),
            lambda: store.versions(names),
            store.scan,
            lambda: store.query(QUERY, 50),
            lambda: len(store),
            lambda: store.delete(names[:3]),
            lambda: store.put(documents(12)),
            lambda: store.query(QUERY, 5),
        ]
        for call in calls:
            with suppress(LatticeEmbedError):
                call()


def seal_segments(folder: Path) -> None:
    """Give the manifest the digests of the segments as they are, and of itself: damage that somebody meant."""
    manifest = json.loads((folder / "store.json").read_text())
    for record in manifest["segments"]:
        for suffix, name in ((".npy", "vectors"), (".jsonl", "lines")):
            data = (folder / f"{record['name']}{suffix}").read_bytes()
            record |= {f"{name}_bytes": len(data), f"{name}_blake3": blake3.blake3(data).hexdigest()}
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: Any) -> None:
    if isinstance(manifest, dict):
        manifest.pop("blake3", None)
        manifest["blake3"] = blake3.blake3(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "store.json").write_text(json.dumps(manifest))


def mutate_any(folder: Path, draw: random.Random) -> None:
    mutate_file(draw.choice(sorted(path for path in folder.iterdir() if path.stat().st_size)), draw)


def mutate_manifest(folder: Path, draw: random.Random) -> None:
    write_manifest(folder, mutated_json(json.loads((folder / "store.json").read_text()), draw))


def mutate_line(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.glob("*.jsonl")))
    lines = path.read_bytes().splitlines(keepends=True)
    place = draw.randrange(len(lines))
    if draw.random() < 0.7:
        lines[place] = json.dumps(mutated_json(json.loads(lines[place]), draw)).encode() + b"\n"
    elif draw.random() < 0.2:
        lines[place] = b"[" * 100_000 + b"\n"
    else:
        lines[place] = mutated_bytes(lines[place], draw)
    path.write_bytes(b"".join(lines))
    seal_segments(folder)


def mutate_vectors(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.glob("*.npy")))
    data = path.read_bytes()
    if draw.random() < 0.5:
        shape = draw.choice(("(-1, 16)", "(99999999999999999999, 16)", "()", "(1,)", "'x'", "(1, 16)"))
        kind = draw.choice(("'<f4'", "'|O'", "[('a', '<f4')]", "'<f8'", "7", "'\\x00'"))
        head = f"{{'descr': {kind}, 'fortran_order': {draw.choice(('True', 'False', '('))}, 'shape': {shape}, }}"
        path.write_bytes(data[:10] + head.encode().ljust(117)[:117] + b"\n" + data[128:])
    else:
        mutate_file(path, draw)
    seal_segments(folder)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, no_sync: None) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    make_store(folder / "s.db")
    make_store(folder / "s")
    service = HashService("new")
    with (
        create_store(folder / "source.db") as source,
        create_store(folder / "target.db", VectorSpace.of(service)) as target,
    ):
        source.put([StoredDocument.pending(f"d{number}", "poison" * (number == 3) + "text") for number in range(12)])
        with BackfillCoordinator.create(
            folder / "j", source=source, target=target, target_service=service
        ) as coordinator:
            coordinator.run(max_batches=0)
            coordinator.skip(["d1"])
            coordinator.write([("d2", "another text")])
    return folder


STORES: list[tuple[str, Damage]] = [
    ("s.db", mutate_file),
    ("s.db", mutate_database),
    ("s", mutate_any),
    ("s", mutate_manifest),
    ("s", mutate_line),
    ("s", mutate_vectors),
]


def copies(original: Path, work: Path, damage: Damage, count: int, seed: int) -> Iterator[Path]:
    for number in range(count):
        path = work / f"{number}{original.suffix}"
        if original.is_dir():
            shutil.copytree(original, path)
        else:
            shutil.copyfile(original, path)
        damage(path, random.Random(seed * 1_000_003 + number))
        yield path


@pytest.mark.parametrize(("name", "damage"), STORES)
def test_every_call_of_a_damaged_store_is_typed(name: str, damage: Damage, originals: Path, tmp_path: Path) -> None:
    for path in copies(originals / name, tmp_path, damage, 12, 1):
        use_store(path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(("name", "damage"), STORES)
def test_every_call_of_many_damaged_stores_is_typed(
    seed: int, name: str, damage: Damage, originals: Path, tmp_path: Path
) -> None:
    for path in copies(originals / name, tmp_path, damage, 200, seed):
        use_store(path)


def use_journal(path: Path, work: Path) -> None:
    """Call everything that a migration has over a damaged journal, with sound stores."""
    with suppress(LatticeEmbedError), MigrationController(path) as controller:
        calls: list[Callable[[], object]] = [
            lambda: controller.plan,
            lambda: controller.progress().to_fields(),
            lambda: list(controller.skipped()),
            controller.routing_config,
            lambda: controller.pause("because"),
            controller.resume,
            lambda: controller.record_error("an error"),
        ]
        for call in calls:
            with suppress(LatticeEmbedError):
                call()
    service = HashService("new")
    with (
        open_store(work / "source.db") as source,
        open_store(work / "target.db") as target,
        suppress(LatticeEmbedError),
        BackfillCoordinator(path, source=source, target=target, target_service=service) as coordinator,
    ):
        calls = [
            lambda: coordinator.query("a text"),
            lambda: coordinator.run(max_batches=2),
            lambda: coordinator.write([("d4", "new")]),
            lambda: coordinator.delete(["d5"]),
            lambda: coordinator.skip(["d6"]),
            lambda: coordinator.rollback(),
            lambda: coordinator.cancel(),
        ]
        for call in calls:
            with suppress(LatticeEmbedError):
                call()


@pytest.mark.parametrize("damage", [mutate_file, mutate_database])
def test_every_call_over_a_damaged_journal_is_typed(damage: Damage, originals: Path, tmp_path: Path) -> None:
    check_journals(damage, originals, tmp_path, 10, 1)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [mutate_file, mutate_database])
def test_every_call_over_many_damaged_journals_is_typed(damage: Damage, originals: Path, tmp_path: Path) -> None:
    check_journals(damage, originals, tmp_path, 200, 2)


def check_journals(damage: Damage, originals: Path, folder: Path, count: int, seed: int) -> None:
    (folder / "j").mkdir()
    for name in ("source.db", "target.db"):
        shutil.copyfile(originals / name, folder / name)
    for path in copies(originals / "j", folder / "j", damage, count, seed):
        use_journal(path, folder)


def test_count_of_documents_that_are_not_there_is_no_reason_to_wait(originals: Path, tmp_path: Path) -> None:
    for name in ("source.db", "target.db", "j"):
        shutil.copyfile(originals / name, tmp_path / name)
    with closing(sqlite3.connect(tmp_path / "j", isolation_level=None)) as raw:
        raw.execute("UPDATE counts SET documents = 1000 WHERE state = 'pending'")
    service = HashService("new")
    with (
        open_store(tmp_path / "source.db") as source,
        open_store(tmp_path / "target.db") as target,
        BackfillCoordinator(tmp_path / "j", source=source, target=target, target_service=service) as coordinator,
        pytest.raises(StoreError, match="and has none"),
    ):
        coordinator.run()


ODD_PATHS: list[Any] = ["x" * 5_000, "x" * 5_000 + ".db", "a\0b", "a\0b.db", "\ud800", "x/" * 3_000, 7, None, b"s\0.db"]


@pytest.mark.parametrize("path", ODD_PATHS)
@pytest.mark.parametrize("use", [open_store, create_store, MigrationController])
def test_odd_paths_are_refused(use: Callable[[Any], Any], path: Any) -> None:
    with pytest.raises((StoreError, InvalidInputError)):
        use(path)


@pytest.mark.parametrize("after", [None, 7, "\ud800", b"a"])
def test_odd_places_to_go_on_from_are_refused(after: Any, tmp_path: Path) -> None:
    for name in ("s.db", "s"):
        with create_store(tmp_path / name, SPACE) as store, pytest.raises(InvalidInputError, match="after"):
            store.scan(after=after)


def test_huge_limits_are_as_good_as_none(tmp_path: Path) -> None:
    for name in ("s.db", "s"):
        with create_store(tmp_path / name, SPACE) as store:
            store.put(documents(3))
            assert len(store.scan(limit=10**30)) == len(store.query(QUERY, 10**30)) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": "\ud800"},
        {"reason": 7},
        {"fingerprint": "\udc80"},
        {"state": "pending"},
        {"spans": ((0, 2**63),)},
        {"spans": ((2, 1),)},
        {"spans": ((-1, 1),)},
        {"spans": ((0, 1.5),)},
        {"spans": (7,)},
        {"spans": ((0, 1, 2),)},
    ],
)
def test_documents_that_no_file_can_hold_are_refused(fields: dict[str, Any]) -> None:
    (one,) = documents(1)
    given = {name: getattr(one, name) for name in one.__dataclass_fields__}
    with pytest.raises(InvalidInputError, match="document-0"):
        StoredDocument(**{**given, **fields})


def test_error_that_utf_8_cannot_hold_is_kept_as_far_as_it_can(originals: Path, tmp_path: Path) -> None:
    shutil.copyfile(originals / "j", tmp_path / "j")
    with closing(MigrationController(tmp_path / "j")) as controller:
        controller.record_error("it said \udcff")
        assert controller.progress().last_error == "it said ?"
