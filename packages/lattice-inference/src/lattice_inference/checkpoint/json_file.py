"""Strict, bounded JSON: every configuration, index and header of a model goes through here.

Python's parser does the parsing. This module adds rules: a cap on the size, no key twice in one object, no NaN or
Infinity, no lone surrogates. A cap on the nesting is checked before parsing, in constant stack. Errors name the file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NoReturn

from lattice_inference.checkpoint.model_file import SNIFF_BYTES, foreign_content, read_model_file
from lattice_inference.errors import LatticeError, ModelConfigError

__all__ = ["MAX_JSON_BYTES", "MAX_JSON_DEPTH", "load_json", "load_json_object", "parse_json"]

#: Default cap on a JSON file's size in bytes. Real config files are a few kilobytes.
MAX_JSON_BYTES = 8 * 1024 * 1024

#: Default cap on the nesting of arrays and objects. Real config files nest four or five deep.
MAX_JSON_DEPTH = 32

_UTF8_BOM = b"\xef\xbb\xbf"
_OTHER_BOMS = (b"\xff\xfe", b"\xfe\xff")
_QUOTED = re.compile(rb'"[^"]*"')
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def load_json_object(
    path: Path,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_depth: int = MAX_JSON_DEPTH,
    error: type[LatticeError] = ModelConfigError,
) -> dict[str, object]:
    """Read the JSON file ``path``, whose top level must be an object.

    Raises as :func:`load_json` does.
    """
    value = load_json(path, max_bytes=max_bytes, max_depth=max_depth, error=error)
    if not isinstance(value, dict):
        raise error(f"{path}: the top level is {_kind(value)}, and an object is needed")
    return value


def load_json(
    path: Path,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_depth: int = MAX_JSON_DEPTH,
    error: type[LatticeError] = ModelConfigError,
) -> object:
    """Read the JSON file ``path``: UTF-8, with or without a byte order mark.

    Args:
        path: the file.
        max_bytes: the largest size in bytes that is read.
        max_depth: how deep arrays and objects may nest.
        error: the class of error that a malformed file raises.

    Raises:
        ModelNotFoundError: the file does not exist.
        LatticeError: of the class ``error``, for everything that is wrong with the file; the message names it.
    """
    content = read_model_file(path, max_bytes=max_bytes, error=error)
    if content.startswith(_OTHER_BOMS):
        raise error(f"{path}: is UTF-16 text; save it as UTF-8")
    try:
        return parse_json(content.removeprefix(_UTF8_BOM), source=str(path), max_depth=max_depth, error=error)
    except error as cause:
        meaning = foreign_content(content[:SNIFF_BYTES])
        if meaning is None:
            raise
        raise error(f"{path}: this is {meaning}") from cause


def parse_json(
    content: bytes, *, source: str, max_depth: int = MAX_JSON_DEPTH, error: type[LatticeError] = ModelConfigError
) -> object:
    """Parse the UTF-8 bytes ``content``; ``source`` names them in messages.

    Raises:
        LatticeError: of the class ``error``, when the bytes are not strict JSON within the caps.
    """
    if exceeds_depth(content, max_depth):
        raise error(f"{source}: nested deeper than the {max_depth} levels that are read")

    def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            raise error(f"{source}: the key {_first_repeated(pairs)!r} stands twice in one object")
        return mapping

    def refuse_constant(token: str) -> NoReturn:
        raise error(f"{source}: {token} is not JSON")

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise error(f"{source}: not UTF-8 text (byte {cause.start:,})") from cause
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_constant=refuse_constant,
            # Python reads -0 as the integer 0; like most readers, this one takes it for a float, so no count can be it.
            parse_int=_integer_or_minus_zero if b"-0" in content else None,
        )
    except json.JSONDecodeError as cause:
        raise error(f"{source}: not valid JSON: {cause.msg} (line {cause.lineno}, column {cause.colno})") from cause
    except ValueError as cause:
        # An integer of more digits than Python converts. Our own errors also derive from ValueError: let them pass.
        if isinstance(cause, LatticeError):
            raise
        raise error(f"{source}: not valid JSON: {cause}") from cause
    if _SURROGATE_ESCAPE.search(content) and _holds_lone_surrogate(value):
        raise error(f"{source}: a string holds half of a surrogate pair, which is no character")
    return value


def exceeds_depth(content: bytes, max_depth: int) -> bool:
    """Whether the brackets of a JSON text nest deeper than ``max_depth``.

    Takes linear time and constant stack. Only the verdict "too deep" is final: a text whose brackets do not match is
    left to the parser, which by then cannot recurse far.
    """
    # Escapes matter only in that an escaped quote does not end a string. Pairs of backslashes go first, so that the
    # second one of a pair is not taken for the escape of a quote.
    if b"\\" in content:
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = content.translate(None, _NOT_STRUCTURE)
    # A closing quote directly before an opening one merges two strings, which changes nothing outside of them.
    structure = _QUOTED.sub(b"", structure.replace(b'""', b"")).translate(_BRACES_TO_BRACKETS)
    structure = structure.partition(b'"')[0]  # what follows an unterminated string is the parser's business
    # Each pass removes the innermost pairs: exactly one level.
    for _ in range(max_depth):
        if not structure:
            return False
        shorter = structure.replace(b"[]", b"")
        if len(shorter) == len(structure):
            break
        structure = shorter
    return b"[]" in structure or structure.count(b"[") > max_depth


def _integer_or_minus_zero(digits: str) -> float:
    return -0.0 if digits == "-0" else int(digits)


def _first_repeated(pairs: list[tuple[str, object]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is repeated")


def _holds_lone_surrogate(value: object) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if any("\ud800" <= character <= "\udfff" for character in item):
                return True
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return "a string"
    return "null" if value is None else f"{value!r}"
