"""The pre-tokenizers of a tokenizer.json as splitting steps, most of them for the C code."""

from __future__ import annotations

from collections.abc import Callable

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.fields import Fields, component_type
from lattice_inference.tokenizer.metaspace import parse_metaspace
from lattice_inference.tokenizer.replacements import Step
from lattice_inference.tokenizer.split_patterns import BEHAVIORS, SCANNERS, PatternSplit

__all__ = ["BERT_PRE_TOKENIZER", "Steps", "byte_level_steps", "parse_pre_tokenizer"]

Steps = tuple[Step, ...]

BERT_PRE_TOKENIZER: Steps = (native.SPLIT_WHITESPACE, native.SPLIT_PUNCTUATION_ISOLATED)

_PUNCTUATION = {
    "Isolated": native.SPLIT_PUNCTUATION_ISOLATED,
    "Removed": native.SPLIT_PUNCTUATION_REMOVED,
    "Contiguous": native.SPLIT_PUNCTUATION_CONTIGUOUS,
    "MergedWithPrevious": native.SPLIT_PUNCTUATION_TO_PREVIOUS,
    "MergedWithNext": native.SPLIT_PUNCTUATION_TO_NEXT,
}


def parse_pre_tokenizer(value: object, where: str = "pre_tokenizer") -> Steps:
    """Return the steps of a ``pre_tokenizer`` entry (``None``: all is one word).

    Raises for one that is not built.
    """
    if value is None:
        return ()
    steps = _flatten(value, where)
    if native.SPLIT_BYTE_LEVEL in steps[:-1]:
        raise UnsupportedError(f"{where} has steps after ByteLevel, which is supported at the end only")
    return steps


def _flatten(value: object, where: str) -> Steps:
    kind = component_type(value, where)
    if kind not in _PARSERS:
        raise UnsupportedError(f"{where} is a {kind!r:.80} pre-tokenizer; supported are {', '.join(sorted(_PARSERS))}")
    fields = Fields(value, where)
    steps = _PARSERS[kind](fields)
    fields.finish()
    if len(steps) > native.MAX_STEPS:
        raise TokenizerError(f"{where} has {len(steps)} steps; the limit is {native.MAX_STEPS}")
    return steps


def byte_level_steps(*, add_prefix_space: bool, use_regex: bool) -> Steps:
    """Return the steps of ByteLevel: a space at the beginning, GPT-2's regex, then bytes."""
    prefix = (native.SPLIT_PREFIX_SPACE,) if add_prefix_space else ()
    regex = (native.SPLIT_GPT2,) if use_regex else ()
    return (*prefix, *regex, native.SPLIT_BYTE_LEVEL)


def _byte_level(fields: Fields) -> Steps:
    fields.boolean("trim_offsets", True)  # has its effect in the post-processor of the same name
    return byte_level_steps(
        add_prefix_space=fields.boolean("add_prefix_space"), use_regex=fields.boolean("use_regex", True)
    )


def _digits(fields: Fields) -> Steps:
    return (native.SPLIT_DIGITS if fields.boolean("individual_digits") else native.SPLIT_DIGIT_RUNS,)


def _split(fields: Fields) -> Steps:
    pattern = Fields(fields.raw("pattern"), f"{fields.where}.pattern")
    is_regex = pattern.has("Regex")
    text = pattern.string("Regex" if is_regex else "String")
    pattern.finish()
    split = PatternSplit(text, is_regex, fields.choice("behavior", BEHAVIORS), fields.boolean("invert"))
    scanner = SCANNERS.get(text) if is_regex else None
    if scanner is not None and split.keeps_matches_alone:
        return (scanner,)
    split.check(fields.where)
    return ((native.SPLIT_EXTERNAL, split),)


def _punctuation(fields: Fields) -> Steps:
    return (fields.choice("behavior", _PUNCTUATION, "Isolated"),)


def _sequence(fields: Fields) -> Steps:
    return tuple(step for steps in fields.nested("pretokenizers", _flatten) for step in steps)


_PARSERS: dict[str, Callable[[Fields], Steps]] = {
    "BertPreTokenizer": lambda fields: BERT_PRE_TOKENIZER,
    "ByteLevel": _byte_level,
    "Digits": _digits,
    "Metaspace": parse_metaspace,
    "Punctuation": _punctuation,
    "Sequence": _sequence,
    "Split": _split,
    "Whitespace": lambda fields: (native.SPLIT_WORD_RUNS,),
    "WhitespaceSplit": lambda fields: (native.SPLIT_WHITESPACE,),
}
