"""Standard streams that may be closed, full or broken.

None of them may cost a command its work. The packages' command lines have the same file, but for the package's name;
a check of the workspace compares them.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["give_up_output", "standard_streams"]


@contextmanager
def standard_streams() -> Iterator[None]:
    """Let a block print and read in any state of the process's streams; restore them after it.

    A closed output counts as ``/dev/null``. Reading from a closed input is an error of the request. Messages that standard
    error does not take are dropped: to stop for them would lose the work that they are about.
    """
    _fill_closed_descriptors()
    before = sys.stdin, sys.stdout, sys.stderr
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedInput()), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = _text_stream(_Nowhere())
    elif isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # of what was printed before; to write it is tried again at the end
            sys.stdout.reconfigure(errors="backslashreplace")  # texts may hold what the terminal's encoding does not
    if sys.stderr is None:
        sys.stderr = _text_stream(_Nowhere())
    elif sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _text_stream(_DroppingFile(sys.stderr.fileno(), "w", closefd=False), sys.stderr.encoding)
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stdin, sys.stdout, sys.stderr = before  # those of ours stay open: a logger may have kept one


def give_up_output() -> None:
    """Flush what is left, or drop it if that fails.

    The interpreter would try again at exit and complain.
    """
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _fill_closed_descriptors() -> None:
    """Open ``/dev/null`` where a standard descriptor is closed.

    The next file to be opened would get that number, and what is printed would go into it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
            if null == descriptor:
                os.set_inheritable(descriptor, True)  # as a standard stream is
            else:  # another thread has closed or opened a file meanwhile
                os.close(null)


def _text_stream(raw: io.RawIOBase, encoding: str = "utf-8") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True)


class _Nowhere(io.RawIOBase):
    """What a closed output is written as."""

    def writable(self) -> bool:
        """Return true: everything is taken."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Drop ``data``."""
        return memoryview(data).nbytes


class _DroppingFile(io.FileIO):
    """A file that takes whatever is written to it, and drops what the system refuses."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write ``data`` if that can be done."""
        try:
            written: int | None = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written  # None: refused, or it would block


class _ClosedInput(io.RawIOBase):
    """What a closed standard input is read as."""

    def readable(self) -> bool:
        """Return true: what is wrong is said when it is read."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Say what to do instead.

        Raises:
            InvalidInputError: always.
        """
        from lattice_inference.errors import InvalidInputError

        raise InvalidInputError("standard input is closed: name a file, or give the input as arguments")
