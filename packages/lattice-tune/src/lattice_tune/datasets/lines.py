"""Lines of UTF-8 files, one at a time, however long a line is and whatever it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lattice_tune.datasets.rows import RowError
from lattice_tune.errors import DatasetError

__all__ = ["numbered_lines", "opened"]

_PIECE = 1 << 16
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; the system's errors become a DatasetError that names the file."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from error
    with file:
        try:
            yield file
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror or error}") from error


def numbered_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, str | RowError]]:
    """Yield each line's number, from 1, and its text with its end, or what is wrong with it.

    A line is never held in memory beyond ``max_bytes``. A byte order mark at the beginning is left out.

    Raises:
        DatasetError: the file cannot be read, or is in another encoding.
    """
    with opened(path) as file:
        number = 0
        while line := file.readline(max_bytes + 1):
            number += 1
            if number == 1:
                for mark, name in _OTHER_ENCODINGS.items():
                    if line.startswith(mark):
                        raise DatasetError(f"{path}: it is in {name}: store it in UTF-8")
                line = line.removeprefix(b"\xef\xbb\xbf")
            if len(line) > max_bytes and not line.endswith(b"\n"):
                yield (
                    number,
                    RowError(f"the line is longer than {max_bytes:,} bytes: raise max_line_bytes if it is meant"),
                )
                while (rest := file.readline(_PIECE)) and not rest.endswith(b"\n"):
                    pass
                continue
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                yield number, RowError(f"byte {error.start} of the line is no UTF-8: store the file in UTF-8")
                continue
            yield number, RowError("the line holds a NUL character") if "\0" in text else text
