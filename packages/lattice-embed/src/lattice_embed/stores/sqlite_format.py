"""The tables of an SQLite store, and the upgrade from version 1, whose rows had no digests."""

from __future__ import annotations

import json
from collections.abc import Iterator

import blake3

from lattice_embed.errors import InvalidInputError, StoreCorruptError
from lattice_embed.stores.space import VectorSpace
from lattice_embed.stores.sqlite_database import DatabaseFormat, Rows, SqliteDatabase
from lattice_embed.stores.stored_row import DELETED, SEALED_COLUMNS, Row, document_of, seal_of

__all__ = ["FORMAT", "pages_of", "read_space", "space_row"]

APPLICATION_ID = 0x4C565331  # "LVS1"
VERSION = 2
PAGE = 256
"""Rows that are read at once."""

NO_SEAL = b""
"""The digest that a row gets whose damage can be seen when it is upgraded: no row has it."""

# A deleted document keeps its row, without text, so that other processes learn of it by its sequence number.
SCHEMA = (
    "CREATE TABLE space (fields TEXT NOT NULL, digest BLOB NOT NULL)",
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
        vectors BLOB NOT NULL,
        seal BLOB NOT NULL
    )""",
    "CREATE INDEX documents_by_sequence ON documents (sequence)",
)


def space_row(fields: str) -> tuple[str, bytes]:
    """Return the row that keeps the description of a space.

    It holds the JSON, and 128 bits of BLAKE3 over that.
    """
    return fields, blake3.blake3(fields.encode("utf-8", "surrogatepass")).digest(16)


def read_space(database: SqliteDatabase) -> VectorSpace:
    """Return the space that a store's vectors are of.

    Raises:
        StoreCorruptError: the store does not say, or what it says is not what was written.
    """
    rows = database.read("SELECT fields, digest FROM space")
    try:
        if len(rows) != 1 or not isinstance(rows[0][0], str):
            raise ValueError("there is no description")
        space = _space_of(rows[0][0])
        if rows[0] != space_row(rows[0][0]):
            raise ValueError("the description is not what was written")
        return space
    except (ValueError, RecursionError) as error:
        raise StoreCorruptError(f"{database.path} does not say what its vectors are: {error}") from error


def _space_of(fields: str) -> VectorSpace:
    return VectorSpace.from_fields(json.loads(fields))


def pages_of(database: SqliteDatabase, columns: str, table: str) -> Iterator[Rows]:
    """Yield all rows of a table in pages: the row's number, and ``columns``.

    Pages go by SQLite's row numbers, never by a stored value.
    """
    first = -(2**63)
    while page := database.read(
        f"SELECT rowid, {columns} FROM {table} WHERE rowid >= ? ORDER BY rowid LIMIT ?", (first, PAGE)
    ):
        yield page
        if (first := page[-1][0] + 1) >= 2**63:
            return


def _upgrade_from_1(database: SqliteDatabase) -> None:
    """Write every row again with a digest.

    A row whose damage shows gets none that fits, and stays damaged.
    """
    try:
        ((fields,),) = database.read("SELECT fields FROM space")
        space = _space_of(fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreCorruptError(f"{database.path} does not say what its vectors are: {error}") from error
    database.write("DROP INDEX documents_by_sequence")
    for table in ("space", "documents"):
        database.write(f"ALTER TABLE {table} RENAME TO {table}_1")
    for statement in SCHEMA:
        database.write(statement)
    database.write("INSERT INTO space VALUES (?, ?)", space_row(fields))
    for page in pages_of(database, f"text, {SEALED_COLUMNS}", "documents_1"):
        database.write_many(
            "INSERT INTO documents SELECT *, ? FROM documents_1 WHERE rowid = ?",
            [(_seal_of_old(text, sealed, space.dimensions), row) for row, text, *sealed in page],
        )
    for table in ("space", "documents"):
        database.write(f"DROP TABLE {table}_1")


def _seal_of_old(text: object, sealed: list[object], dimensions: int) -> bytes:
    fields: Row = tuple(sealed)
    try:
        seal = seal_of(fields)
        if fields[2] != DELETED:
            document = document_of(fields, text, dimensions)  # type: ignore[arg-type]  # it looks at the text's type
            return seal if document.version.digest == fields[3] else NO_SEAL
        return seal if (text, *fields[3:]) == ("", "", "", "", 0, b"", b"") else NO_SEAL
    except (InvalidInputError, ValueError, TypeError):
        return NO_SEAL


FORMAT = DatabaseFormat("vector store", APPLICATION_ID, VERSION, SCHEMA, {1: _upgrade_from_1})
