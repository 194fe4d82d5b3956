"""The stores of vectors and the journal of a migration between two of them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from target import Target, add_tests

from lattice_embed import LatticeEmbedError

__all__ = ["TARGETS"]

add_tests("inference", "damage")
add_tests("embed", "")

from migration.damaged_stores import make_store  # noqa: E402
from migration.store_damage import (  # noqa: E402
    make_originals,
    mutate_any,
    mutate_line,
    mutate_manifest,
    mutate_vectors,
    use_journal,
    use_store,
)
from mutated_files import mutate_database, mutate_file  # noqa: E402

Damage = Callable[[Path, random.Random], object]


def make_sqlite(folder: Path) -> None:
    """Write a store in a database."""
    (folder / "store").mkdir()
    make_store(folder / "store" / "s.db")


def make_numpy(folder: Path) -> None:
    """Write a store in a folder."""
    (folder / "store").mkdir()
    make_store(folder / "store" / "s")


def make_journal(folder: Path) -> None:
    """Write a journal with its two stores."""
    whole = folder / "whole"
    whole.mkdir()
    make_originals(whole)
    (whole / "s.db").unlink()
    shutil.rmtree(whole / "s")


def damage_of(name: str, *kinds: Damage) -> Damage:
    """Return damage to a file or folder of that name."""
    return lambda folder, draw: draw.choice(kinds)(folder / name, draw)


ERRORS = (LatticeEmbedError,)

TARGETS = [
    Target(
        "sqlite-store",
        make_sqlite,
        damage_of("s.db", mutate_file, mutate_database),
        lambda folder: use_store(folder / "s.db"),
        ERRORS,
        is_changed=True,
    ),
    Target(
        "numpy-store",
        make_numpy,
        damage_of("s", mutate_any, mutate_manifest, mutate_line, mutate_vectors),
        lambda folder: use_store(folder / "s"),
        ERRORS,
        is_changed=True,
    ),
    Target(
        "migration-journal",
        make_journal,
        damage_of("j", mutate_file, mutate_database),
        lambda folder: use_journal(folder / "j", folder),
        ERRORS,
        is_changed=True,
    ),
]
