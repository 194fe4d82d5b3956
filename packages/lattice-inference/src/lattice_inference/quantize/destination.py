"""What may be written as a new checkpoint, and where."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lattice_inference.checkpoint.rounding import QUANTIZERS
from lattice_inference.errors import InvalidInputError

__all__ = ["check_destination", "check_type"]


def check_type(dtype: object) -> None:
    """Raise InvalidInputError if there is no type ``dtype`` to write."""
    if not isinstance(dtype, str) or dtype not in QUANTIZERS:
        raise InvalidInputError(f"there is no type {dtype!r:.60} to write; there are {', '.join(QUANTIZERS)}")


def check_destination(path: Path, sources: Iterable[Path], *, overwrite: bool) -> None:
    """Raise InvalidInputError if ``path`` is one of ``sources``, exists and may not be replaced, or has no folder."""
    if path.exists():
        if any(path.samefile(source) for source in sources):
            raise InvalidInputError(f"{path}: is the source itself: write to another file")
        if path.is_dir() or not overwrite:
            raise InvalidInputError(f"{path}: exists: write to another file, or allow it to be replaced")
    if not path.parent.is_dir():
        raise InvalidInputError(f"{path}: the folder {path.parent} does not exist")
