"""Where a new checkpoint may be written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lattice_inference.errors import InvalidInputError

__all__ = ["check_destination"]


def check_destination(path: Path, sources: Iterable[Path], *, overwrite: bool) -> None:
    """Raise InvalidInputError if ``path`` is one of ``sources``, exists and may not be replaced, or has no folder."""
    if path.exists():
        if any(path.samefile(source) for source in sources):
            raise InvalidInputError(f"{path}: is the source itself: write to another file")
        if path.is_dir() or not overwrite:
            raise InvalidInputError(f"{path}: exists: write to another file, or allow it to be replaced")
    if not path.parent.is_dir():
        raise InvalidInputError(f"{path}: the folder {path.parent} does not exist")
