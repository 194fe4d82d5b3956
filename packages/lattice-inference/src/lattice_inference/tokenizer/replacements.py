"""The normalizers Replace and Prepend: what a pattern finds, as steps for the C code.

A pattern is a text, or a regular expression as in SentencePiece's files. That is a run of one character, such as ``
{2,}``, possibly tied to the beginning or end of the text. Other expressions are refused: an approximation would give
other ids for some texts only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.fields import Fields

__all__ = ["MAX_REPLACEMENT_CHARACTERS", "Step", "parse_prepend", "parse_replace", "prepend", "replace", "replace_runs"]

MAX_REPLACEMENT_CHARACTERS = 64
"""Longest text that a pattern may name or put in place of a match."""

Step = int | tuple[object, ...]
"""A step of the C code: its kind, alone or with what it works with."""

_MAX_COUNT = 2**31 - 1

# One alternative: an anchor, a character (escaped, a class of one, or as it is) or white space, a count, an anchor.
_RUN = re.compile(
    r"(?P<start>\\A)?"
    r"(?:(?P<space>\\s)|\\(?P<escaped>[^\w\s])|(?P<control>\\[nrt])|\[(?P<listed>[^\\\]\[^&-])\]"
    r"|(?P<plain>[^\\.^$|?*+()\[\]{}]))"
    r"(?:(?P<plus>\+)|\{(?P<low>\d{1,9})(?P<comma>,(?P<high>\d{1,9})?)?\})?"
    r"(?P<end>\\z)?",
    re.ASCII,
)
_CONTROLS = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}


@dataclass(frozen=True)
class _Run:
    """A run of at most ``maximum`` of a character; ``""`` is white space, ``None`` no limit."""

    character: str
    minimum: int
    maximum: int | None
    at_start: bool
    at_end: bool


def replace(text: str, content: str) -> Step:
    """Return the step that puts ``content`` in place of ``text``."""
    return (native.NORMALIZE_REPLACE, text, "", 1, None, False, False, content)


def replace_runs(pattern: str, content: str, where: str = "pattern") -> tuple[Step, ...]:
    """Return the steps that replace matches of the regex ``pattern`` by ``content``.

    Raises:
        UnsupportedError: the expression is of another kind than this module's docstring names.
    """
    runs = [_parse_run(alternative) for alternative in pattern.split("|")]
    known = [run for run in runs if run is not None]
    if len(known) < len(runs) or (len(runs) > 1 and content):
        raise UnsupportedError(
            f"{where} is the regular expression {pattern!r:.60}; supported are runs of one character, such as ' {{2,}}'"
        )
    return tuple(
        (
            native.NORMALIZE_REPLACE,
            "",
            run.character,
            run.minimum,
            run.maximum,
            run.at_start,
            run.at_end,
            content,
        )
        for run in known
    )


def prepend(content: str) -> Step:
    """Return the step that puts ``content`` before a text that is not empty."""
    return (native.NORMALIZE_PREPEND, "", "", 1, None, False, False, content)


def _parse_run(pattern: str) -> _Run | None:
    match = _RUN.fullmatch(pattern)
    if match is None:
        return None
    if match["space"]:
        character = ""
    elif match["control"]:
        character = _CONTROLS[match["control"]]
    else:
        character = match["escaped"] or match["listed"] or match["plain"]
    minimum = 1
    maximum: int | None = 1
    if match["plus"]:
        maximum = None
    elif match["low"]:
        minimum = int(match["low"])
        maximum = minimum if not match["comma"] else int(match["high"]) if match["high"] else None
    if not 1 <= minimum <= (_MAX_COUNT if maximum is None else maximum):
        return None
    # A bounded run that must reach the end would have to be looked for from each of its characters.
    if match["end"] and maximum is not None:
        return None
    return _Run(character, minimum, maximum, bool(match["start"]), bool(match["end"]))


def parse_replace(fields: Fields) -> tuple[Step, ...]:
    """Return the steps of a ``Replace`` entry."""
    content = _bounded(fields, "content", fields.string("content"))
    pattern = fields.raw("pattern")
    nested = Fields(pattern, f"{fields.where}.pattern")
    if nested.has("Regex"):
        steps = replace_runs(_bounded(nested, "Regex", nested.string("Regex")), content, nested.where)
    else:
        text = _bounded(nested, "String", nested.string("String"))
        if not text:
            raise UnsupportedError(f"{nested.where}.String is empty, so it matches everywhere")
        steps = (replace(text, content),)
    nested.finish()
    return steps


def parse_prepend(fields: Fields) -> tuple[Step, ...]:
    """Return the step of a ``Prepend`` entry."""
    content = _bounded(fields, "prepend", fields.string("prepend"))
    if not content:
        raise UnsupportedError(f"{fields.where}.prepend is empty")
    return (prepend(content),)


def _bounded(fields: Fields, name: str, value: str) -> str:
    if len(value) > MAX_REPLACEMENT_CHARACTERS:
        raise TokenizerError(
            f"{fields.where}.{name} has {len(value):,} characters; the limit is {MAX_REPLACEMENT_CHARACTERS}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TokenizerError(f"{fields.where}.{name} has a lone surrogate") from None
    return value
