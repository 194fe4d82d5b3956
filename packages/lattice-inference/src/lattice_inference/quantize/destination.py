"""What may be written as a new checkpoint, and where, and what is copied into it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from lattice_inference.checkpoint.rounding import QUANTIZERS
from lattice_inference.checkpoint.safetensors import INDEX_FILE
from lattice_inference.errors import InvalidInputError
from lattice_inference.files.required_files import DOWNLOAD_PATTERNS

__all__ = ["check_destination", "check_type", "copy_model_files"]


def check_type(dtype: object) -> None:
    """Raise InvalidInputError if there is no type ``dtype`` to write."""
    if not isinstance(dtype, str) or dtype not in QUANTIZERS:
        raise InvalidInputError(f"there is no type {dtype!r:.60} to write; there are {', '.join(QUANTIZERS)}")


def check_destination(path: Path, sources: Iterable[Path], *, overwrite: bool) -> None:
    """Check that ``path`` can be written.

    Raises InvalidInputError if it is one of ``sources``, exists and may not be replaced, or has no folder.
    """
    if path.exists():
        if any(path.samefile(source) for source in sources):
            raise InvalidInputError(f"{path}: is the source itself: write to another file")
        if path.is_dir() or not overwrite:
            raise InvalidInputError(f"{path}: exists: write to another file, or allow it to be replaced")
    if not path.parent.is_dir():
        raise InvalidInputError(f"{path}: the folder {path.parent} does not exist")


def copy_model_files(source: Path, work: Path) -> None:
    """Copy a model's files besides its weights.

    Modules' weights are small and copied unchanged.
    """
    for path in sorted({path for pattern in DOWNLOAD_PATTERNS for path in source.glob(pattern)}):
        target = work / path.relative_to(source)
        if path.is_file() and path.name != INDEX_FILE:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
