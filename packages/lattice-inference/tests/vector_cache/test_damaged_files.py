"""Damage of any kind in the cache's files is a warning and no error, and never a wrong vector."""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_caches import (
    COUNT,
    KEYS,
    VECTORS,
    is_other_version,
    lqecache_parts,
    make_cache,
    mutate_records,
    set_journal_head,
    use_cache,
    write_lqecache,
)
from mutated_files import mutate_database, mutate_file, mutated_bytes, mutated_json

from lattice_inference import InvalidInputError, LatticeError, VectorCache, VectorCacheError
from lattice_inference.vector_cache import VectorCacheWarning, read_lqecache
from lattice_inference.vector_cache.database import FILE_NAME
from lattice_inference.vector_cache.lqecache import lqecache_key

Damage = Callable[[Path, random.Random], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache's folder as a killed process leaves it: some vectors in the database, some only in the journal."""
    folder, live = tmp_path_factory.mktemp("original"), tmp_path_factory.mktemp("live")
    make_cache(live, folder)
    return folder


def damaged(original: Path, folder: Path, name: str, damage: Damage, draw: random.Random) -> Path:
    shutil.copytree(original, folder)
    (path,) = folder.glob(name)
    damage(path, draw)
    return folder


KINDS: list[tuple[str, Damage]] = [
    (FILE_NAME, mutate_file),
    (FILE_NAME, mutate_database),
    ("vectors.journal-*", set_journal_head),
    ("vectors.journal-*", mutate_records),
    ("vectors.journal-*", mutate_file),
    ("vectors.board", mutate_file),
]


def check(original: Path, work: Path, name: str, damage: Damage, count: int, seed: int) -> None:
    for number in range(count):
        folder = damaged(original, work / str(number), name, damage, random.Random(seed * 1_000_003 + number))
        other = is_other_version(folder)
        try:
            use_cache(folder)
        except VectorCacheError:
            assert other, f"seed {seed}, number {number}"


@pytest.mark.parametrize(("name", "damage"), KINDS)
def test_damage_is_a_warning_and_never_a_wrong_vector(
    name: str, damage: Damage, original: Path, tmp_path: Path
) -> None:
    check(original, tmp_path, name, damage, 6, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "damage"), KINDS)
def test_much_damage_is_a_warning_and_never_a_wrong_vector(
    name: str, damage: Damage, original: Path, tmp_path: Path
) -> None:
    check(original, tmp_path, name, damage, 150, 2)


def flip(path: Path, draw: random.Random) -> None:
    """Flip a bit, not in a long run of zeros, which holds nothing."""
    data = np.fromfile(path, np.uint8)
    held = np.flatnonzero(np.convolve(data != 0, np.ones(9), "same"))
    data[draw.choice(held)] ^= 1 << draw.randrange(8)
    data.tofile(path)


@pytest.mark.parametrize("name", [FILE_NAME, "vectors.journal-*", "vectors.board"])
def test_one_flipped_bit_is_never_a_wrong_vector(name: str, original: Path, tmp_path: Path) -> None:
    check(original, tmp_path, name, flip, 8, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [FILE_NAME, "vectors.journal-*"])
def test_hundreds_of_flipped_bits_are_never_a_wrong_vector(name: str, original: Path, tmp_path: Path) -> None:
    for number in range(600):
        folder = damaged(original, tmp_path / str(number), name, flip, random.Random(number))
        other = is_other_version(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VectorCacheWarning)
            try:
                with VectorCache(folder, max_bytes=2**18) as cache:
                    found = cache.get_many(KEYS)
            except VectorCacheError:
                assert other
                found = [None] * COUNT
        assert all(vector in (None, right) for vector, right in zip(found, VECTORS, strict=True)), number
        shutil.rmtree(folder)


def test_what_is_moved_from_a_damaged_journal_is_what_was_stored(original: Path, tmp_path: Path) -> None:
    """One vector of the journal is damaged: it is left out when the others are moved, and not given a new checksum."""
    folder = tmp_path / "cache"
    shutil.copytree(original, folder)
    (path,) = folder.glob("vectors.journal-*")
    data = path.read_bytes()
    assert data.count(VECTORS[17]) == 1
    path.write_bytes(data.replace(VECTORS[17], VECTORS[17][:-1] + b"\x42"))
    with VectorCache(folder, max_bytes=2**18) as cache:
        expected = [None if number == 17 else VECTORS[number] for number in range(COUNT)]
        assert cache.get_many(KEYS) == expected
        assert cache.stats().entries == COUNT - 1


def test_damaged_journal_of_a_dead_process_is_removed(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    shutil.copytree(original, folder)
    (folder / "vectors.journal-7").write_bytes(b"no journal" * 100)
    with VectorCache(folder, max_bytes=2**18) as cache:
        assert cache.get_many(KEYS) == VECTORS
    assert not list(folder.glob("vectors.journal-*"))


def test_definition_that_is_no_utf_8_is_damage(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    shutil.copytree(original, folder)
    data = (folder / FILE_NAME).read_bytes()
    (folder / FILE_NAME).write_bytes(data.replace(b"key BLOB NOT NULL", b"k\xff\xfe BLOB NOT N\xc3L"))
    with VectorCache(folder, max_bytes=2**18) as cache:
        with pytest.warns(VectorCacheWarning, match="was damaged"):
            assert cache.get_many(KEYS[:1]) == [None]
        cache.put_many([(KEYS[0], VECTORS[0])], space="model")
        assert cache.get_many(KEYS[:1]) == [VECTORS[0]]


@pytest.mark.parametrize(
    ("definition", "damaged"),
    [(b"row INTEGER", b"row INTEGEP"), (b"vector BLOB", b"vector BLOC"), (b"name TEXT", b"name TEXU")],
)
def test_definition_of_another_kind_of_column_is_damage(
    definition: bytes, damaged: bytes, original: Path, tmp_path: Path
) -> None:
    """SQLite finds no fault with it, and reads rows without numbers, or numbers for texts."""
    folder = tmp_path / "cache"
    shutil.copytree(original, folder)
    data = (folder / FILE_NAME).read_bytes()
    assert data.count(definition) == 1
    (folder / FILE_NAME).write_bytes(data.replace(definition, damaged))
    with VectorCache(folder, max_bytes=2**18) as cache, pytest.warns(VectorCacheWarning, match="was damaged"):
        assert cache.get_many(KEYS[:1]) == [None]


def test_header_that_names_another_program_over_our_tables_is_damage(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    shutil.copytree(original, folder)
    with sqlite3.connect(folder / FILE_NAME) as raw:
        raw.execute("PRAGMA application_id = 7")
    raw.close()
    with VectorCache(folder, max_bytes=2**18) as cache, pytest.warns(VectorCacheWarning, match="was damaged"):
        assert cache.get_many(KEYS[:1]) == [None]


@pytest.mark.parametrize("folder", ["a\0b", b"a\0b"])
def test_folder_with_a_nul_is_refused(folder: Any) -> None:
    with pytest.raises(InvalidInputError):
        VectorCache(folder)


def test_folder_with_a_name_that_is_too_long_turns_the_cache_off(tmp_path: Path) -> None:
    with VectorCache(tmp_path / ("x" * 5_000)) as cache:
        with pytest.warns(VectorCacheWarning, match="cannot be used"):
            assert cache.get_many(KEYS[:1]) == [None]
        cache.put_many([(KEYS[0], VECTORS[0])], space="model")


def test_keys_that_are_no_bytes_are_refused(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original, tmp_path / "cache")
    with VectorCache(tmp_path / "cache") as cache:
        assert cache.get_many([b"short"]) == [None]
        for wrong in ("text", 7, None):
            with pytest.raises(InvalidInputError, match="keys holds"):
                cache.get_many([KEYS[0], wrong])  # type: ignore[list-item]


# Files of the reference implementation


def check_lqecaches(folder: Path, count: int, seed: int) -> None:
    for number in range(count):
        draw = random.Random(seed * 1_000_003 + number)
        fields, payload = lqecache_parts()
        kind = draw.randrange(3)
        if kind == 0:
            fields = mutated_json(fields, draw)
        elif kind == 1:
            payload = mutated_bytes(payload, draw)
            fields["payload_sha256"] = hashlib.sha256(payload).hexdigest()
        path = write_lqecache(folder / "cache", fields, payload)
        if kind == 2:
            mutate_file(path, draw)
        try:
            cache = read_lqecache(path)
        except LatticeError:
            continue
        assert len(cache) <= 4
        if kind != 1:
            assert all(vector.tolist()[1:] == [1, 2] for vector in cache.vectors.values())


def test_damaged_file_of_the_reference_implementation_is_refused(tmp_path: Path) -> None:
    check_lqecaches(tmp_path, 150, 1)


@pytest.mark.slow
def test_many_damaged_files_of_the_reference_implementation_are_refused(tmp_path: Path) -> None:
    check_lqecaches(tmp_path, 5_000, 2)


@pytest.mark.parametrize("digest", ["é" * 64, "\ud800", None, 7, ["a"], ""])
def test_odd_digest_is_refused(digest: Any, tmp_path: Path) -> None:
    fields, payload = lqecache_parts()
    with pytest.raises(VectorCacheError, match="SHA-256"):
        read_lqecache(write_lqecache(tmp_path / "cache", {**fields, "payload_sha256": digest}, payload))


def test_no_memory_is_taken_for_what_a_manifest_promises(tmp_path: Path) -> None:
    fields, payload = lqecache_parts()
    with pytest.raises(VectorCacheError, match="only 96 follow"):
        read_lqecache(
            write_lqecache(tmp_path / "c", {**fields, "entry_count": 10_000, "embedding_dim": 2**20}, payload)
        )


@pytest.mark.parametrize("path", ["x" * 5_000, "a\0b"])
def test_odd_path_of_such_a_file_is_refused(path: str) -> None:
    with pytest.raises(LatticeError):
        read_lqecache(path)


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"], [1.5], [[1], [1, 2]]])
def test_token_ids_that_are_none_are_refused(ids: Any) -> None:
    with pytest.raises(InvalidInputError, match="token_ids"):
        lqecache_key(ids)
