"""A JSONL file that grows with a training: a line an update, and a line a round."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.errors import WriteError
from lattice_tune.errors import TrainingError

__all__ = ["MetricsFile"]


class MetricsFile:
    """Appends lines, each of them whole. A context manager.

    Args:
        path: the file.
        step: updates done before: later lines of a file that is there are removed, as they will come again.

    Raises:
        TrainingError: the file cannot be read or written.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        kept = _lines_until(path, step)
        try:
            with atomic_file(path) as file:
                file.write(kept)
            self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 -- closed with this object
        except (OSError, WriteError) as error:
            raise TrainingError(f"{path}: the metrics cannot be written: {error}") from error
        self._size = len(kept)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
            TrainingError: it cannot be written; no part of it stays.
        """
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError("the disk took only a part of a line: is it full?")
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, self._size)
            raise TrainingError(f"{self.path}: the metrics cannot be written: {error.strerror or error}") from error
        self._size += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lines_until(path: Path, step: int) -> bytes:
    """Return the whole lines of updates up to ``step``."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise TrainingError(f"{path}: {error.strerror or error}") from error
    kept = []
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line)
            if not line.endswith(b"\n") or not row["step"] <= step:
                continue
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        kept.append(line)
    return b"".join(kept)
