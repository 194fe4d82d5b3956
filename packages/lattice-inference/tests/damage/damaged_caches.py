"""Vector caches to be damaged: what one holds, damage that the general kinds do not reach, and all that a cache is asked."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from mutated_files import mutated_bytes

from lattice_inference import VectorCache, VectorCacheError
from lattice_inference.vector_cache import VectorCacheWarning
from lattice_inference.vector_cache.database import FILE_NAME
from lattice_inference.vector_cache.lqecache import lqecache_key

__all__ = [
    "COUNT",
    "KEYS",
    "VECTORS",
    "is_other_version",
    "lqecache_parts",
    "make_cache",
    "mutate_records",
    "set_journal_head",
    "use_cache",
    "write_lqecache",
]

COUNT = 24
KEYS = [bytes([number]) * 32 for number in range(COUNT)]
VECTORS = [np.full(48, number, np.float32).tobytes() for number in range(COUNT)]
IN_JOURNAL = range(16, COUNT)


def make_cache(live: Path, folder: Path) -> None:
    """Leave in ``folder`` what a killed process leaves: some vectors in the database, some only in the journal."""
    with VectorCache(live, max_bytes=2**18) as cache:
        cache.put_many(list(zip(KEYS[:16], VECTORS[:16], strict=True)), space="model")
    with VectorCache(live, max_bytes=2**18) as cache:
        cache.put_many([(KEYS[number], VECTORS[number]) for number in IN_JOURNAL], space="another")
        for path in live.iterdir():
            shutil.copyfile(path, folder / path.name)


def use_cache(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VectorCacheWarning)
        for _ in range(2):  # the second finds what the first has left
            with VectorCache(folder, max_bytes=2**18) as cache:
                for keys in (KEYS, KEYS[:1], KEYS[20:21], KEYS * 20):
                    found = cache.get_many(keys)
                    assert all(vector in (None, VECTORS[key[0]]) for key, vector in zip(keys, found, strict=True))
                cache.put_many([(KEYS[0], VECTORS[0])], space="model")
                cache.stats()
                cache.put_many([(bytes([200, number]) * 16, VECTORS[0]) for number in range(200)], space="third")
                cache.get_many([bytes([200, number]) * 16 for number in range(200)])
        with VectorCache(folder, max_bytes=2**18) as cache:
            try:
                cache.clear("model")
                cache.clear()
            except VectorCacheError:
                pass  # said of clear() alone: nothing was removed


def set_journal_head(path: Path, draw: random.Random) -> None:
    """Put numbers at the edges of what 64 bits hold into a journal's head."""
    data = bytearray(path.read_bytes())
    for place in draw.sample((8, 16, 24), draw.randint(1, 3)):
        struct.pack_into("<Q", data, place, draw.choice((0, 63, 64, 2**31, 2**63 - 1, 2**63, 2**64 - 1)))
    path.write_bytes(data)


def mutate_records(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    end = struct.unpack_from("<Q", data, 16)[0]
    path.write_bytes((data[:64] + mutated_bytes(data[64:end], draw)).ljust(len(data), b"\0")[: len(data)])


def is_other_version(folder: Path) -> bool:
    """Whether the damage made the file one of another version or program, which is refused by name and left alone."""
    try:
        with sqlite3.connect(f"file:{folder / FILE_NAME}?mode=ro", uri=True) as raw:
            numbers = [raw.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        raw.close()
    except (sqlite3.Error, UnicodeError):
        return False
    return numbers != [0x4C564543, 1]


def lqecache_parts() -> tuple[dict[str, Any], bytes]:
    payload = b"".join(struct.pack("<QI3f", lqecache_key([number]), 3, number, 1, 2) for number in range(4))
    fields = {
        "version": 1,
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
        "base_model_rev": "a",
        "tokenizer_rev": "b",
        "embedding_dim": 3,
        "entry_count": 4,
    }
    return fields, payload


def write_lqecache(path: Path, manifest: Any, payload: bytes) -> Path:
    encoded = json.dumps(manifest).encode()
    path.write_bytes(b"LQECACHE" + struct.pack("<I", len(encoded)) + encoded + payload)
    return path
