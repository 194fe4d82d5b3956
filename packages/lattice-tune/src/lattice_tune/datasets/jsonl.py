"""JSONL: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from lattice_tune.datasets.example import TrainingExample
from lattice_tune.datasets.lines import numbered_lines
from lattice_tune.datasets.rows import Row, RowError
from lattice_tune.errors import DatasetError

__all__ = ["json_line", "jsonl_rows"]


def jsonl_rows(path: Path, max_line_bytes: int) -> Iterator[Row]:
    """Yield the objects of a file; blank lines are left out.

    Raises:
        DatasetError: the file cannot be read.
    """
    for number, line in numbered_lines(path, max_line_bytes):
        if isinstance(line, RowError):
            yield Row(number, line)
        elif not line.isspace():
            yield Row(number, _object(line))


def _object(line: str) -> dict[str, Any] | RowError:
    try:
        found = _DECODER.decode(line)
    except RowError as error:
        return error
    except RecursionError:
        return RowError("objects lie in one another too deeply")
    except ValueError as error:  # of a number with too many digits, too
        return RowError(f"no JSON: {error}")
    if not isinstance(found, dict):
        return RowError(f"it is a {type(found).__name__} of JSON; an object in braces is needed")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise RowError(f"{name} is no number of JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RowError("an object has a field twice")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_distinct)


def json_line(example: TrainingExample) -> bytes:
    """Return an example as a line that :func:`jsonl_rows` reads.

    Raises:
        DatasetError: its metadata hold something that JSON has not.
    """
    fields: dict[str, Any] = {}
    if example.text is not None:
        fields["text"] = example.text
    if example.label is not None:
        fields["label"] = example.label
    if example.labels is not None:
        fields["labels"] = dict(example.labels)
    if example.vector is not None:
        fields["vector"] = example.vector.astype(float).tolist()
    if example.weight != 1.0:
        fields["weight"] = example.weight
    if example.metadata:
        fields["metadata"] = dict(example.metadata)
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f"the metadata of an example cannot be written as JSON: {error}") from None
