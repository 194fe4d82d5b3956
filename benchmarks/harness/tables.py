"""Markdown tables, and the generated sections of a document."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["markdown_table", "provenance", "replace_section"]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column is aligned left, the others right.

    Raises:
        ValueError: a row has another number of cells than the header.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"the row {list(row)} has {len(row)} cells, the header has {len(header)}")
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def provenance(record: Mapping[str, Any]) -> str:
    """Return a table of a record's machine, versions, commit and date, and its command."""
    machine = record["machine"]
    header = ["machine", "load at the start", "versions", "commit", "date"]
    row = [
        f"{machine['cpu']}, {machine['usable_cpus']} CPUs, {machine['system']}",
        f"{machine['load_average'][0]}",
        ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        record["commit"] or "unknown",
        record["date"],
    ]
    command = "\n".join(line.strip() for line in record["command"].splitlines())
    return f"{markdown_table(header, [row])}\n\n```\n{command}\n```"


def replace_section(document: Path, name: str, text: str) -> None:
    """Put ``text`` between a document's two comment lines, atomically.

    The lines are ``<!-- begin: name -->`` and ``<!-- end: name -->``.

    Raises:
        ValueError: the document does not have exactly one such pair.
    """
    begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"
    whole = document.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1 or whole.index(begin) > whole.index(end):
        raise ValueError(f"{document} must have one line {begin.strip()!r} and after it one line {end.strip()!r}")
    before, rest = whole.split(begin)
    after = rest.split(end)[1]
    partial = document.with_name(f".{document.name}.{os.getpid()}.partial")
    try:
        partial.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{after}", encoding="utf-8")
        os.replace(partial, document)
    finally:
        partial.unlink(missing_ok=True)
