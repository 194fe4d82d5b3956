"""Writes an array to a .npy file that is either whole or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_embed.errors import InvalidInputError
from lattice_embed.output_files import check_output, write_computed

__all__ = ["check_vector_path", "write_npy"]

VECTOR_SUFFIXES = (".npy", ".jsonl", ".parquet")


def check_vector_path(name: str) -> Path:
    """Return the path of a file of vectors to be written, before any work is done for it.

    Raises:
        InvalidInputError: another suffix, or no such folder.
        OSError: the folder cannot be written to.
    """
    path = Path(name)
    if path.suffix not in VECTOR_SUFFIXES:
        raise InvalidInputError(f"--output {name}: vectors are written as {', '.join(VECTOR_SUFFIXES)} files only")
    check_output(path, f"--output {name}")
    return path


def write_npy(path: Path, array: npt.NDArray[np.float32]) -> None:
    """Write ``array`` beside ``path``, force it to the disk, and move it into place.

    Raises:
        OSError: it cannot be written. The array then lies in the temporary folder, unless that cannot be written either.
    """
    write_computed(path, lambda file: np.save(file, array, allow_pickle=False), "the vectors")
