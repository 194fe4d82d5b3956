"""Where adapters may be written."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_inference.errors import InvalidInputError

__all__ = ["check_new_directory"]


def check_new_directory(path: Path, known_by: str, *, overwrite: bool, sources: tuple[Path, ...] = ()) -> None:
    """Raise InvalidInputError if ``path`` is a source, may not be replaced, or has no folder.

    Args:
        path: the directory to be made.
        known_by: a file that a directory must hold to be replaced.
        overwrite: whether one may be.
        sources: what is read.
    """
    if os.path.lexists(path):
        if any(os.path.exists(source) and os.path.exists(path) and path.samefile(source) for source in sources):
            raise InvalidInputError(f"{path}: is a source itself: write to another directory")
        if not overwrite:
            raise InvalidInputError(f"{path}: exists: write to another directory, or allow it to be replaced")
        if not os.path.isfile(path / known_by):
            raise InvalidInputError(f"{path}: holds no {known_by}, and is not replaced")
    if not os.path.isdir(path.parent):
        raise InvalidInputError(f"{path}: the folder {path.parent} does not exist")
