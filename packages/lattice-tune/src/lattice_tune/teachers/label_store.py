"""Answers that were paid for, in one SQLite file. What is in it is never asked for again."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lattice_tune.arguments import instance, number
from lattice_tune.errors import ConfigError, InvalidInputError, LabelStoreError, shown
from lattice_tune.teachers.claims import Claims
from lattice_tune.teachers.label_context import LabelContext, text_bytes
from lattice_tune.teachers.rows import LabeledText
from lattice_tune.teachers.texts import check_file_path, check_texts, list_of

__all__ = ["LabelStore", "StoredAnswer", "StoredContext"]

APPLICATION_ID = 0x4C544C53  # "LTLS"
SCHEMA_VERSION = 1
LAST_MOMENT = 253402300799.0
"""The end of the year 9999, in seconds."""

MOST_VOTE = 10**6
MOST_KEYS = 500
"""Keys that one query asks for."""

_SCHEMA = f"""
CREATE TABLE contexts (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, provider TEXT NOT NULL, model_id TEXT NOT NULL,
    parameters TEXT NOT NULL, template TEXT NOT NULL, labels TEXT NOT NULL, kind TEXT NOT NULL
);
CREATE TABLE texts (digest BLOB PRIMARY KEY, text BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE answers (
    key BLOB PRIMARY KEY, context INTEGER NOT NULL REFERENCES contexts (id), text BLOB NOT NULL REFERENCES texts (digest),
    vote INTEGER NOT NULL, probabilities TEXT NOT NULL, input_tokens INTEGER, output_tokens INTEGER,
    cut_characters INTEGER NOT NULL, answered_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX answers_by_text ON answers (text, context);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


@dataclass(frozen=True)
class StoredAnswer:
    """An answer as it is kept.

    Attributes:
        key: what it is found by.
        text: the text.
        vote: the answer's number among several of one text, from 0.
        probabilities: of each label, in the order of the context's labels.
        input_tokens, output_tokens: what the server told, or ``None``.
        cut_characters: characters at the text's end that the teacher has not seen.
    """

    key: bytes
    text: str
    vote: int
    probabilities: tuple[float, ...]
    input_tokens: int | None = None
    output_tokens: int | None = None
    cut_characters: int = 0


@dataclass(frozen=True)
class StoredContext:
    """What a store holds answers of.

    Attributes:
        number: what :meth:`LabelStore.export` calls it.
        context: teacher, prompt template and labels.
        answers: how many there are.
    """

    number: int
    context: LabelContext
    answers: int


class LabelStore:
    """Answers that were paid for. Thread-safe; processes may share the file. A context manager.

    Kept are labels, never refusals or failures. An answer is on the disk when :meth:`put` returns. The file holds the texts
    and can be read by its owner alone.

    Args:
        path: the file; it is made if it is not there.
        timeout: seconds to wait for another process that writes.

    Raises:
        LabelStoreError: the file cannot be opened, is damaged, another program's, or of a later version.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 30.0) -> None:
        number(timeout, "timeout", least=0.0, most=3600.0, refusal=ConfigError)
        self.path: Path = Path(os.path.realpath(check_file_path("path", path)))
        self._lock = threading.RLock()
        self._process = os.getpid()
        with self._reporting():
            new = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
            os.close(new)
            self._connection = sqlite3.connect(
                self.path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
        self._open = True
        try:
            with self._reporting():
                self._prepare()
                self._claims = Claims(self.path)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA foreign_keys = ON")
        if run("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise LabelStoreError(f"{self.path}: the file system has no WAL journal: keep the store on a local disk")
        run("PRAGMA synchronous = FULL")
        with self._transaction():
            identity = run("PRAGMA application_id").fetchone()[0]
            version = run("PRAGMA user_version").fetchone()[0]
            tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if identity == 0 and version == 0 and tables == 0:
                for statement in _SCHEMA.split(";"):
                    run(statement)
                return
        if identity != APPLICATION_ID:
            raise LabelStoreError(f"{self.path} is a database of another program: name a new file")
        if version != SCHEMA_VERSION:
            raise LabelStoreError(
                f"{self.path} has schema version {version}, and this version of lattice-tune reads {SCHEMA_VERSION}: "
                "use the version that wrote it, or a new file"
            )

    # Answers

    def get(self, context: LabelContext, keys: Iterable[bytes]) -> dict[bytes, StoredAnswer]:
        """Return the answers of a context that are there, by key.

        Raises:
            LabelStoreError: the file is damaged, or another process holds it for too long.
        """
        instance(context, "context", LabelContext)
        wanted = list_of("keys", keys, bytes)
        found: dict[bytes, StoredAnswer] = {}
        with self._lock, self._reporting():
            for start in range(0, len(wanted), MOST_KEYS):
                part = wanted[start : start + MOST_KEYS]
                marks = ",".join("?" * len(part))
                query = (
                    "SELECT a.key, t.digest, t.text, a.vote, a.probabilities, a.input_tokens, a.output_tokens, "
                    "a.cut_characters "
                    f"FROM answers a JOIN texts t ON t.digest = a.text WHERE a.key IN ({marks})"
                )
                for key, digest, raw, vote, given, *counts in self._connection.execute(query, part):
                    text = _text(digest, raw)
                    _check_key(context, key, text, vote)
                    probabilities = _numbers(given, len(context.labels))
                    found[key] = StoredAnswer(key, text, vote, probabilities, *map(_count, counts))
        return found

    def put(self, context: LabelContext, answers: Sequence[StoredAnswer]) -> None:
        """Keep answers; they are on the disk when this returns. An answer that is there stays.

        Raises:
            LabelStoreError: the disk is full, the file cannot be written, or another process holds it for too long. None
                of ``answers`` is kept then.
        """
        instance(context, "context", LabelContext)
        answers = list_of("answers", answers, StoredAnswer)
        now = datetime.datetime.now(datetime.UTC).timestamp()
        with self._lock, self._reporting(), self._transaction():
            number = self._number_of(context)
            for answer in answers:
                raw = text_bytes(answer.text)
                digest = hashlib.sha256(raw).digest()
                self._connection.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (digest, raw))
                self._connection.execute(
                    "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        answer.key,
                        number,
                        digest,
                        answer.vote,
                        json.dumps(answer.probabilities),
                        answer.input_tokens,
                        answer.output_tokens,
                        answer.cut_characters,
                        now,
                    ),
                )

    def _number_of(self, context: LabelContext) -> int:
        self._connection.execute(
            "INSERT OR IGNORE INTO contexts (digest, provider, model_id, parameters, template, labels, kind) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                context.digest,
                context.provider,
                context.model_id,
                context.parameters,
                context.template,
                json.dumps(context.labels),
                context.kind,
            ),
        )
        row = self._connection.execute("SELECT id FROM contexts WHERE digest = ?", (context.digest,)).fetchone()
        return int(row[0])

    def count_changed(self, context: LabelContext, texts: Iterable[str]) -> dict[str, int]:
        """Return how many texts have answers of other contexts only, by what differs.

        The keys are those of :meth:`LabelContext.differences`, joined by ``" and "``.
        """
        instance(context, "context", LabelContext)
        texts = check_texts(texts)
        others = {each.number: each.context.differences(context) for each in self.contexts()}
        counts: dict[str, int] = {}
        with self._lock, self._reporting():
            for text in texts:
                digest = hashlib.sha256(text_bytes(text)).digest()
                rows = self._connection.execute("SELECT DISTINCT context FROM answers WHERE text = ?", (digest,))
                found = sorted((others[row[0]] for row in rows if row[0] in others), key=len)
                if found and found[0]:
                    reason = " and ".join(found[0])
                    counts[reason] = counts.get(reason, 0) + 1
        return counts

    # Claims

    def claim(self, key: bytes) -> bool:
        """Claim the right to ask for an answer; False while something else asks for it.

        A claim ends with :meth:`release`, with :meth:`close`, and with the process, however that ends.
        """
        instance(key, "key", bytes)
        with self._reporting():
            self._check_open()
            return self._claims.take(key)

    def release(self, key: bytes) -> None:
        """Give a claim up."""
        instance(key, "key", bytes)
        with self._reporting():
            self._claims.release(key)

    # Reading all of it

    def contexts(self) -> list[StoredContext]:
        """Return what there are answers of, in the order in which it was first asked for."""
        query = (
            "SELECT c.id, c.digest, count(a.key), provider, model_id, parameters, template, labels, kind FROM contexts c "
            "LEFT JOIN answers a ON a.context = c.id GROUP BY c.id ORDER BY c.id"
        )
        with self._lock, self._reporting():
            return [_context(*row) for row in self._connection.execute(query).fetchall()]

    def export(self, number: int | None = None) -> Iterator[LabeledText]:
        """Yield a context's labelled texts as rows of a dataset, the votes of a text averaged.

        Args:
            number: which context, as :meth:`contexts` numbers them; may be left out where there is one.

        Raises:
            InvalidInputError: there is no such context, or several and none is named.
            LabelStoreError: the file is damaged.
        """
        held = {each.number: each.context for each in self.contexts()}
        if number is None:
            if len(held) > 1:
                raise InvalidInputError(
                    f"{self.path} has answers of {len(held)} contexts: pass the number of one of contexts()"
                )
            number = next(iter(held), None)
        elif type(number) is not int or number not in held:
            raise InvalidInputError(f"{self.path} has no context {shown(number)}; contexts() lists them")
        if number is None:
            return iter(())
        return self._rows(number, held[number])

    def _rows(self, number: int, context: LabelContext) -> Iterator[LabeledText]:
        query = (
            "SELECT key, text, vote, probabilities, answered_at FROM answers WHERE context = ? "
            "ORDER BY answered_at, text, vote"
        )
        votes: dict[bytes, list[tuple[bytes, int, str, float]]] = {}
        with self._lock, self._reporting():
            for key, digest, *rest in self._connection.execute(query, (number,)):
                votes.setdefault(digest, []).append((key, *rest))
        for digest, answers in votes.items():
            with self._lock, self._reporting():
                found = self._connection.execute(
                    "SELECT digest, text FROM texts WHERE digest = ?", (digest,)
                ).fetchone()
                text = _text(*(found or (digest, None)))
                for key, vote, _, _ in answers:
                    _check_key(context, key, text, vote)
                columns = zip(*(_numbers(given, len(context.labels)) for _, _, given, _ in answers), strict=True)
                means = [sum(column) / len(answers) for column in columns]
                metadata = row_metadata(context, max(means), max(_moment(each[3]) for each in answers))
                row = LabeledText(text, dict(zip(context.labels, means, strict=True)), metadata)
            yield row

    def __len__(self) -> int:
        with self._lock, self._reporting():
            return int(self._connection.execute("SELECT count(*) FROM answers").fetchone()[0])

    # Opening and closing

    def close(self) -> None:
        """Close the file and give up all claims. Closing twice is harmless."""
        with self._lock:
            if self._open and os.getpid() == self._process:
                self._open = False
                self._claims.close()
                self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LabelStore {self.path}>"

    def _check_open(self) -> None:
        if not self._open:
            raise LabelStoreError(f"{self.path}: the store was closed: open it again")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn errors of SQLite and of the system into those of this package."""
        if os.getpid() != self._process:
            raise LabelStoreError(f"{self.path}: the store was opened by another process: open it again after a fork")
        try:
            yield
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise
            raise LabelStoreError(f"{self.path}: the store was closed: open it again") from None
        except sqlite3.Error as error:
            raise LabelStoreError(f"{self.path}: {error}: {_remedy(error)}") from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise LabelStoreError(f"{self.path} is damaged: {error}: restore it from a copy") from error
        except OSError as error:
            if isinstance(error, LabelStoreError):
                raise
            raise LabelStoreError(f"{self.path}: cannot be opened: {error.strerror or error}") from error


def row_metadata(context: LabelContext, confidence: float, answered_at: float | None) -> Mapping[str, object]:
    """Return where a label comes from, as a row of a dataset tells it."""
    metadata: dict[str, object] = {
        "teacher_model": f"{context.provider}:{context.model_id}",
        "teacher_confidence": round(confidence, 6),
    }
    if answered_at is not None:
        metadata["labeled_at"] = datetime.datetime.fromtimestamp(answered_at, datetime.UTC).isoformat(
            timespec="seconds"
        )
    return metadata


def _remedy(error: sqlite3.Error) -> str:
    words = str(error)
    if "locked" in words or "busy" in words:
        return "another process has held it for too long: wait for it, or raise timeout"
    if "full" in words:
        return "make room on the disk"
    if "readonly" in words or "unable to open" in words:
        return "make the file and its folder writable"
    return "restore it from a copy, or name a new file"


def _numbers(raw: object, count: int) -> tuple[float, ...]:
    values = json.loads(raw) if isinstance(raw, str) else None
    if isinstance(values, list) and len(values) == count:
        numbers = tuple(float(value) for value in values if isinstance(value, (int, float)) and 0 <= value <= 1)
        if len(numbers) == count:
            return numbers
    raise ValueError(f"the probabilities of {count} labels are {shown(raw)}")


def _text(digest: object, raw: object) -> str:
    if not isinstance(raw, bytes) or hashlib.sha256(raw).digest() != digest:
        raise ValueError("a text is not the one that was stored")
    return raw.decode("utf-8", "surrogatepass")


def _check_key(context: LabelContext, key: object, text: str, vote: object) -> None:
    if type(vote) is not int or not 0 <= vote <= MOST_VOTE or context.key(text, vote) != key:
        raise ValueError(f"the answer to {shown(text)} has the key of another one")


def _count(value: object) -> int:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"a number of tokens or characters is {shown(value)}")
    return value  # type: ignore[return-value]


def _moment(value: object) -> float:
    if not isinstance(value, float) or not 0 <= value <= LAST_MOMENT:
        raise ValueError(f"the time of an answer is {shown(value)}")
    return value


def _context(number: int, digest: object, answers: int, *fields: object) -> StoredContext:
    if not all(isinstance(field, str) for field in fields):
        raise ValueError(f"context {number} holds something else than texts")
    provider, model, parameters, template, labels, kind = map(str, fields)
    found = LabelContext(provider, model, parameters, template, tuple(json.loads(labels)), kind)
    if found.digest != digest:
        raise ValueError(f"context {number} is not the one that was stored")
    return StoredContext(number, found, answers)
