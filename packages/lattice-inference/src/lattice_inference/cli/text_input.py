"""Texts from the command line, a file or standard input."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from lattice_inference.errors import InvalidInputError

__all__ = ["read_lines", "read_texts", "read_whole_text"]

STANDARD_INPUT = "-"


def read_texts(arguments: list[str], input_file: str | None) -> list[str]:
    """Return a command's texts from its arguments, a file, or standard input (``-``).

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
    name, raw = _read_bytes(source)
    text = _decoded(name, raw)
    # only \n, \r\n and \r end a line: str.splitlines would also cut at form feeds and U+2028
    lines = [line.rstrip("\n") for line in io.StringIO(text, newline=None)]
    if not lines:
        raise InvalidInputError(f"{name} is empty: it must hold one text a line")
    return lines


def read_whole_text(argument: str | None, input_file: str | None, what: str) -> str:
    """Return one text: the argument, or all of a file or of standard input (``-``).

    Args:
        argument: what the command line gives.
        input_file: the value of ``--input``.
        what: what the text is, for messages.

    Raises:
        InvalidInputError: none or two are given, or the input is no UTF-8.
        OSError: the file cannot be read.
    """
    if argument is not None and input_file is not None:
        raise InvalidInputError(f"{what} and --input are both given: use one of them")
    if argument is not None and argument != STANDARD_INPUT:
        return argument
    source = STANDARD_INPUT if argument == STANDARD_INPUT else input_file
    if source is None:
        raise InvalidInputError(f'no text: give {what} as an argument, as --input FILE, or as "-" for standard input')
    name, raw = _read_bytes(source)
    return _decoded(name, raw)


def _read_bytes(source: str) -> tuple[str, bytes]:
    """Return a source's name for messages and its content."""
    if source != STANDARD_INPUT:
        return source, Path(source).read_bytes()
    if sys.stdin is None:
        raise InvalidInputError("standard input is closed: give texts as arguments or --input FILE")
    return "standard input", sys.stdin.buffer.read()


def _decoded(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{name}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}): convert it") from None
