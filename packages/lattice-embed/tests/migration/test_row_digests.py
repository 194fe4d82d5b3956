"""The SQLite store's digests: a damaged row is found, is never copied as a sound one, and old stores get digests."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lattice_embed import StoreCorruptError, StoreError
from lattice_embed.migration import BackfillCoordinator
from lattice_embed.stores import DocumentState, SqliteVectorStore, StoredDocument, VectorSpace, create_store, open_store

from .damaged_stores import (
    SPACE,
    answers_of,
    assert_found_or_harmless,
    documents,
    flipped_copies,
    make_old_store,
    make_store,
)
from .hash_service import HashService

pytestmark = pytest.mark.usefixtures("no_sync")


def change(path: Path, statement: str, values: tuple[Any, ...] = ()) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute(statement, values)
    raw.close()


def flipped(path: Path, column: str) -> None:
    """Flip the lowest bit of a column's last byte in the row of document-1."""
    with sqlite3.connect(path) as raw:
        ((value, kind),) = raw.execute(
            f"SELECT CAST({column} AS BLOB), typeof({column}) FROM documents WHERE id='document-1'"
        )
        raw.execute(
            f"UPDATE documents SET {column} = CAST(? AS {kind.upper()}) WHERE id = 'document-1'",
            (value[:-1] + bytes([value[-1] ^ 1]),),
        )
    raw.close()


@pytest.mark.parametrize(
    "column", ["vectors", "spans", "digest", "state", "fingerprint", "truncated", "sequence", "text"]
)
def test_one_flipped_bit_of_any_column_is_found(column: str, tmp_path: Path) -> None:
    with create_store(tmp_path / "s.db", SPACE) as store:
        store.put(documents(3))
    flipped(tmp_path / "s.db", column)
    with open_store(tmp_path / "s.db") as store, pytest.raises(StoreCorruptError, match="document-1"):
        store.verify()


@pytest.mark.parametrize("use", [lambda store: store.get(["document-1"]), lambda store: store.query([1.0] * 16, 1)])
def test_damaged_vector_is_never_an_answer(use: Callable[[Any], object], tmp_path: Path) -> None:
    with create_store(tmp_path / "s.db", SPACE) as store:
        store.put(documents(3))
    flipped(tmp_path / "s.db", "vectors")
    with open_store(tmp_path / "s.db") as store, pytest.raises(StoreCorruptError, match="not what was written"):
        use(store)


def test_damage_after_the_first_query_is_found_by_verify(tmp_path: Path) -> None:
    with create_store(tmp_path / "s.db", SPACE) as store:
        store.put(documents(3))
        store.query([1.0] * 16, 1)
        flipped(tmp_path / "s.db", "vectors")
        with pytest.raises(StoreCorruptError):
            store.verify()


def test_space_and_tables_have_digests_too(tmp_path: Path) -> None:
    make_store(tmp_path / "s.db")
    shutil.copyfile(tmp_path / "s.db", tmp_path / "tables.db")
    change(tmp_path / "s.db", "UPDATE space SET fields = replace(fields, 'org/model', 'org/nodel')")
    with pytest.raises(StoreCorruptError, match="not what was written"):
        open_store(tmp_path / "s.db")
    with sqlite3.connect(tmp_path / "tables.db") as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("UPDATE sqlite_master SET sql = replace(sql, 'id TEXT', 'id TEXU') WHERE name = 'documents'")
    raw.close()
    with pytest.raises(StoreCorruptError, match="tables"):
        open_store(tmp_path / "tables.db")


def test_damaged_document_can_be_replaced_or_deleted(tmp_path: Path) -> None:
    with create_store(tmp_path / "s.db", SPACE) as store:
        store.put(documents(3))
    flipped(tmp_path / "s.db", "vectors")
    with open_store(tmp_path / "s.db") as store:
        store.put(documents(2)[1:])
        assert store.verify() == 3
        flipped(tmp_path / "s.db", "vectors")
        store.delete(["document-1"])
        assert store.verify() == 2


@pytest.mark.parametrize("seed", [1])
def test_flipped_bits_are_found_or_change_no_answer(seed: int, tmp_path: Path) -> None:
    check_flips(tmp_path, 25, seed)


@pytest.mark.slow
def test_hundreds_of_flipped_bits_are_found_or_change_no_answer(tmp_path: Path) -> None:
    check_flips(tmp_path, 600, 2)


def check_flips(folder: Path, count: int, seed: int) -> None:
    expected = make_store(folder / "s.db")
    found = [
        assert_found_or_harmless(copy, expected, where)
        for where, copy in flipped_copies(folder / "s.db", folder, count, seed)
    ]
    assert sum(found) > count / 10  # most of the rest lie on pages that hold nothing any more


def test_old_store_gets_digests_when_it_is_opened(tmp_path: Path) -> None:
    make_old_store(tmp_path / "old.db", documents())
    with create_store(tmp_path / "new.db", SPACE) as new:
        new.put(documents())
        with open_store(tmp_path / "old.db") as old:
            assert answers_of(old) == answers_of(new)
            assert old.verify() == len(documents())
            assert old.delete(["gone"]) == 0
    flipped(tmp_path / "old.db", "vectors")
    with open_store(tmp_path / "old.db") as old, pytest.raises(StoreCorruptError):
        old.verify()
    with sqlite3.connect(tmp_path / "old.db") as old_raw, sqlite3.connect(tmp_path / "new.db") as new_raw:
        tables = "SELECT name, sql FROM sqlite_master ORDER BY name"
        assert old_raw.execute(tables).fetchall() == new_raw.execute(tables).fetchall()
        assert old_raw.execute("PRAGMA user_version").fetchone() == (2,)
    old_raw.close()
    new_raw.close()


@pytest.mark.parametrize(
    "damage",
    [
        "text = 'another'",
        "vectors = x'0102'",
        "vectors = replace(vectors, substr(vectors, 1, 4), x'0000c07f')",
        "state = 'odd'",
        "truncated = 7",
        "reason = x'00'",
    ],
)
def test_damage_that_shows_gets_no_digest_at_the_upgrade(damage: str, tmp_path: Path) -> None:
    make_old_store(tmp_path / "old.db", documents(5))
    change(tmp_path / "old.db", f"UPDATE documents SET {damage} WHERE id = 'document-1'")
    with open_store(tmp_path / "old.db") as store:
        with pytest.raises(StoreCorruptError, match="document-1"):
            store.verify()
        assert store.get(["document-2"])[0] is not None
        with pytest.raises(StoreCorruptError, match="document-1"):
            store.get(["document-1"])


@pytest.mark.slow
@pytest.mark.parametrize("row", [0, 17, 39])
def test_upgrade_that_is_killed_leaves_the_old_store(row: int, tmp_path: Path) -> None:
    """The process ends by a signal while it reads a row; what is on the disk then is opened by another."""
    make_old_store(tmp_path / "old.db", documents())
    code = (
        "import os, signal, sys; from lattice_embed.stores import sqlite_format, open_store\n"
        "left = [int(sys.argv[2])]; seal = sqlite_format.seal_of\n"
        "def dying(fields):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return seal(fields)\n"
        "sqlite_format.seal_of = dying; open_store(sys.argv[1])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "old.db"), str(row)], env=environment, timeout=60
    )
    assert child.returncode == -9
    with sqlite3.connect(tmp_path / "old.db") as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (1,)
    raw.close()
    with open_store(tmp_path / "old.db") as store:
        assert store.verify() == len(documents())


def test_old_store_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_old_store(tmp_path / "old.db", documents(2))
    real = sqlite3.connect

    def read_only(name: str, **options: Any) -> sqlite3.Connection:
        return real(str(name).replace("mode=rw", "mode=ro"), **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(StoreError, match="open it once where it can be written"):
        open_store(tmp_path / "old.db")


@pytest.mark.slow
def test_two_processes_upgrade_at_once(tmp_path: Path) -> None:
    make_old_store(tmp_path / "old.db", documents())
    code = "import sys; from lattice_embed.stores import open_store; sys.exit(open_store(sys.argv[1]).verify())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "old.db")], env=environment) for _ in "ab"]
    assert [child.wait(timeout=60) for child in children] == [len(documents())] * 2


@pytest.mark.parametrize("column", ["vectors", "text", "digest"])
@pytest.mark.parametrize("copy", ["backfill", "skip"])
def test_damaged_row_is_never_copied_into_another_store(column: str, copy: str, tmp_path: Path) -> None:
    service = HashService("new")
    with (
        create_store(tmp_path / "old.db", SPACE) as source,
        create_store(tmp_path / "new.db", VectorSpace.of(service)) as target,
    ):
        source.put(documents(3))
        with BackfillCoordinator.create(
            tmp_path / "journal", source=source, target=target, target_service=service
        ) as migration:
            flipped(tmp_path / "old.db", column)
            work = migration.run if copy == "backfill" else lambda: migration.skip(["document-1"])
            with pytest.raises(StoreCorruptError, match="document-1"):
                work()
            assert target.get(["document-1"]) == [None]


def test_number_of_a_row_at_its_end_is_told(tmp_path: Path) -> None:
    with create_store(tmp_path / "s.db", SPACE) as store:
        store.put(documents(1))
        change(tmp_path / "s.db", "UPDATE documents SET sequence = 9223372036854775807")
        with pytest.raises(StoreCorruptError, match="number"):
            store.put(documents(1))
        with pytest.raises(StoreCorruptError, match="number"):
            store.delete(["document-0"])


def test_state_of_a_row_is_part_of_its_digest(tmp_path: Path) -> None:
    with SqliteVectorStore.create(tmp_path / "s.db", SPACE) as store:
        store.put([StoredDocument.skipped("a", "text", "manual_skip")])
        change(tmp_path / "s.db", "UPDATE documents SET state = 'pending'")
        (version,) = store.versions(["a"])
        assert version is not None
        assert version.state is DocumentState.PENDING  # looked at without its row
        with pytest.raises(StoreCorruptError):
            store.verify()
