"""Damage of any kind, drawn from a seed, in stores and journals: every call answers or raises an error of the package."""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mutated_files import mutate_database, mutate_file

from lattice_embed import InvalidInputError, StoreError
from lattice_embed.migration import BackfillCoordinator, MigrationController
from lattice_embed.stores import StoredDocument, create_store, open_store

from .damaged_stores import SPACE, documents
from .hash_service import HashService
from .store_damage import (
    QUERY,
    make_originals,
    mutate_any,
    mutate_line,
    mutate_manifest,
    mutate_vectors,
    use_journal,
    use_store,
)

pytestmark = pytest.mark.usefixtures("no_sync")

Damage = Callable[[Path, random.Random], object]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, no_sync: None) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    make_originals(folder)
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
@pytest.mark.parametrize(("name", "damage"), STORES)
def test_every_call_of_many_damaged_stores_is_typed(name: str, damage: Damage, originals: Path, tmp_path: Path) -> None:
    for path in copies(originals / name, tmp_path, damage, 200, 2):
        use_store(path)


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
            assert len(store.scan(limit=sys.maxsize)) == len(store.query(QUERY, 10**30)) == 3
            with pytest.raises(InvalidInputError, match="limit is an int of 100 bits"):
                store.scan(limit=10**30)


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
