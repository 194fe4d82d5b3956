"""Rows to train on: objects of JSONL files, or mappings in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lattice_tune.arguments import path_of
from lattice_tune.datasets.jsonl import jsonl_rows
from lattice_tune.datasets.rows import RowError
from lattice_tune.errors import DatasetError, InvalidInputError, shown

__all__ = ["PlacedRow", "RowSource", "number_of", "rows_of", "text_in"]

RowSource = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""A JSONL file, or rows in memory."""

_MOST_LINE_BYTES = 16 << 20


class PlacedRow(NamedTuple):
    """A row, and where it stands: ``train.jsonl:7`` or ``row 7``."""

    place: str
    fields: Mapping[str, Any]


def rows_of(source: RowSource, name: str = "examples") -> Iterator[PlacedRow]:
    """Yield the rows of a JSONL file, or of an iterable of mappings.

    Raises:
        DatasetError: the file cannot be read, or a line is no object; the message names the line.
        InvalidInputError: ``source`` is neither a path nor mappings.
    """
    if isinstance(source, (str, os.PathLike)):
        path = path_of(source, name)
        for row in jsonl_rows(path, _MOST_LINE_BYTES):
            if isinstance(row.fields, RowError):
                raise DatasetError(f"{path}:{row.place}: {row.fields}")
            yield PlacedRow(f"{path}:{row.place}", row.fields)
        return
    if isinstance(source, (bytes, Mapping)) or not isinstance(source, Iterable):
        raise InvalidInputError(f"{name} is {shown(source)}; give a JSONL file, or rows such as {{'text': ...}}")
    if isinstance(source, np.ndarray) and not source.ndim:
        raise InvalidInputError(f"{name} is an array without dimensions; give a JSONL file, or rows")
    for number, fields in enumerate(source, 1):
        if not isinstance(fields, Mapping):
            raise InvalidInputError(f"row {number} of {name} is {shown(fields)}; a mapping is needed")
        yield PlacedRow(f"row {number}", fields)


def text_in(row: PlacedRow, name: str) -> str:
    """Return a field that is a text.

    Raises:
        DatasetError: it is missing or something else.
    """
    value = row.fields.get(name)
    if not isinstance(value, str):
        what = "has no" if name not in row.fields else f"has {shown(value)} as its"
        raise DatasetError(f"{row.place}: the example {what} {name!r}, which must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DatasetError(f"{row.place}: {name!r} holds half a surrogate pair: decode it again") from None
    return value


def number_of(row: PlacedRow, name: str, *, least: float, most: float) -> float:
    """Return a field that is a number from ``least`` to ``most``.

    Raises:
        DatasetError: it is missing or something else.
    """
    value = row.fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise DatasetError(f"{row.place}: {name!r} is {shown(value)}; a number from {least:g} to {most:g} is needed")
    return float(value)
