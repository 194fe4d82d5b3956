"""NumPy files in and out, progress, and the parts that all commands share."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.atomic_file import as_path, check_writable, write_atomically
from lattice_transport.errors import InvalidInputError, OutOfMemoryError

__all__ = ["Progress", "check_output", "print_json", "read_vectors", "set_threads", "suggests", "write_npy"]

_Command = Callable[[argparse.Namespace], int]


def read_vectors(name: str) -> npt.NDArray[Any]:
    """Return the matrix of a .npy file, memory-mapped.

    So its header cannot make us allocate more than the file holds.

    Raises:
        OSError: it cannot be read.
        InvalidInputError: it is no .npy file of a matrix of real numbers.
    """
    with open(as_path(name), "rb") as file:
        start = file.read(64)
    if not start.startswith(b"\x93NUMPY"):
        raise InvalidInputError(f"{name} is not a NumPy file of vectors: {_what_it_is(start)}")
    try:
        array: npt.NDArray[Any] = np.load(name, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged header fails in many ways
        reason = str(error)
        if "allow_pickle" in reason or "Object arrays" in reason:
            reason = "it holds Python objects; save an array of numbers with np.save"
        elif "mmap" in reason:
            reason = "its header claims other data than the file has"
        raise InvalidInputError(f"{name} is not a NumPy file of vectors: {reason.splitlines()[0][:200]}") from None
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} holds {array.dtype} of shape {array.shape}; vectors are a matrix, one a row")
    return array


def _what_it_is(start: bytes) -> str:
    """What the first bytes of a file that is no .npy file say, and what to do."""
    if not start:
        return "it is empty"
    if start.startswith(b"PK"):
        return "it is an archive of arrays, such as .npz; save one array with np.save"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; fetch the file itself with git lfs pull"
    if start.startswith((b"\x80", b"\x1f\x8b")):
        return "it is a pickle or compressed; save the array with np.save"
    text = all(byte in b"\t\n\r" or byte >= 32 for byte in start)
    if text:
        return "it is text, such as CSV; convert it with np.save(name, np.loadtxt(file, delimiter=','))"
    return f"it begins with {start[:8]!r}; save the array with np.save"


def check_output(option: str, name: str, suffixes: Sequence[str] = (".npy",)) -> Path:
    """Return the path of a file to be written, before any work is done for it.

    Raises:
        InvalidInputError: another suffix, or no such folder.
        OSError: nothing can be written there.
    """
    path = Path(as_path(name))
    if path.suffix not in suffixes:
        raise InvalidInputError(f"{option} {name}: the file is written as {' or '.join(suffixes)} only")
    if not path.parent.is_dir():
        raise InvalidInputError(f"{option} {name}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise InvalidInputError(f"{option} {name}: this is a folder")
    check_writable(path)
    return path


def write_npy(path: Path, array: npt.NDArray[Any]) -> None:
    """Write ``array``: the file is whole or not there, and a file that is there is replaced."""
    write_atomically(path, lambda file: np.save(file, array, allow_pickle=False))


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


def suggests(alternative: str) -> Callable[[_Command], _Command]:
    """Return what adds ``alternative`` to the message of a command that runs out of memory."""

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(options: argparse.Namespace) -> int:
            try:
                return command(options)
            except MemoryError as error:
                known = isinstance(error, OutOfMemoryError)
                cause = str(error) if known else "out of memory; give fewer vectors"
                raise MemoryError(f"{cause}, or {alternative}") from None

        return run

    return decorate


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
