"""What reaches the disk, and in which order: nothing here leaves forcing to the disk out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lattice_embed.migration.migration_journal import FORMAT as JOURNAL_FORMAT
from lattice_embed.stores import create_store
from lattice_embed.stores.numpy_store import FAN_IN
from lattice_embed.stores.sqlite_database import SqliteDatabase
from lattice_embed.stores.sqlite_format import FORMAT

from .damaged_stores import SPACE, documents

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file a descriptor is")


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is forced to the disk and what is renamed, by the names that files have in the end."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        order.append(f"fsync {name[1:].rsplit('.', 2)[0] if name.startswith('.') else name}")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        order.append(f"rename {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return order


def test_manifest_names_a_segment_only_when_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        order = recorded(monkeypatch)
        store.put(documents(1))
    segment = [f"{step} segment-00000001{suffix}" for suffix in (".npy", ".jsonl") for step in ("fsync", "rename")]
    assert order == [*segment, "fsync s", "fsync store.json", "rename store.json", "fsync s"]


def test_merged_segment_is_on_the_disk_before_those_it_was_made_of_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        for one in documents(FAN_IN - 1):
            store.put([one])
        order = recorded(monkeypatch)
        unlink = os.unlink

        def note_unlink(path: str) -> None:
            order.append(f"unlink {Path(path).name}")
            unlink(path)

        monkeypatch.setattr(os, "unlink", note_unlink)
        store.put(documents(FAN_IN)[-1:])
    merged = f"segment-{FAN_IN + 1:08d}"
    last_sync = len(order) - 1 - order[::-1].index("fsync s")
    assert order.index(f"rename {merged}.npy") < order.index("rename store.json") < last_sync
    removed = [place for place, step in enumerate(order) if step.startswith("unlink segment-")]
    assert len(removed) == 2 * FAN_IN
    assert min(removed) > last_sync


def test_new_store_is_in_its_folder_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = recorded(monkeypatch)
    create_store(tmp_path / "s.db", SPACE).close()
    assert order == [f"fsync {tmp_path.name}"]
    del order[:]
    create_store(tmp_path / "s", SPACE).close()
    assert order == ["fsync store.json", "rename store.json", "fsync s", f"fsync {tmp_path.name}"]


@pytest.mark.parametrize("form", [FORMAT, JOURNAL_FORMAT])
def test_sqlite_forces_every_commit_to_the_disk(form: object, tmp_path: Path) -> None:
    SqliteDatabase.create(tmp_path / "x", form)  # type: ignore[arg-type]
    database = SqliteDatabase(tmp_path / "x", form)  # type: ignore[arg-type]
    assert database.read("PRAGMA synchronous") == [(2,)]
    assert database.read("PRAGMA journal_mode") == [("wal",)]
    database.close()


@pytest.mark.parametrize("step", ["BEGIN IMMEDIATE", "COMMIT"])
def test_an_interrupt_leaves_no_transaction_open(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteDatabase.create(tmp_path / "x", JOURNAL_FORMAT)
    database, other = (SqliteDatabase(tmp_path / "x", JOURNAL_FORMAT) for _ in range(2))
    rows = database.rows

    def interrupted(statement: str, values: tuple[object, ...] = ()) -> object:
        if statement == step == "COMMIT":
            raise KeyboardInterrupt
        found = rows(statement, values)
        if statement == step:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(database, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt), database.transaction():
        database.write("PRAGMA user_version = 7")
    monkeypatch.undo()
    other.write("PRAGMA busy_timeout = 0")
    for each in (other, database):  # no lock is left, and each can write
        with each.transaction():
            assert each.read_number("PRAGMA user_version") != 7
    database.close()
    other.close()
