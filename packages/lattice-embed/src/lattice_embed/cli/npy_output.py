"""Writes an array to a .npy file that is either whole or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_embed.errors import InvalidInputError
from lattice_inference.checkpoint.atomic_file import atomic_file

__all__ = ["check_npy_path", "write_npy"]


def check_npy_path(name: str) -> Path:
    """Return the path of a .npy file to be written, before any work is done for it.

    Raises:
        InvalidInputError: another suffix, or no such folder.
    """
    path = Path(name)
    if path.suffix != ".npy":
        raise InvalidInputError(f"--output {name}: vectors are written as .npy files only")
    if not path.parent.is_dir():
        raise InvalidInputError(f"--output {name}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise InvalidInputError(f"--output {name}: this is a folder")
    return path


def write_npy(path: Path, array: npt.NDArray[np.float32]) -> None:
    """Write ``array`` beside ``path``, force it to the disk, and move it into place.

    Raises:
        OSError: it cannot be written. Nothing is left behind.
    """
    with atomic_file(path) as file:
        np.save(file, array, allow_pickle=False)
