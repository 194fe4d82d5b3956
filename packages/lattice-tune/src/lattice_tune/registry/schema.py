"""The tables of a registry, and how a row becomes a :class:`RegisteredModel`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lattice_tune.arguments import whole
from lattice_tune.errors import InvalidInputError, RegistryCorruptError
from lattice_tune.registry.adapter_governance import AdapterGovernance
from lattice_tune.registry.database import Database, DatabaseFormat, Row
from lattice_tune.registry.records import (
    Lineage,
    ModelKind,
    ModelMetadata,
    RegisteredModel,
    RegistryEvent,
    StoredFile,
    moment,
)
from lattice_tune.registry.semantic_version import SemanticVersion
from lattice_tune.registry.sources import digest_of
from lattice_tune.registry.statuses import ModelStatus
from lattice_tune.registry.stored_values import MOST_COUNT, check_digest, check_name, check_relative_path, check_text

__all__ = [
    "EVENT_COLUMNS",
    "FORMAT",
    "MODEL_COLUMNS",
    "RECORD_COLUMNS",
    "add_event",
    "event_of",
    "model_of",
    "now_microseconds",
    "record_digest",
    "to_json",
]

APPLICATION_ID = 0x4C4D5247  # "LMRG"
VERSION = 1

_STATUSES = ", ".join(f"'{status.value}'" for status in ModelStatus)

SCHEMA = (
    f"""CREATE TABLE models (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uuid TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        is_prerelease INTEGER NOT NULL,
        precedence BLOB NOT NULL,  -- compares as SemVer orders versions
        kind TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ({_STATUSES})),
        is_folder INTEGER NOT NULL,
        digest TEXT NOT NULL,
        metadata TEXT NOT NULL,
        lineage TEXT NOT NULL,
        description TEXT NOT NULL,
        registered_by TEXT NOT NULL,
        registered_at INTEGER NOT NULL,  -- microseconds since 1970
        updated_at INTEGER NOT NULL,
        governance TEXT,
        UNIQUE (name, version)
    )""",
    "CREATE INDEX models_by_precedence ON models (name, is_prerelease, precedence, id)",
    "CREATE INDEX models_by_status ON models (status, name)",
    "CREATE UNIQUE INDEX one_in_production ON models (name) WHERE status = 'production'",
    """CREATE TABLE files (
        model INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
        path TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        size INTEGER NOT NULL,
        PRIMARY KEY (model, path)
    ) WITHOUT ROWID""",
    "CREATE INDEX files_by_sha256 ON files (sha256)",
    """CREATE TABLE parents (
        child INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
        parent INTEGER NOT NULL REFERENCES models (id) ON DELETE RESTRICT,
        PRIMARY KEY (child, parent)
    ) WITHOUT ROWID""",
    "CREATE INDEX parents_by_parent ON parents (parent)",
    """CREATE TABLE aliases (
        name TEXT NOT NULL,
        alias TEXT NOT NULL,
        model INTEGER NOT NULL REFERENCES models (id) ON DELETE RESTRICT,
        PRIMARY KEY (name, alias)
    ) WITHOUT ROWID""",
    "CREATE INDEX aliases_by_model ON aliases (model)",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        actor TEXT NOT NULL,
        detail TEXT NOT NULL
    )""",
    "CREATE INDEX events_by_name ON events (name, id)",
    # blobs that a running writer will name: `writer` is a locked file of the folder writers/
    "CREATE TABLE claims (writer TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (writer, sha256)) WITHOUT ROWID",
    """CREATE TABLE shadow_sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        candidate INTEGER NOT NULL REFERENCES models (id) ON DELETE CASCADE,
        baseline TEXT NOT NULL,  -- the uuid of the version that answered
        salt BLOB NOT NULL,
        config TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL
    )""",
    "CREATE INDEX shadow_sessions_by_candidate ON shadow_sessions (candidate)",
    """CREATE TABLE shadow_samples (
        session INTEGER NOT NULL REFERENCES shadow_sessions (id) ON DELETE CASCADE,
        sample BLOB NOT NULL,  -- a hash
        agreed INTEGER NOT NULL,
        live_ms REAL NOT NULL,
        candidate_ms REAL NOT NULL,
        PRIMARY KEY (session, sample)
    ) WITHOUT ROWID""",
)

FORMAT = DatabaseFormat("model registry", APPLICATION_ID, VERSION, SCHEMA)

MODEL_COLUMNS = (
    "id, uuid, name, version, kind, status, is_folder, digest, metadata, lineage, description, registered_by, "
    "registered_at, updated_at, governance"
)
EVENT_COLUMNS = "id, at, kind, name, version, actor, detail"

RECORD_COLUMNS = (
    "uuid, name, version, is_prerelease, hex(precedence), kind, is_folder, digest, metadata, lineage, description, "
    "registered_by, registered_at"
)
"""What never changes after a version was registered; the event of that has a digest of it."""


def now_microseconds() -> int:
    """Return the time since 1970."""
    return time.time_ns() // 1000


def to_json(value: object) -> str:
    """Return JSON text whose keys are in order, so that equal values have equal texts."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def add_event(database: Database, kind: str, name: str, version: str, actor: str, detail: Mapping[str, Any]) -> int:
    """Note a change, in the transaction that makes it, and return the event's number."""
    values = (now_microseconds(), kind, name, version, actor, to_json(dict(detail)))
    number = database.execute("INSERT INTO events VALUES (NULL, ?, ?, ?, ?, ?, ?)", values).lastrowid
    assert number is not None
    return number


def record_digest(row: Row) -> str:
    """Return the SHA-256 of a row of :data:`RECORD_COLUMNS`."""
    return hashlib.sha256(repr(row).encode("utf-8", "surrogatepass")).hexdigest()


def event_of(row: Row, path: Path) -> RegistryEvent:
    """Return the event of a row of :data:`EVENT_COLUMNS`.

    Raises:
        RegistryCorruptError: the row is no event.
    """
    try:
        number, at, kind, name, version, actor, detail = row
        for text in (kind, name, version, actor):
            check_text("a text", text)
        return RegistryEvent(
            whole(number, "id", most=MOST_COUNT), moment(at), kind, name, version, actor, dict(json.loads(detail))
        )
    except (ValueError, TypeError, OverflowError, OSError, RecursionError) as error:
        raise RegistryCorruptError(f"{path} is damaged: event {row[0]!r:.80}: {error}") from error


def model_of(database: Database, row: Row) -> RegisteredModel:
    """Return the version of a row of :data:`MODEL_COLUMNS`, with its files, parents and aliases.

    Raises:
        RegistryCorruptError: the row is none.
    """
    number, uuid, name, version, kind, status, is_folder, digest, metadata, lineage, *rest = row
    description, registered_by, registered_at, updated_at, governance = rest
    files = database.rows("SELECT path, sha256, size FROM files WHERE model = ? ORDER BY path", (number,))
    parents = database.rows(
        "SELECT name || '@' || version FROM parents JOIN models ON id = parent WHERE child = ? ORDER BY parent",
        (number,),
        of=(str,),
    )
    aliases = database.rows("SELECT alias FROM aliases WHERE model = ? ORDER BY alias", (number,), of=(str,))
    try:
        stored = tuple(
            StoredFile(
                check_relative_path("path", path), check_digest("sha256", sha256), whole(size, "size", most=MOST_COUNT)
            )
            for path, sha256, size in files
        )
        listed = [(file.path, file.sha256, file.size) for file in stored]
        if not stored or (len(stored) > 1 and not is_folder) or digest_of(listed, is_folder=bool(is_folder)) != digest:
            raise ValueError("its files do not fit its digest")
        return RegisteredModel(
            id=check_text("id", uuid),
            name=check_name(name),
            version=SemanticVersion.parse(version),
            kind=ModelKind.of(kind),
            status=ModelStatus.of(status),
            files=stored,
            digest=digest,
            size=sum(file.size for file in stored),
            is_folder=bool(is_folder),
            metadata=metadata_of(json.loads(metadata)),
            lineage=Lineage(**json.loads(lineage)),
            parents=tuple(parent for (parent,) in parents),
            aliases=tuple(alias for (alias,) in aliases),
            description=check_text("description", description),
            registered_by=check_text("registered_by", registered_by),
            registered_at=moment(registered_at),
            updated_at=moment(updated_at),
            governance=None if governance is None else AdapterGovernance.from_fields(json.loads(governance)),
        )
    except (InvalidInputError, ValueError, TypeError, OverflowError, OSError, RecursionError) as error:
        raise RegistryCorruptError(
            f"{database.path} is damaged: version {version!r:.80} of {name!r:.80}: {error}"
        ) from error


def metadata_of(fields: Mapping[str, Any]) -> ModelMetadata:
    """Return the metadata that was written as JSON."""
    return ModelMetadata(**(dict(fields) | {"tags": tuple(fields.get("tags", ()))}))
