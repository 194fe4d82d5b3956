"""Damage of stores and journals that somebody meant, with digests that fit, and all that a store or a migration is asked."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import blake3
import numpy as np
from mutated_files import mutate_file, mutated_bytes, mutated_json

from lattice_embed import LatticeEmbedError
from lattice_embed.migration import BackfillCoordinator, MigrationController
from lattice_embed.stores import StoredDocument, VectorSpace, create_store, open_store

from .damaged_stores import documents, make_store
from .hash_service import HashService

__all__ = [
    "QUERY",
    "make_originals",
    "mutate_any",
    "mutate_line",
    "mutate_manifest",
    "mutate_vectors",
    "use_journal",
    "use_store",
]

QUERY = np.ones(16, np.float32)


def make_originals(folder: Path) -> None:
    """Write a store of each kind, and a journal with its two stores."""
    make_store(folder / "s.db")
    make_store(folder / "s")
    service = HashService("new")
    with (
        create_store(folder / "source.db") as source,
        create_store(folder / "target.db", VectorSpace.of(service)) as target,
    ):
        source.put([StoredDocument.pending(f"d{number}", "poison" * (number == 3) + "text") for number in range(12)])
        with BackfillCoordinator.create(
            folder / "j", source=source, target=target, target_service=service
        ) as coordinator:
            coordinator.run(max_batches=0)
            coordinator.skip(["d1"])
            coordinator.write([("d2", "another text")])


def use_store(path: Path) -> None:
    """Call everything that a store has; errors of the package are the only ones."""
    with suppress(LatticeEmbedError), open_store(path) as store:
        names = [f"document-{number}" for number in range(41)]
        calls: list[Callable[[], object]] = [
            store.verify,
            lambda: store.get(names),
            lambda: store.versions(names),
            store.scan,
            lambda: store.query(QUERY, 50),
            lambda: len(store),
            lambda: store.delete(names[:3]),
            lambda: store.put(documents(12)),
            lambda: store.query(QUERY, 5),
        ]
        for call in calls:
            with suppress(LatticeEmbedError):
                call()


def seal_segments(folder: Path) -> None:
    """Give the manifest the digests of the segments as they are, and of itself: damage that somebody meant."""
    manifest = json.loads((folder / "store.json").read_text())
    for record in manifest["segments"]:
        for suffix, name in ((".npy", "vectors"), (".jsonl", "lines")):
            data = (folder / f"{record['name']}{suffix}").read_bytes()
            record |= {f"{name}_bytes": len(data), f"{name}_blake3": blake3.blake3(data).hexdigest()}
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: Any) -> None:
    if isinstance(manifest, dict):
        manifest.pop("blake3", None)
        manifest["blake3"] = blake3.blake3(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "store.json").write_text(json.dumps(manifest))


def mutate_any(folder: Path, draw: random.Random) -> None:
    mutate_file(draw.choice(sorted(path for path in folder.iterdir() if path.stat().st_size)), draw)


def mutate_manifest(folder: Path, draw: random.Random) -> None:
    write_manifest(folder, mutated_json(json.loads((folder / "store.json").read_text()), draw))


def mutate_line(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.glob("*.jsonl")))
    lines = path.read_bytes().splitlines(keepends=True)
    place = draw.randrange(len(lines))
    if draw.random() < 0.7:
        lines[place] = json.dumps(mutated_json(json.loads(lines[place]), draw)).encode() + b"\n"
    elif draw.random() < 0.2:
        lines[place] = b"[" * 100_000 + b"\n"
    else:
        lines[place] = mutated_bytes(lines[place], draw)
    path.write_bytes(b"".join(lines))
    seal_segments(folder)


def mutate_vectors(folder: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(folder.glob("*.npy")))
    data = path.read_bytes()
    if draw.random() < 0.5:
        shape = draw.choice(("(-1, 16)", "(99999999999999999999, 16)", "()", "(1,)", "'x'", "(1, 16)"))
        kind = draw.choice(("'<f4'", "'|O'", "[('a', '<f4')]", "'<f8'", "7", "'\\x00'"))
        head = f"{{'descr': {kind}, 'fortran_order': {draw.choice(('True', 'False', '('))}, 'shape': {shape}, }}"
        path.write_bytes(data[:10] + head.encode().ljust(117)[:117] + b"\n" + data[128:])
    else:
        mutate_file(path, draw)
    seal_segments(folder)


def use_journal(path: Path, work: Path) -> None:
    """Call everything that a migration has over a damaged journal, with sound stores."""
    with suppress(LatticeEmbedError), MigrationController(path) as controller:
        calls: list[Callable[[], object]] = [
            lambda: controller.plan,
            lambda: controller.progress().to_fields(),
            lambda: list(controller.skipped()),
            controller.routing_config,
            lambda: controller.pause("because"),
            controller.resume,
            lambda: controller.record_error("an error"),
        ]
        for call in calls:
            with suppress(LatticeEmbedError):
                call()
    service = HashService("new")
    with (
        open_store(work / "source.db") as source,
        open_store(work / "target.db") as target,
        suppress(LatticeEmbedError),
        BackfillCoordinator(path, source=source, target=target, target_service=service) as coordinator,
    ):
        calls = [
            lambda: coordinator.query("a text"),
            lambda: coordinator.run(max_batches=2),
            lambda: coordinator.write([("d4", "new")]),
            lambda: coordinator.delete(["d5"]),
            lambda: coordinator.skip(["d6"]),
            lambda: coordinator.rollback(),
            lambda: coordinator.cancel(),
        ]
        for call in calls:
            with suppress(LatticeEmbedError):
                call()
