"""Columns of texts as inputs: one input for each value.

An input is 1 where the cell is that value and 0 elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lattice_fann.errors import FormatError, InvalidInputError
from lattice_fann.formats.npz import listed_names

__all__ = ["MOST_VALUES", "METADATA_KEY", "expand", "input_count", "stored_values", "values_of"]

MOST_VALUES = 100
"""Different texts that a column may hold. A column of names or sentences has more, and is no category."""

METADATA_KEY = "text_columns"
"""Where a network keeps the values of its text columns: a JSON object of lists."""

Values = Mapping[str, list[str]]


def values_of(name: str, column: str, cells: Sequence[str]) -> list[str]:
    """Return the different texts of a column, sorted.

    Raises:
        InvalidInputError: there are more than :data:`MOST_VALUES`.
    """
    values = sorted({cell.strip() for cell in cells})
    if len(values) > MOST_VALUES:
        raise InvalidInputError(
            f"{name}: {column!r:.80} holds {len(values):,} different texts; each becomes an input, and {MOST_VALUES} are "
            "the most: leave the column out with --drop"
        )
    return values


def input_count(columns: Sequence[str], values: Values) -> int:
    """Return how many inputs the columns are."""
    return sum(len(values[column]) if column in values else 1 for column in columns)


def expand(
    name: str, columns: Sequence[str], numbers: npt.NDArray[np.float32], texts: Mapping[str, list[str]], values: Values
) -> npt.NDArray[np.float32]:
    """Return the inputs (rows, :func:`input_count`).

    Args:
        name: the file, for messages.
        columns: all columns in their order.
        numbers: those that hold numbers, (rows, columns without texts), in their order.
        texts: the cells of the others.
        values: the values of the others.

    Raises:
        InvalidInputError: a cell holds none of the values.
    """
    parts, place = [], 0
    for column in columns:
        if column not in values:
            parts.append(numbers[:, place : place + 1])
            place += 1
            continue
        positions = {value: position for position, value in enumerate(values[column])}
        hot = np.zeros((len(texts[column]), len(positions)), np.float32)
        for row, cell in enumerate(texts[column]):
            position = positions.get(cell.strip())
            if position is None:
                raise InvalidInputError(
                    f"{name}, line {row + 2}: {column!r:.80} is {cell!r:.80}, which the network does not know; it knows "
                    f"{listed_names(values[column])}"
                )
            hot[row, position] = 1
        parts.append(hot)
    return np.concatenate(parts, axis=1)


def stored_values(metadata: Mapping[str, str], columns: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the values of text columns that a network's metadata state; empty if it has none.

    Raises:
        FormatError: they are malformed.
    """
    if METADATA_KEY not in metadata:
        return {}
    try:
        values = json.loads(metadata[METADATA_KEY])
    except (ValueError, RecursionError):
        values = None
    if not (
        isinstance(values, dict)
        and columns is not None
        and set(values) <= set(columns)
        and all(
            isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
            for texts in values.values()
        )
    ):
        raise FormatError(f"the network's metadata {METADATA_KEY!r} must be lists of texts by the names of columns")
    return values
