"""NumPy files in and out, progress, and the parts that all commands share."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.errors import InvalidInputError

__all__ = ["Progress", "check_output", "print_json", "read_vectors", "set_threads", "write_npy"]


def read_vectors(name: str) -> npt.NDArray[Any]:
    """Return the matrix of a .npy file, mapped so that its header cannot make us allocate what is not there.

    Raises:
        OSError: it cannot be read.
        InvalidInputError: it is no .npy file of a matrix of real numbers.
    """
    try:
        array = np.load(name, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidInputError(f"{name} is not a NumPy file of vectors: {error}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InvalidInputError(f"{name} is an archive of arrays; give a .npy file")
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} holds {array.dtype} of shape {array.shape}; vectors are a matrix, one a row")
    return array


def check_output(option: str, name: str, suffix: str = ".npy") -> Path:
    """Return the path of a file to be written, before any work is done for it.

    Raises:
        InvalidInputError: another suffix, or no such folder.
    """
    path = Path(name)
    if path.suffix != suffix:
        raise InvalidInputError(f"{option} {name}: the file is written as {suffix} only")
    if not path.parent.is_dir():
        raise InvalidInputError(f"{option} {name}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise InvalidInputError(f"{option} {name}: this is a folder")
    return path


def write_npy(path: Path, array: npt.NDArray[Any]) -> None:
    """Write ``array`` beside ``path``, force it to the disk, and move it into place: it is whole or not there."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp lets nobody else read; a plain new file follows the umask
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object. Infinities and NaN, which JSON does not have, become null."""
    print(json.dumps(_finite(value), default=str, ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def set_threads(options: argparse.Namespace) -> None:
    """Obey ``--threads``.

    Raises:
        InvalidInputError: not from 1 to 256.
    """
    if options.threads is None:
        return
    from lattice_transport import _transport

    try:
        _transport.set_num_threads(options.threads)
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f"--threads: {error}") from None


class Progress:
    """One line on standard error that is rewritten in place, and only when that is a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._shown:
            print(f"\r\033[K{self._what}: {text}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
