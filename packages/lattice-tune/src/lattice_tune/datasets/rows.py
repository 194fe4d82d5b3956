"""From rows of a file to examples, for every format.

Errors name the file and the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice_tune.datasets.config import DatasetConfig
from lattice_tune.datasets.example import TrainingExample
from lattice_tune.errors import DatasetError, InvalidInputError, shown

__all__ = ["MOST_LISTED", "Row", "RowError", "SkippedRows", "examples_of_rows"]

MOST_LISTED = 100


class RowError(Exception):
    """What is wrong with a row; never leaves this folder."""


@dataclass(frozen=True)
class Row:
    """A row of a file: its place, and its fields or its error.

    The place is for example a line's number.
    """

    place: int
    fields: Mapping[str, Any] | RowError


@dataclass
class SkippedRows:
    """Rows left out because something is wrong with them.

    Attributes:
        count: how many.
        errors: what was wrong with the first hundred, with file and line.
    """

    count: int = 0
    errors: list[str] = field(default_factory=list)

    def note(self, error: str) -> None:
        """Count one, and keep its message if it is among the first."""
        self.count += 1
        if len(self.errors) < MOST_LISTED:
            self.errors.append(error)


def examples_of_rows(
    path: Path, rows: Iterator[Row], config: DatasetConfig, skipped: SkippedRows, *, unit: str = "line"
) -> Iterator[TrainingExample]:
    """Yield the examples of a file's rows; a bad row is an error or is noted in ``skipped``.

    Raises:
        DatasetError: a row is no example, and ``config.on_error`` is ``"raise"``; its message has the file and the line.
    """
    dimension = 0
    for row in rows:
        try:
            if isinstance(row.fields, RowError):
                raise row.fields
            example = _example(row.fields, config)
            if example.vector is not None:
                dimension = dimension or example.vector.size
                if example.vector.size != dimension:
                    raise RowError(f"the vector has {example.vector.size} numbers, those before it {dimension}")
        except (RowError, InvalidInputError) as error:
            where = f"{path}:{row.place}" if unit == "line" else f"{path}, {unit} {row.place}"
            message = f"{where}: {error}"
            if config.on_error == "raise":
                raise DatasetError(message) from None
            skipped.note(message)
            continue
        yield example


def _example(fields: Mapping[str, Any], config: DatasetConfig) -> TrainingExample:
    given = dict(fields)
    text, label = given.pop(config.text_field, None), given.pop(config.label_field, None)
    labels, vector = given.pop(config.labels_field, None), given.pop(config.vector_field, None)
    weight = given.pop(config.weight_field, 1.0)
    if isinstance(label, int) and not isinstance(label, bool):
        label = str(label)
    if text is None and vector is None:
        raise RowError(
            f"it has neither {shown(config.text_field)} nor {shown(config.vector_field)}; "
            f"its fields are {', '.join(map(shown, list(fields)[:10])) or 'none'}"
        )
    metadata = given.pop("metadata", {})
    if not isinstance(metadata, Mapping):
        raise RowError(f"metadata is {shown(metadata)}; it must be an object")
    return TrainingExample(
        text=text,
        vector=vector,
        label=label,
        labels=labels,
        weight=1.0 if weight is None else weight,
        metadata={**given, **metadata},
    )
