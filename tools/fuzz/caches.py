"""The caches of vectors: on disk, in the reference implementation's file, and in memory."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tempfile
from collections import OrderedDict
from pathlib import Path

from mutation import mutated_bytes, mutated_document, mutated_text
from target import Target, add_tests

from lattice_inference import LatticeError, VectorCacheError
from lattice_inference.vector_cache import read_lqecache
from lattice_inference.vector_cache.database import FILE_NAME

__all__ = ["TARGETS"]

add_tests("inference", "damage")

from damaged_caches import (  # noqa: E402
    is_other_version,
    lqecache_parts,
    make_cache,
    mutate_records,
    set_journal_head,
    use_cache,
    write_lqecache,
)
from mutated_files import mutate_database, mutate_file  # noqa: E402


def make_caches(folder: Path) -> None:
    """Leave what a killed process leaves."""
    (folder / "cache").mkdir()
    with tempfile.TemporaryDirectory() as live:
        make_cache(Path(live), folder / "cache")


def damage_cache(folder: Path, draw: random.Random) -> None:
    """Damage one of the cache's files."""
    name, damage = draw.choice(
        (
            (FILE_NAME, mutate_file),
            (FILE_NAME, mutate_database),
            ("vectors.journal-*", set_journal_head),
            ("vectors.journal-*", mutate_records),
            ("vectors.journal-*", mutate_file),
            ("vectors.board", mutate_file),
        )
    )
    (path,) = folder.glob(name)
    damage(path, draw)


def use_damaged_cache(folder: Path) -> None:
    """Use a cache; only a file of another version is an error, all other damage a warning."""
    other = is_other_version(folder)
    try:
        use_cache(folder)
    except VectorCacheError as error:
        if not other:
            raise AssertionError("damage of a cache is a warning and no error") from error


def make_lqecache(folder: Path) -> None:
    """Write a file of four vectors."""
    (folder / "file").mkdir()
    write_lqecache(folder / "file" / "cache", *lqecache_parts())


def damage_lqecache(folder: Path, draw: random.Random) -> None:
    """Damage the manifest, the vectors with a digest that fits, or bytes."""
    path = folder / "cache"
    fields, payload = lqecache_parts()
    kind = draw.randrange(3)
    if kind == 0:
        manifest = mutated_document(json.dumps(fields).encode(), draw)
    elif kind == 1:
        payload = mutated_bytes(payload, draw)
        manifest = json.dumps({**fields, "payload_sha256": hashlib.sha256(payload).hexdigest()}).encode()
    else:
        mutate_file(path, draw)
        return
    path.write_bytes(b"LQECACHE" + struct.pack("<I", len(manifest)) + manifest + payload)


def use_lqecache(folder: Path) -> None:
    """Read all vectors."""
    cache = read_lqecache(folder / "cache")
    assert len(cache) <= 10, "more vectors than there are bytes for"
    for vector in cache.vectors.values():
        vector.tolist()


CALLS = ("get", "get", "put", "put", "peek", "clear")


def make_calls(folder: Path) -> None:
    """Write a list of texts that are put into a cache and looked for."""
    (folder / "calls").mkdir()
    texts = ["", "a", "a" * 500, "naïve", "漢字", "😀", "\0", "a\u0301", "x " * 4_000]
    (folder / "calls" / "calls.json").write_text(json.dumps({"capacity": 4, "most": 20_000, "texts": texts * 3}))


def damage_calls(folder: Path, draw: random.Random) -> None:
    """Draw other texts and limits."""
    path = folder / "calls.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    value["capacity"] = draw.choice((None, 0, 1, 2, 7, 1000))
    value["most"] = draw.choice((None, 0, 1, 500, 3_000, 10**9))
    texts = [mutated_text(text, draw) for text in value["texts"]]
    value["texts"] = texts + draw.choices(texts, k=60)
    value["seed"] = draw.randrange(2**32)
    path.write_text(json.dumps(value), encoding="utf-8")


def use_text_cache(folder: Path) -> None:
    """Apply the texts' operations to a cache.

    It must answer as a dictionary does, or have forgotten.
    """
    from lattice_embed._text_cache import CachedEmbedding, Shard, TextKeys
    from lattice_embed.embedding_cache import CachedOrigin

    value = json.loads((folder / "calls.json").read_text(encoding="utf-8"))
    draw = random.Random(value.get("seed", 0))
    keys, shard = TextKeys(b"prefix"), Shard(value["capacity"], value["most"])
    origin = CachedOrigin(model="model", prompt="", fingerprint="fingerprint", provenance=None)
    put: OrderedDict[bytes, bytes] = OrderedDict()
    for text in value["texts"]:
        try:
            key = keys.key(text)
        except UnicodeEncodeError:  # a text that no tokenizer takes: validated before it comes here
            continue
        call = draw.choice(CALLS)
        if call == "put":
            data = struct.pack("<f", draw.random()) * draw.choice((1, 8, 300))
            shard.put(
                key, CachedEmbedding(data, token_count=draw.choice((0, 1, 2**31 - 1)), truncated=False, origin=origin)
            )
            put[key] = data
        elif call == "clear" and draw.random() < 0.1:
            shard.clear()
            put.clear()
        elif call in ("get", "peek"):
            found = shard.get(key) if call == "get" else shard.peek(key)
            assert found is None or found.data == put[key], "another vector than the one that was put"
    assert value["capacity"] is None or len(shard.entries) <= value["capacity"], "more entries than the limit"
    assert value["most"] is None or shard.bytes_held <= value["most"], "more bytes than the limit"


TARGETS = [
    Target("vector-cache", make_caches, damage_cache, use_damaged_cache, (), is_changed=True),
    Target("lqecache", make_lqecache, damage_lqecache, use_lqecache, (LatticeError,)),
    Target("text-cache", make_calls, damage_calls, use_text_cache, (LatticeError,)),
]
