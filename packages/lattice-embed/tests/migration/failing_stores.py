"""What lattice-embed writes, for ``disk_faults.run``: ``failing_stores.py WRITER FOLDER``."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from damaged_stores import SPACE, answers_of, documents, make_old_store
from disk_faults import Writer, main

from lattice_embed import StoreError
from lattice_embed.drift import DriftBaseline
from lattice_embed.migration import BackfillCoordinator, MigrationController
from lattice_embed.stores import VectorSpace, create_store, open_store
from lattice_embed.stores.numpy_store import FAN_IN


def answers(path: Path) -> Any:
    """Return what a store answers after everything in it was verified; ``None`` where there is no store."""
    if not path.is_file() and not (path / "store.json").is_file():
        return None
    with open_store(path) as store:
        store.verify()
        return answers_of(store)


def put_writer(name: str) -> Writer:
    """Return the writer that adds to a store; in a folder its last write merges segments."""
    held = documents(FAN_IN + 2)

    def prepare(folder: Path) -> None:
        with create_store(folder / name, SPACE) as store:
            for one in held[: FAN_IN - 1]:
                store.put([one])

    def write(folder: Path) -> None:
        with open_store(folder / name) as store:
            store.put(held[FAN_IN - 2 :])

    return Writer(prepare, write, lambda folder: answers(folder / name))


def delete_writer(name: str) -> Writer:
    """Return the writer that deletes from a store, and goes on with it after a failure."""

    def write(folder: Path) -> None:
        with open_store(folder / name) as store:
            try:
                store.delete(["document-1", "document-2"])
            except StoreError:
                assert len(store) in (2, 4)  # an open store answers, whatever its disk does
                raise

    def prepare(folder: Path) -> None:
        with create_store(folder / name, SPACE) as store:
            store.put(documents(4))

    return Writer(prepare, write, lambda folder: answers(folder / name))


def create_writer(name: str) -> Writer:
    """Return the writer of a new store."""
    return Writer(
        lambda folder: None,
        lambda folder: create_store(folder / name, SPACE).close(),
        lambda folder: answers(folder / name),
    )


def upgrade_writer() -> Writer:
    """Return the writer that gives the rows of an old store their digests; whatever fails, its answers stay."""

    with TemporaryDirectory() as name, create_store(Path(name) / "s.db", SPACE) as store:
        store.put(documents(9))
        expected = answers_of(store)

    def read(folder: Path) -> int:
        copy = folder / "copy"
        copy.mkdir()
        for path in folder.glob("s.db*"):
            shutil.copyfile(path, copy / path.name)
        with closing(sqlite3.connect(copy / "s.db")) as raw:
            (version,) = raw.execute("PRAGMA user_version").fetchone()
        assert answers(copy / "s.db") == expected
        shutil.rmtree(copy)
        return int(version)

    return Writer(
        lambda folder: make_old_store(folder / "s.db", documents(9)),
        lambda folder: open_store(folder / "s.db").close(),
        read,
    )


def journal_writer() -> Writer:
    """Return the writer that changes a migration's state."""

    def prepare(folder: Path) -> None:
        with (
            create_store(folder / "a.db") as source,
            create_store(folder / "b.db", VectorSpace("m", "f", 4)) as target,
            BackfillCoordinator.create(folder / "j", source=source, target=target) as made,
        ):
            made.start()

    def write(folder: Path) -> None:
        with MigrationController(folder / "j") as controller:
            controller.pause("because")

    def read(folder: Path) -> str:
        with MigrationController(folder / "j") as controller:
            return controller.state.value

    return Writer(prepare, write, read)


def baseline_writer() -> Writer:
    """Return the writer of a baseline of the drift gate."""

    def save(folder: Path, number: int) -> None:
        vectors = np.full((2, 4), 0.5 * number, np.float32)
        DriftBaseline("m", ("a", "b"), vectors, "f", 1).save(folder / "baseline")

    def read(folder: Path) -> list[float]:
        return DriftBaseline.load(folder / "baseline").vectors[0].tolist()

    return Writer(lambda folder: save(folder, 1), lambda folder: save(folder, 2), read)


WRITERS: dict[str, Callable[[], Writer]] = {
    "put in a file": lambda: put_writer("s.db"),
    "put in a folder": lambda: put_writer("s"),
    "delete from a file": lambda: delete_writer("s.db"),
    "delete from a folder": lambda: delete_writer("s"),
    "new file": lambda: create_writer("s.db"),
    "new folder": lambda: create_writer("s"),
    "upgrade": upgrade_writer,
    "journal": journal_writer,
    "baseline": baseline_writer,
}

if __name__ == "__main__":
    main(WRITERS)
