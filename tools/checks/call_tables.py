"""Reads a page's tables of calls: another library's in the first column, ours in the second.

A table counts if the second cell of its first row is "here", or "here, the same value".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["CallRow", "rows_of"]


@dataclass(frozen=True)
class CallRow:
    """A row of a table, without the backticks.

    Attributes:
        line: of the page, from 1.
        theirs: the first cell; empty where it is text.
        ours: the second; empty where it is text.
        compared: whether both must give the same value.
    """

    line: int
    theirs: str
    ours: str
    compared: bool


def rows_of(text: str) -> Iterator[CallRow]:
    """Yield the rows of the page's tables of calls."""
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            header = ""
        elif not header:
            header = cells[1]
        elif header in ("here", "here, the same value") and not set(line) <= set("|-: "):
            theirs, ours = (re.fullmatch(r"`([^`]+)`", cell) for cell in cells[:2])
            yield CallRow(number, theirs[1] if theirs else "", ours[1] if ours else "", "," in header)
