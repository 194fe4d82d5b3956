"""Times each hand-written part of the caches beside the plain way to do the same.

Times are in microseconds of processor time.

*Warm* is the median of short loops. *Cold* is a single call after 32 MiB went through the processor's caches, as a model
does between two calls of a service. Both ways take turns. docs/adr/0011-parts-of-the-caches.md says what was decided.
"""

from __future__ import annotations

import argparse
import hashlib
import sqlite3
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import blake3
import numpy as np

from harness.options import positive_int
from harness.tables import markdown_table
from lattice_embed._text_cache import CachedEmbedding, Shard, TextKeys
from lattice_embed.embedding_cache import CachedOrigin
from lattice_inference.vector_cache import VectorCache
from lattice_inference.vector_cache._journal import TextDigests
from lattice_inference.vector_cache.connecting import connect

__all__ = ["main"]

TEXT = "how do I cancel an order that has been shipped already?"
TOKENS = 16
VECTOR = bytes(4 * 384)
KNOWN = 2_000
LOOP = 50
COLD_BYTES = 32 << 20

Call = Callable[[], object]


def digest_pairs() -> dict[str, tuple[Call, Call]]:
    """Return the two hashes, ours and the packages'."""
    prefix = b"a prefix as long as that of a model's fingerprint, and of a prompt's name"
    keys, wheel = TextKeys(prefix), blake3.blake3(prefix)

    def by_wheel() -> bytes:
        data = TEXT.encode()
        hasher = wheel.copy()
        hasher.update(len(data).to_bytes(8, "little") + data)
        return hasher.digest()

    assert keys.key(TEXT) == by_wheel()
    begun = hashlib.blake2b(prefix, digest_size=32)
    ids = np.arange(TOKENS, dtype=np.int32)
    types, bounds = np.zeros_like(ids), np.array([0, TOKENS], np.int32)
    digests = TextDigests(prefix)

    def by_hashlib() -> bytes:
        hasher = begun.copy()
        hasher.update(ids.tobytes())
        if types.any():
            hasher.update(types.tobytes())
        return hasher.digest()

    return {
        "key of a text": (lambda: keys.key(TEXT), by_wheel),
        "key of tokens": (lambda: digests.of(ids, types, bounds), by_hashlib),
    }


def table_pairs() -> dict[str, tuple[Call, Call]]:
    """Return looking up in memory, by our shard and by a dictionary with a lock."""
    origin = CachedOrigin("model", "", "", None)
    made = [hashlib.sha256(b"%d" % number).digest() for number in range(KNOWN)]
    shard = Shard(KNOWN, None)
    plain: OrderedDict[bytes, CachedEmbedding] = OrderedDict()
    lock = threading.Lock()
    for key in made:
        shard.put(key, CachedEmbedding(VECTOR, token_count=TOKENS, truncated=False, origin=origin))
        plain[key] = CachedEmbedding(VECTOR, token_count=TOKENS, truncated=False, origin=origin)
    wanted = made[KNOWN // 2]

    def by_dictionary() -> CachedEmbedding | None:
        with lock:
            entry = plain.get(wanted)
            if entry is not None:
                plain.move_to_end(wanted)
        return entry

    return {"hit in memory": (lambda: shard.get(wanted), by_dictionary)}


class PlainDatabase:
    """The table of the cache on disk by SQLite alone.

    It has a write-ahead log, prepared statements and one transaction a store.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._connection = connect(folder / "plain.sqlite3")
        self._connection.execute("INSERT INTO spaces (name) VALUES ('model')")
        self._lock = threading.Lock()

    def find(self, key: bytes) -> bytes | None:
        """Return a vector or None."""
        with self._lock:
            row = self._connection.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: bytes) -> None:
        """Store a vector."""
        with self._lock:
            self._connection.execute(
                "INSERT OR REPLACE INTO vectors (key, space, checksum, vector) VALUES (?, 1, 0, ?)", (key, VECTOR)
            )

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def disk_pairs(cache: VectorCache, plain: PlainDatabase) -> dict[str, tuple[Call, Call]]:
    """Return what the cache on disk does with a known and a new text, and SQLite."""
    known = [hashlib.sha256(b"known %d" % number).digest() for number in range(KNOWN)]
    cache.put_many([(key, VECTOR) for key in known], space="model")
    for key in known:
        plain.put(key)
    cache.close()  # everything is in the database now
    for number in range(KNOWN):  # until there is a filter
        cache.get_many([hashlib.sha256(b"in vain %d" % number).digest()])
    fresh = [hashlib.sha256(b"fresh %d" % number).digest() for number in range(500_000)]
    ours, theirs = iter(fresh), iter(fresh)
    just = hashlib.sha256(b"just stored").digest()
    cache.put_many([(just, VECTOR)], space="model")
    plain.put(just)
    nowhere = [hashlib.sha256(b"nowhere").digest()]
    return {
        "miss on disk": (lambda: cache.get_many(nowhere), lambda: plain.find(nowhere[0])),
        "hit on disk, stored by this process": (lambda: cache.get_many([just]), lambda: plain.find(just)),
        "hit on disk, stored before": (lambda: cache.get_many([known[7]]), lambda: plain.find(known[7])),
        "store on disk": (
            lambda: cache.put_many([(next(ours), VECTOR)], space="model"),
            lambda: plain.put(next(theirs)),
        ),
    }


def measured(pairs: dict[str, tuple[Call, Call]], rounds: int) -> list[list[str]]:
    """Return rows of the table."""
    spoiled = np.ones(COLD_BYTES // 8)
    rows = []
    for name, ways in pairs.items():
        warm: list[list[float]] = [[], []]
        cold: list[list[float]] = [[], []]
        for _ in range(rounds):
            for which, call in enumerate(ways):
                call()
                start = time.thread_time_ns()
                for _ in range(LOOP):
                    call()
                warm[which].append((time.thread_time_ns() - start) / LOOP / 1e3)
                np.add(spoiled, 1.0, out=spoiled)
                start = time.thread_time_ns()
                call()
                cold[which].append((time.thread_time_ns() - start) / 1e3)
        rows.append([name, *(f"{median(times):.2f}" for times in (*warm, *cold))])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=positive_int, default=101, metavar="N", help="rounds of each pair (default: 101)"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, VectorCache(Path(folder, "ours")) as cache:
        plain = PlainDatabase(Path(folder, "plain"))
        pairs = digest_pairs() | table_pairs() | disk_pairs(cache, plain)
        rows = measured(pairs, options.rounds)
        plain.close()
    heading = ["microseconds", "warm, ours", "warm, plain", "cold, ours", "cold, plain"]
    print(f"SQLite {sqlite3.sqlite_version}\n\n{markdown_table(heading, rows)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
