"""The file that holds a migration's state: the plan, and each document's part in it.

A document is ``pending``, ``done`` or ``skipped``. Pending: the target lacks the source's text, or it is unknown. A
worker claims a pending document; the claim ends with the work, or with the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lattice_embed.errors import InvalidInputError, StoreCorruptError
from lattice_embed.migration.claims import claim_is_alive
from lattice_embed.migration.plan import BackfillConfig, MigrationPlan
from lattice_embed.migration.states import MigrationState
from lattice_embed.stores.document import check_id
from lattice_embed.stores.sqlite_database import DatabaseFormat, SqliteDatabase
from lattice_embed.validation import is_expressible

__all__ = ["LATEST", "Counts", "MigrationJournal", "MigrationRecord", "RowState"]

APPLICATION_ID = 0x4C4D4731  # "LMG1"
SCHEMA_VERSION = 1
TRUNCATED = "truncated"
"""What stands where a skipped document has its reason, for one that is done but was cut at the model's limit."""

MOST_PARAMETERS = 500
IDLE_SECONDS = 60.0
"""Without a batch for so long, and without a live claim, no process is at work."""

LOGGED_BATCHES = 64
"""Batches that the speed is measured over."""

RowState = Literal["pending", "done", "skipped"]
ROW_STATES: tuple[RowState, ...] = ("pending", "done", "skipped")

MOST_ROWS = 2**63 - 1
LATEST = 253_402_300_799.0
"""The end of the year 9999, in seconds since 1970: no later time can be written as a date."""

SCHEMA = (
    """CREATE TABLE migration (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        plan TEXT NOT NULL,
        config TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'planned',
        reason TEXT NOT NULL DEFAULT '',
        errors INTEGER NOT NULL DEFAULT 0,
        last_error TEXT NOT NULL DEFAULT '',
        started_at REAL,
        stopped_at REAL,
        stopped_seconds REAL NOT NULL DEFAULT 0,
        completed_at REAL,
        window_closed INTEGER NOT NULL DEFAULT 0,
        queries_target INTEGER NOT NULL DEFAULT 0,
        surveyed INTEGER NOT NULL DEFAULT 0
    )""",
    """CREATE TABLE documents (
        id TEXT NOT NULL PRIMARY KEY,
        state TEXT NOT NULL,
        reason TEXT NOT NULL DEFAULT '',
        claim TEXT
    ) WITHOUT ROWID""",
    "CREATE INDEX documents_pending ON documents (claim, id) WHERE state = 'pending'",
    "CREATE INDEX documents_truncated ON documents (id) WHERE reason = 'truncated'",
    # counted as they change: a status must not walk through millions of documents
    "CREATE TABLE counts (state TEXT PRIMARY KEY, documents INTEGER NOT NULL)",
    "INSERT INTO counts VALUES ('pending', 0), ('done', 0), ('skipped', 0)",
    """CREATE TRIGGER document_added AFTER INSERT ON documents BEGIN
        UPDATE counts SET documents = documents + 1 WHERE state = new.state;
    END""",
    """CREATE TRIGGER document_changed AFTER UPDATE OF state ON documents WHEN old.state <> new.state BEGIN
        UPDATE counts SET documents = documents - 1 WHERE state = old.state;
        UPDATE counts SET documents = documents + 1 WHERE state = new.state;
    END""",
    "CREATE TABLE batches (at REAL NOT NULL, documents INTEGER NOT NULL)",
)

FORMAT = DatabaseFormat("migration's journal", APPLICATION_ID, SCHEMA_VERSION, SCHEMA)


@dataclass(frozen=True)
class MigrationRecord:
    """What the journal says of the migration as a whole. Times are seconds since 1970.

    Attributes:
        plan, config: as given when the migration was created.
        state: where it stands.
        reason: why it is paused.
        errors, last_error: how many errors there were, and what the last one said.
        started_at: when it was started; 0 before.
        stopped_at: when it was paused or failed; 0 while it runs.
        stopped_seconds: how long it was paused or failed in all before now.
        completed_at: when it was completed; 0 before.
        window_closed: the source has missed a write, or somebody closed the window: no way back.
        queries_target: the target answers queries already, before completion.
        surveyed: every document of the source has been found.
    """

    plan: MigrationPlan
    config: BackfillConfig
    state: MigrationState
    reason: str
    errors: int
    last_error: str
    started_at: float
    stopped_at: float
    stopped_seconds: float
    completed_at: float
    window_closed: bool
    queries_target: bool
    surveyed: bool


@dataclass(frozen=True)
class Counts:
    """Documents by their state; ``truncated`` ones are among the done."""

    pending: int
    done: int
    skipped: int
    truncated: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.pending + self.done + self.skipped


class MigrationJournal:
    """An open journal. Methods that write are to be called inside :meth:`transaction`.

    Raises:
        StoreError: there is no such file.
        StoreCorruptError: it is damaged, or no journal.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._database = SqliteDatabase(path, FORMAT)
        self.path: Path = self._database.path

    @classmethod
    def create(cls, path: str | os.PathLike[str], plan: MigrationPlan, config: BackfillConfig) -> MigrationJournal:
        """Make the journal of a new migration; what there is at ``path`` is not replaced."""
        insert = "INSERT INTO migration (only, plan, config) VALUES (1, ?, ?)"
        fields = [json.dumps(value) for value in (plan.to_fields(), asdict(config))]
        SqliteDatabase.create(path, FORMAT, [(insert, fields)])
        return cls(path)

    def transaction(self) -> AbstractContextManager[None]:
        """Keep other processes from writing until it ends; all or nothing."""
        return self._database.transaction()

    def snapshot(self) -> AbstractContextManager[None]:
        """Read several things from one state of the file."""
        return self._database.snapshot()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # The migration as a whole

    def record(self) -> MigrationRecord:
        """Return what is written of the migration now."""
        rows = self._database.read(
            "SELECT plan, config, state, reason, errors, last_error, started_at, stopped_at, stopped_seconds, "
            "completed_at, window_closed, queries_target, surveyed FROM migration"
        )
        try:
            (row,) = rows
            plan, config, state, reason, errors, last_error, started, stopped, seconds, completed, *flags = row
            _check_record(row)
            return MigrationRecord(
                MigrationPlan.from_fields(json.loads(plan)),
                BackfillConfig(**json.loads(config)),
                MigrationState(state),
                reason,
                errors,
                last_error,
                started or 0.0,
                stopped or 0.0,
                seconds,
                completed or 0.0,
                *map(bool, flags),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreCorruptError(f"{self.path} is damaged: {error!r:.300}") from error

    def update(self, **values: Any) -> None:
        """Set columns of the migration."""
        names = ", ".join(f"{name} = ?" for name in values)
        expressible = [_expressible(value) if isinstance(value, str) else value for value in values.values()]
        self._database.write(f"UPDATE migration SET {names}", expressible)

    def record_error(self, message: str) -> None:
        """Count an error and keep what it said."""
        self._database.write("UPDATE migration SET errors = errors + 1, last_error = ?", (_expressible(message),))

    # Documents

    def counts(self) -> Counts:
        """Return how many documents there are of each state."""
        numbers: dict[str, int] = dict(self._database.read("SELECT state, documents FROM counts"))
        counted = [numbers.get(state, -1) for state in ROW_STATES]
        if not all(type(number) is int and number >= 0 for number in counted):
            raise StoreCorruptError(f"{self.path} is damaged: it counts {numbers!r:.200} documents")
        truncated = self._database.read_number("SELECT count(*) FROM documents WHERE reason = 'truncated'")
        pending, done, skipped = counted
        return Counts(pending, done, skipped, truncated)

    def check_pending(self) -> None:
        """Check that a positive count of pending documents has documents.

        Otherwise a backfill would wait for ever.

        Raises:
            StoreCorruptError: it has not.
        """
        with self.snapshot():
            counted = self.counts().pending
            found = self._database.read_number("SELECT EXISTS (SELECT 1 FROM documents WHERE state = 'pending')")
        if counted and not found:
            raise StoreCorruptError(f"{self.path} is damaged: it counts {counted} pending documents and has none")

    def states(self, ids: Sequence[str]) -> dict[str, RowState]:
        """Return the states of those of ``ids`` that the journal knows."""
        states = dict(self._select("SELECT id, state FROM documents WHERE id IN ({})", ids))
        for document_id, state in states.items():
            if state not in ROW_STATES:
                raise StoreCorruptError(
                    f"{self.path} is damaged: the state of document {document_id!r} is {state!r:.80}"
                )
        return states

    def skipped(self, *, after: str, limit: int) -> list[tuple[str, str]]:
        """Return ids and reasons of skipped documents whose ids come after ``after``, in order."""
        rows = self._database.read(
            "SELECT id, reason FROM documents WHERE state = 'skipped' AND id > ? ORDER BY id LIMIT ?", (after, limit)
        )
        if not all(isinstance(value, str) and is_expressible(value) for row in rows for value in row):
            raise StoreCorruptError(f"{self.path} is damaged: a skipped document has no name or no reason")
        return [(document_id, reason) for document_id, reason in rows]

    def mark_pending(self, ids: Iterable[str], claim: str | None = None) -> None:
        """Note that the target may lack what the source has of ``ids``.

        ``claim``: its owner will settle them.
        """
        self._database.write_many(
            "INSERT INTO documents (id, state, claim) VALUES (?, 'pending', ?) ON CONFLICT (id) DO UPDATE SET "
            "state = 'pending', reason = '', claim = excluded.claim",
            [(document_id, claim) for document_id in ids],
        )

    def settle(self, rows: Iterable[tuple[str, RowState, str]]) -> None:
        """Set documents (id, state, reason) and end any claim on them."""
        self._database.write_many(
            "INSERT INTO documents (id, state, reason) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "state = excluded.state, reason = excluded.reason, claim = NULL",
            list(rows),
        )

    # Claims

    def claim(self, claim: str, limit: int) -> list[str]:
        """Claim up to ``limit`` unclaimed pending documents, and return their ids."""
        rows = self._database.read(
            "SELECT id FROM documents WHERE state = 'pending' AND claim IS NULL ORDER BY id LIMIT ?",
            (min(limit, MOST_ROWS),),
        )
        ids = [document_id for (document_id,) in rows]
        try:
            ids = [check_id(document_id) for document_id in ids]
        except InvalidInputError as error:
            raise StoreCorruptError(f"{self.path} is damaged: {error}") from error
        self._database.write_many("UPDATE documents SET claim = ? WHERE id = ?", [(claim, name) for name in ids])
        return ids

    def still_claimed(self, claim: str, ids: Sequence[str]) -> set[str]:
        """Return those of ``ids`` that ``claim`` still holds.

        A write in between takes a document away.
        """
        rows = self._select("SELECT id, claim FROM documents WHERE state = 'pending' AND id IN ({})", ids)
        return {document_id for document_id, holder in rows if holder == claim}

    def release(self, claim: str) -> None:
        """Give back what ``claim`` holds."""
        self._database.write("UPDATE documents SET claim = NULL WHERE state = 'pending' AND claim = ?", (claim,))

    def release_dead(self) -> None:
        """Give back what killed processes had claimed."""
        for claim in self._claims():
            if not claim_is_alive(self.path, claim):
                with self.transaction():
                    self._database.write(
                        "UPDATE documents SET claim = NULL WHERE state = 'pending' AND CAST(claim AS BLOB) = ?",
                        (claim,),
                    )

    # Speed

    def start_clock(self, now: float) -> None:
        """Begin to measure the speed anew."""
        self._database.write("DELETE FROM batches")
        self._database.write("INSERT INTO batches VALUES (?, 0)", (now,))

    def log_batch(self, now: float, documents: int) -> None:
        """Note that a batch was finished."""
        self._database.write("INSERT INTO batches VALUES (?, ?)", (now, documents))
        self._database.write(
            "DELETE FROM batches WHERE rowid <= (SELECT max(rowid) FROM batches) - ?", (LOGGED_BATCHES,)
        )

    def throughput(self, now: float) -> float | None:
        """Return documents a second over the latest batches.

        ``None`` before there is one, or when no process is at work.
        """
        rows = self._database.read("SELECT at, documents FROM batches ORDER BY rowid")
        if not all(_is_time(at) and type(documents) is int for at, documents in rows):
            raise StoreCorruptError(f"{self.path} is damaged: a batch has no time, or no number of documents")
        if len(rows) < 2 or not rows[-1][0] > rows[0][0]:
            return None
        if now - rows[-1][0] > IDLE_SECONDS and not any(claim_is_alive(self.path, claim) for claim in self._claims()):
            return None
        return float(sum(documents for _, documents in rows[1:]) / (rows[-1][0] - rows[0][0]))

    def _claims(self) -> list[bytes]:
        """Return the claims there are, as bytes: a damaged one need not be text."""
        rows = self._database.read(
            "SELECT DISTINCT CAST(claim AS BLOB) FROM documents WHERE state = 'pending' AND claim IS NOT NULL"
        )
        return [claim for (claim,) in rows]

    def _select(self, statement: str, ids: Sequence[str]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(ids), MOST_PARAMETERS):
            part = ids[start : start + MOST_PARAMETERS]
            rows += self._database.read(statement.format(",".join("?" * len(part))), part)
        return rows


def _check_record(row: tuple[Any, ...]) -> None:
    """Look at the kinds of what the migration's row holds.

    Raises:
        ValueError: a value is none that is ever written there.
    """
    plan, config, state, reason, errors, last_error, started, stopped, seconds, completed, *flags = row
    if not all(isinstance(value, str) for value in (plan, config, state, reason, last_error)):
        raise ValueError("a text is no text")
    if not all(value is None or _is_time(value) for value in (started, stopped, completed)) or not _is_time(seconds):
        raise ValueError("a time is no time")
    if type(errors) is not int or errors < 0 or not all(flag in (0, 1) for flag in flags):
        raise ValueError("a number is out of range")


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and -LATEST <= value <= LATEST


def _expressible(text: str) -> str:
    """Return what UTF-8 can express of a text: an error's message may quote what it cannot."""
    return text.encode("utf-8", "replace").decode()
