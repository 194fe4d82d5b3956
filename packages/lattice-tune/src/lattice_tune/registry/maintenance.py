"""Whether a registry is sound, and removing what no version names any more."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lattice_inference.checkpoint.atomic_file import remove_leftovers
from lattice_tune.errors import RegistryCorruptError
from lattice_tune.registry.blobs import storing
from lattice_tune.registry.lineage_graph import cyclic
from lattice_tune.registry.schema import (
    EVENT_COLUMNS,
    MODEL_COLUMNS,
    RECORD_COLUMNS,
    add_event,
    event_of,
    model_of,
    record_digest,
)
from lattice_tune.registry.store import RegistryStore
from lattice_tune.registry.stored_values import CHAMPION

__all__ = ["GcReport", "VerifyReport", "collect", "verify_store"]


@dataclass(frozen=True)
class VerifyReport:
    """What a check of the whole registry found.

    Attributes:
        problems: one sentence each; empty if all is well.
        versions: how many there are.
        blobs: how many contents they name.
        size: of those, in bytes.
        events: how many changes there were.
        unreferenced: contents that no version names; :meth:`ModelRegistry.gc` removes them.
    """

    problems: tuple[str, ...]
    versions: int
    blobs: int
    size: int
    events: int
    unreferenced: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True)
class GcReport:
    """What a collection removed, or would remove.

    Attributes:
        blobs: contents that no version and no running writer names, older than the grace period.
        size: of those, in bytes.
        kept: unreferenced contents that are within the grace period or claimed by a running writer.
    """

    blobs: int
    size: int
    kept: int


def verify_store(store: RegistryStore, *, contents: bool) -> VerifyReport:
    """Check the database, replay the events, and read every content.

    ``contents=False`` skips the last.
    """
    database = store.database
    with database.snapshot():
        if faults := database.faults():  # what the rows say then is not worth comparing
            return VerifyReport(tuple(faults), 0, 0, 0, 0, 0)
        models = database.rows(f"SELECT {MODEL_COLUMNS} FROM models ORDER BY id")
        named = _named_contents(store)
        events = database.rows(f"SELECT {EVENT_COLUMNS} FROM events ORDER BY id")
        problems = _row_problems(store, models)
        problems += _replay_problems(store, events)
    found = set()
    wrong = {}
    for sha256, _, state in store.blobs.scan():
        found.add(sha256)
        size = named.get(sha256, state.st_size)
        if state.st_size != size:
            wrong[sha256] = f"blob {sha256}: {state.st_size:,} bytes, and {size:,} were registered"
        elif sha256 in named and contents and (problem := store.blobs.problem_of(sha256, size)):
            wrong[sha256] = problem
    wrong |= {sha256: f"blob {sha256} is missing" for sha256 in sorted(set(named) - found)}
    if wrong:  # the last version that names it may have been deleted meanwhile, and the content collected
        still = _named_contents(store)
        problems += [problem for sha256, problem in wrong.items() if sha256 in still]
    unreferenced = len(found - set(named))
    return VerifyReport(tuple(problems), len(models), len(named), sum(named.values()), len(events), unreferenced)


def _named_contents(store: RegistryStore) -> dict[str, int]:
    """Return the size of every content that a version names.

    An invalid size is reported when the version is read.
    """
    rows = store.database.rows("SELECT sha256, max(size) FROM files GROUP BY sha256")
    return {sha256: size for sha256, size in rows if isinstance(size, int)}


def collect(store: RegistryStore, *, grace_seconds: float, dry_run: bool, actor: str) -> GcReport:
    """Remove contents that nothing names."""
    database = store.database
    with storing(store.folder):
        if not dry_run:
            remove_leftovers(store.folder)
        scanned = [entry for entry in store.blobs.scan() if stat.S_ISREG(entry[2].st_mode)]
        named = {sha256 for (sha256,) in database.rows("SELECT DISTINCT sha256 FROM files")}
        candidates = [(sha256, path) for sha256, path, _ in scanned if sha256 not in named]
        blobs = size = kept = 0
        with database.transaction():
            if not dry_run:
                store.drop_dead_claims()
            for sha256, path in candidates:
                if database.rows("SELECT 1 FROM files WHERE sha256 = ? LIMIT 1", (sha256,)):
                    continue
                try:
                    state = os.lstat(path)
                except FileNotFoundError:  # another collection was faster
                    continue
                claimed = database.rows("SELECT 1 FROM claims WHERE sha256 = ? LIMIT 1", (sha256,))
                if claimed or not time.time() - state.st_mtime >= grace_seconds:
                    kept += 1
                    continue
                if not dry_run:
                    os.unlink(path)
                blobs += 1
                size += state.st_size
            if blobs and not dry_run:
                add_event(database, "collected", "", "", actor, {"blobs": blobs, "size": size})
    return GcReport(blobs, size, kept)


def _row_problems(store: RegistryStore, rows: list[Any]) -> list[str]:
    """Check each version by itself: that it can be read, that it can be live; and the lineage."""
    problems = []
    for row in rows:
        try:
            model = model_of(store.database, row)
        except RegistryCorruptError as error:
            problems.append(str(error))
            continue
        if (model.status.value == "production") != (CHAMPION in model.aliases):
            problems.append(f"{model.reference} is {model.status.value}, and the live pointer says otherwise")
    references = {row[0]: f"{row[2]}@{row[3]}" for row in rows}
    in_cycles = cyclic(store.database.rows("SELECT child, parent FROM parents"))
    return problems + [f"{references.get(number, number)} is its own ancestor" for number in in_cycles]


def _replay_problems(store: RegistryStore, events: list[Any]) -> list[str]:
    """Check that the events lead to the statuses and aliases that there are."""
    problems = []
    statuses: dict[tuple[str, str], str] = {}
    aliases: dict[tuple[str, str], str] = {}
    records: dict[tuple[str, str], str] = {}
    for expected, row in enumerate(events, 1):
        try:
            event = event_of(row, store.database.path)
        except RegistryCorruptError as error:
            problems.append(str(error))
            continue
        if event.id != expected:
            return [*problems, f"event {expected} is missing"]
        try:
            _apply(event.kind, event.name, event.version, event.detail, statuses, aliases)
            if event.kind in ("registered", "imported"):
                records[event.name, event.version] = event.detail["record"]
        except (KeyError, TypeError):
            problems.append(f"event {event.id} lacks what a change of its kind says")
    database = store.database
    found = {
        (name, version): status for name, version, status in database.rows("SELECT name, version, status FROM models")
    }
    named = database.rows("SELECT a.name, alias, version FROM aliases a JOIN models m ON m.id = a.model")
    for what, replayed, there in (
        ("status", statuses, found),
        ("alias", aliases, {(name, alias): version for name, alias, version in named}),
    ):
        for key in sorted(replayed.keys() | there.keys(), key=repr):
            if replayed.get(key) != there.get(key):
                problems.append(
                    f"{what} of {'@'.join(map(str, key))} is {there.get(key, 'missing')}, and the events say "
                    f"{replayed.get(key, 'nothing')}"
                )
    for row in database.rows(f"SELECT {RECORD_COLUMNS} FROM models"):
        if record_digest(row) != records.get((row[1], row[2])):
            problems.append(f"{row[1]}@{row[2]} is not as it was registered")
    return problems


def _apply(
    kind: str,
    name: str,
    version: str,
    detail: Mapping[str, Any],
    statuses: dict[tuple[str, str], str],
    aliases: dict[tuple[str, str], str],
) -> None:
    if kind in ("registered", "imported"):
        statuses[name, version] = "pending"
    elif kind == "deleted":
        statuses.pop((name, version), None)
    elif kind == "status":
        statuses[name, version] = detail["to"]
        if detail["from"] == "production":
            aliases.pop((name, CHAMPION), None)
    elif kind in ("promoted", "rolled_back"):
        if detail["from"] is not None:
            statuses[name, detail["from"]] = "archived" if kind == "promoted" else "deprecated"
        statuses[name, version] = "production"
        aliases[name, CHAMPION] = version
    elif kind == "alias_set":
        aliases[name, detail["alias"]] = version
    elif kind == "alias_removed":
        aliases.pop((name, detail["alias"]), None)
