"""Rows of JSONL, CSV and TSV files, read one at a time, with the text that one column holds."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lattice_embed.errors import InvalidInputError, LatticeEmbedError
from lattice_inference.cli.text_input import read_lines

__all__ = ["TABLE_FORMS", "Row", "read_column", "read_rows", "table_form"]

TABLE_FORMS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}
"""Suffixes of files that hold rows, and the form of each."""

MOST_BYTES = 1 << 26
"""Bytes of a line, and of a cell."""

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        line: the line of the file that the row ends on, from 1.
        fields: all that the row holds.
        text: what the column of texts holds; empty for a null.
    """

    line: int
    fields: dict[str, Any]
    text: str

    @property
    def is_empty(self) -> bool:
        """Whether the text is nothing but white space."""
        return not self.text.strip()


def table_form(source: str) -> str | None:
    """Return the form of a file by its suffix, or None for one that holds a text a line."""
    return TABLE_FORMS.get(Path(source).suffix.lower())


def read_rows(source: str, column: str, form: str, *, whole: bool = False) -> Iterator[Row]:
    """Yield the rows of a file, or of standard input for ``-``; one row is in memory at a time.

    Args:
        source: the file.
        column: the name of the column that holds the texts.
        form: ``"jsonl"``, ``"csv"`` or ``"tsv"``.
        whole: refuse two columns of one name, of which ``fields`` would hold one.

    Raises:
        InvalidInputError: it is malformed, no UTF-8, or has no such column; the message names the line.
        LatticeEmbedError: it cannot be read.
    """
    with ExitStack() as stack:
        stack.enter_context(_reporting(source))
        if source != STANDARD_INPUT:
            file: BinaryIO = stack.enter_context(open(source, "rb"))
        elif sys.stdin is None:
            raise InvalidInputError("standard input is closed: give --input FILE")
        else:
            file = sys.stdin.buffer
        name = "standard input" if source == STANDARD_INPUT else source
        rows = _json_rows(name, file, column) if form == "jsonl" else _cell_rows(name, file, column, form, whole)
        first = next(rows, None)
        if first is None:
            raise InvalidInputError(f"{name} holds no rows")
        yield first
        yield from rows


def read_column(source: str, column: str | None) -> list[str]:
    """Return the texts of a file: its lines, or one column of a table.

    Raises:
        InvalidInputError: a table without ``column``, a ``column`` of lines, or what the file holds is malformed.
        LatticeEmbedError, OSError: it cannot be read.
    """
    form = table_form(source)
    if form is None and column is None:
        return read_lines(source)
    if form is None:
        raise InvalidInputError(f"--column is for rows of a table: {source} holds a text a line")
    if column is None:
        raise InvalidInputError(f"{source} holds rows: name the column of the texts by --column NAME")
    return [row.text for row in read_rows(source, column, form)]


@contextmanager
def _reporting(source: str) -> Iterator[None]:
    """Name the file in the system's errors, also where they come up while an output is open."""
    try:
        yield
    except OSError as error:
        raise LatticeEmbedError(f"{source}: cannot be read: {error.strerror or error}") from error


def _lines(name: str, file: BinaryIO) -> Iterator[str]:
    """Yield decoded lines with their ends."""
    number = 0
    while raw := file.readline(MOST_BYTES + 1):
        number += 1
        if len(raw) > MOST_BYTES:
            raise InvalidInputError(f"{name}, line {number}: longer than {MOST_BYTES >> 20} MiB")
        if number == 1:
            if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise InvalidInputError(f"{name} is UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
            raw = raw.removeprefix(b"\xef\xbb\xbf")  # the byte order mark that some editors put first
        try:
            yield raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"{name}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x}): convert it"
            ) from None


def _json_rows(name: str, file: BinaryIO, column: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(name, file), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"{where}: no JSON object ({error})") from None
        if not isinstance(fields, dict):
            raise InvalidInputError(f"{where}: a JSON {type(fields).__name__}; each line must be an object")
        text = fields[column] if column in fields else _missing(where, column, list(fields))
        if not isinstance(text, str | None):
            raise InvalidInputError(f"{where}: {column!r} is a {type(text).__name__}; it must be a string or null")
        yield Row(number, fields, text or "")


def _cell_rows(name: str, file: BinaryIO, column: str, form: str, whole: bool) -> Iterator[Row]:
    csv.field_size_limit(MOST_BYTES)
    reader = csv.reader(_lines(name, file), delimiter="\t" if form == "tsv" else ",", strict=True)
    rows = _checked_rows(name, reader)
    header = next(rows, None)
    if header is None:
        raise InvalidInputError(f"{name} is empty: its first line must name the columns")
    for kept in header if whole else [column]:
        if header.count(kept) > 1:
            raise InvalidInputError(f"{name}: {header.count(kept)} columns are called {kept!r}; rename one")
    if column not in header:
        _missing(name, column, header)
    index = header.index(column)
    for cells in rows:
        if len(cells) != len(header):
            raise InvalidInputError(
                f"{name}, line {reader.line_num}: {len(cells)} cells, and the header has {len(header)}"
            )
        yield Row(reader.line_num, dict(zip(header, cells, strict=True)), cells[index])


def _checked_rows(name: str, reader: Any) -> Iterator[list[str]]:
    """Yield the rows that hold cells, with errors that name the line."""
    next_row: Callable[[], list[str]] = reader.__next__
    while True:
        try:
            cells = next_row()
        except StopIteration:
            return
        except csv.Error as error:
            raise InvalidInputError(f"{name}, line {reader.line_num}: {error}") from None
        if cells:
            yield cells


def _missing(where: str, column: str, columns: list[str]) -> str:
    listed = ", ".join(map(repr, columns[:12])) + (", ..." if len(columns) > 12 else "")
    raise InvalidInputError(f"{where}: no column {column!r}; there are {listed or 'none'}")
