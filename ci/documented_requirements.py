"""Requirements allowed by the table in docs/architecture.md, as sets of names per package."""

from __future__ import annotations

import re
from pathlib import Path

from distributions import normalized

__all__ = ["documented_requirements", "requirement"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
NAME = re.compile(r"`?([A-Za-z0-9][\w.-]*(?:\[[a-z-]+\])?)`?")


def requirement(line: str, *, extra: bool | None = None) -> str:
    """Return a requirement without its version.

    ``numpy>=2; extra == "x"`` -> ``extra:numpy``; ``a [b]`` -> ``a[b]``.

    Args:
        line: as metadata and ``pyproject.toml`` state it.
        extra: whether only an extra brings it; by default the line's marker says so.
    """
    head, _, marker = line.partition(";")
    match = re.match(r"\s*([\w.-]+)\s*(\[[^]]*\])?", head)
    assert match is not None, line
    only_extra = "extra" in marker if extra is None else extra
    return ("extra:" if only_extra else "") + normalized(match[1]) + (match[2] or "").replace(" ", "")


def documented_requirements() -> dict[str, set[str]]:
    """Return each package's requirements by folder; ``extra:`` marks those of extras."""
    table: dict[str, set[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        row = re.match(r"\| `(lattice-\w+)` \|[^|]*\|[^|]*\|([^|]*)\|", line)
        if row is None:
            continue
        plain, *extras = re.split(r"; (?=`\[)", re.sub(r"\([^)]*\)", "", row[2]).strip())
        names = {requirement(match[1], extra=False) for match in NAME.finditer(plain)}
        for text in extras:
            names |= {requirement(match[1], extra=True) for match in NAME.finditer(text.split(":", 1)[1])}
        table[row[1]] = names
    return table
