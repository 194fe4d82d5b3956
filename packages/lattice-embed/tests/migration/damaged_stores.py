"""Stores to be damaged: what one holds and answers, and copies of its files with one bit flipped."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lattice_embed import StoreError
from lattice_embed.stores import Chunking, StoredDocument, VectorSpace, create_store, open_store
from lattice_embed.stores.document import digest_of_text

SPACE = VectorSpace("model", "fingerprint", 16, chunking=Chunking(100, 10), location="org/model")


def documents(count: int = 40, seed: int = 1) -> list[StoredDocument]:
    """Return documents of every state, with one to three vectors where they have any."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        name, text = f"document-{number}", f"text {number} " * (1 + number % 7)
        if number % 9 == 7:
            made.append(StoredDocument.pending(name, text))
        elif number % 9 == 8:
            made.append(StoredDocument.skipped(name, text, "content_too_large: 3 tokens"))
        else:
            vectors = rng.standard_normal((1 + number % 3, SPACE.dimensions)).astype(np.float32)
            spans = [(place, place + 5) for place in range(len(vectors))]
            made.append(
                StoredDocument.embedded(
                    name, text, vectors, fingerprint="fingerprint", spans=spans, truncated=number % 4 == 0
                )
            )
    return made


def make_store(path: Path) -> dict[str, Any]:
    """Make a store whose documents came in several calls, some of them replaced or deleted; return its answers."""
    made = documents()
    with create_store(path, SPACE) as store:
        for start in range(0, len(made), 4):
            store.put(made[start : start + 4])
        store.put(documents(6, seed=2))
        store.delete(["document-9", "document-10"])
        return answers_of(store)


SCHEMA_1 = (
    "CREATE TABLE space (fields TEXT NOT NULL)",
    """CREATE TABLE documents (
        id TEXT NOT NULL PRIMARY KEY,
        sequence INTEGER NOT NULL,
        state TEXT NOT NULL,
        text TEXT NOT NULL,
        digest TEXT NOT NULL,
        reason TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        truncated INTEGER NOT NULL,
        spans BLOB NOT NULL,
        vectors BLOB NOT NULL
    )""",
    "CREATE INDEX documents_by_sequence ON documents (sequence)",
    "PRAGMA application_id = 1280725809",
    "PRAGMA user_version = 1",
)


def make_old_store(path: Path, held: list[StoredDocument]) -> None:
    """Write a store as the first version of the format has it, one document of it deleted."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    for statement in SCHEMA_1:
        connection.execute(statement)
    connection.execute("INSERT INTO space VALUES (?)", (json.dumps(SPACE.to_fields()),))
    for sequence, one in enumerate(held, 1):
        connection.execute(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                one.id,
                sequence,
                one.state.value,
                one.text,
                digest_of_text(one.text),
                one.reason,
                one.fingerprint,
                int(one.truncated),
                np.array(one.spans, "<i8").tobytes(),
                one.vectors.tobytes(),
            ),
        )
    connection.execute(
        "INSERT INTO documents VALUES ('gone', ?, 'deleted', '', '', '', '', 0, x'', x'')", (len(held) + 1,)
    )
    connection.close()


def answers_of(store: Any) -> dict[str, Any]:
    """Return everything that a store says of its documents."""
    names = [f"document-{number}" for number in range(41)]
    queries = np.random.default_rng(3).standard_normal((5, SPACE.dimensions)).astype(np.float32)
    found = [
        None
        if one is None
        else (one.id, one.text, one.state, one.vectors.tobytes(), one.spans, one.fingerprint, one.reason, one.truncated)
        for one in store.get(names)
    ]
    return {
        "documents": found,
        "versions": store.versions(names),
        "scan": store.scan(),
        "matches": [store.query(query, 7) for query in queries],
        "space": store.space,
        "count": len(store),
    }


def flipped_copies(path: Path, work: Path, count: int, seed: int) -> Iterator[tuple[str, Path]]:
    """Yield copies of a store, each with one bit flipped at a random place of all its files, and where that is.

    Places in long runs of zeros, which hold nothing, are left out.
    """
    draw = random.Random(seed)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    files = [file for file in files if file.stat().st_size]
    places = [np.flatnonzero(np.convolve(np.fromfile(file, np.uint8) != 0, np.ones(9), "same")) for file in files]
    for number in range(count):
        (index,) = draw.choices(range(len(files)), [len(held) for held in places])
        place, bit = int(draw.choice(places[index])), draw.randrange(8)
        copy = work / f"copy-{number}{path.suffix}"
        if path.is_dir():
            shutil.copytree(path, copy)
            damaged = copy / files[index].relative_to(path)
        else:
            damaged = copy
            shutil.copyfile(path, copy)
        with open(damaged, "r+b") as file:
            file.seek(place)
            (value,) = file.read(1)
            file.seek(place)
            file.write(bytes([value ^ 1 << bit]))
        yield f"{files[index].name}: byte {place}, bit {bit}", copy
        if path.is_dir():
            shutil.rmtree(copy)
        else:
            for leftover in copy.parent.glob(f"{copy.name}*"):
                leftover.unlink()


def assert_found_or_harmless(path: Path, expected: dict[str, Any], where: str) -> bool:
    """Check that ``verify()`` finds a damage, or that no answer differs; return whether it was found."""
    try:
        with open_store(path) as store:
            store.verify()
    except StoreError:
        return True
    with open_store(path) as store:
        assert answers_of(store) == expected, f"{where}: not found, and an answer is another one"
    return False
