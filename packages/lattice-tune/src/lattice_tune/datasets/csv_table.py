"""CSV and TSV: a header, then one example a row."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lattice_tune.datasets.config import DatasetConfig
from lattice_tune.datasets.lines import numbered_lines
from lattice_tune.datasets.rows import Row, RowError
from lattice_tune.errors import DatasetError, shown

__all__ = ["csv_rows"]


def csv_rows(path: Path, config: DatasetConfig) -> Iterator[Row]:
    """Yield the rows of a file whose first row names its columns; ``.tsv`` is separated by tabs.

    An empty field counts as not given, except the text. Probabilities and vectors are JSON in their columns.

    Raises:
        DatasetError: the file cannot be read, or its header is none.
    """
    if csv.field_size_limit() < config.max_line_bytes:  # the process's limit, 131,072 at first, is only ever raised
        csv.field_size_limit(config.max_line_bytes)
    lines = _Lines(path, config.max_line_bytes)
    reader = csv.reader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    header: list[str] | None = None
    while True:
        first = lines.number + 1
        try:
            fields = next(reader, None)
        except RowError as error:
            if header is None:
                raise DatasetError(f"{path}:{lines.number}: {error}") from None
            yield Row(lines.number, error)
            continue
        except csv.Error as error:
            if header is None:
                raise DatasetError(f"{path}:{lines.number}: the header is no CSV: {error}") from None
            hint = f"; is a quote of line {first} not closed?" if first < lines.number else ""
            yield Row(lines.number, RowError(f"no CSV: {error}{hint}"))
            continue
        if fields is None:
            break
        if header is None:
            header = _header(path, lines.number, fields, config)
        elif not fields:
            continue
        elif len(fields) != len(header):
            yield Row(lines.number, RowError(f"it has {len(fields)} fields, the header {len(header)}"))
        else:
            yield Row(lines.number, _fields(dict(zip(header, fields, strict=True)), config))
    if header is None:
        raise DatasetError(f"{path}: the file is empty; a header is needed")


class _Lines:
    """The lines for the CSV reader, which sees a line that is none as an error of its row."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._lines = numbered_lines(path, max_bytes)
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        if isinstance(line, RowError):
            raise line
        return line


def _header(path: Path, number: int, fields: list[str], config: DatasetConfig) -> list[str]:
    names = [name.strip() for name in fields]
    if len(set(names)) < len(names):
        raise DatasetError(f"{path}:{number}: the header names a column twice: {shown(names)}")
    if config.text_field not in names and config.vector_field not in names:
        raise DatasetError(
            f"{path}:{number}: the header has no column {shown(config.text_field)}, the text_field; "
            f"its columns are {shown(names)}"
        )
    return names


def _fields(fields: dict[str, Any], config: DatasetConfig) -> dict[str, Any] | RowError:
    kept = {name: value for name, value in fields.items() if value != "" or name == config.text_field}
    for name in (config.labels_field, config.vector_field, config.weight_field):
        if name in kept:
            try:
                kept[name] = json.loads(kept[name])
            except (ValueError, RecursionError):
                return RowError(f"the field {shown(name)} is {shown(kept[name])}, no JSON")
    return kept
