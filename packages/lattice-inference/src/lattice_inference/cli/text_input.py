"""Texts from the command line, a file or standard input."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from lattice_inference.errors import InvalidInputError

__all__ = ["read_lines", "read_texts"]

STANDARD_INPUT = "-"


def read_texts(arguments: list[str], input_file: str | None) -> list[str]:
    """Return the texts of a command that takes them as arguments, from a file, or from standard input (``-``).

    Raises:
        InvalidInputError: none are given, two places are, or the input is no UTF-8.
        OSError: the file cannot be read.
    """
    if input_file is not None:
        if arguments:
            raise InvalidInputError("texts and --input are both given: use one of them")
        return read_lines(input_file)
    if arguments == [STANDARD_INPUT]:
        return read_lines(STANDARD_INPUT)
    if not arguments:
        raise InvalidInputError('no texts: give them as arguments, as --input FILE, or as "-" for standard input')
    return arguments


def read_lines(source: str) -> list[str]:
    """Return the lines of a UTF-8 file, or of standard input for ``-``, without their line ends.

    Raises:
        InvalidInputError: it is empty or no UTF-8.
        OSError: it cannot be read.
    """
    if source == STANDARD_INPUT:
        if sys.stdin is None:
            raise InvalidInputError("standard input is closed: give texts as arguments or --input FILE")
        name, raw = "standard input", sys.stdin.buffer.read()
    else:
        name, raw = source, Path(source).read_bytes()
    try:
        text = raw.decode("utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{name}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}): convert it") from None
    # only \n, \r\n and \r end a line: str.splitlines would also cut at form feeds and U+2028
    lines = [line.rstrip("\n") for line in io.StringIO(text, newline=None)]
    if not lines:
        raise InvalidInputError(f"{name} is empty: it must hold one text a line")
    return lines
