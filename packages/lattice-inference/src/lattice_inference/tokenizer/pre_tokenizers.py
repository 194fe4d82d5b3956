"""The pre-tokenizers of a tokenizer.json as lists of splitting steps for the C code."""

from __future__ import annotations

from collections.abc import Callable

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.fields import Fields, component_type
from lattice_inference.tokenizer.metaspace import parse_metaspace
from lattice_inference.tokenizer.replacements import Step

__all__ = ["BERT_PRE_TOKENIZER", "parse_pre_tokenizer"]

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
    """Return the steps of a ``pre_tokenizer`` entry (``None``: all is one word); raise for one that is not built."""
    if value is None:
        return ()
    return _flatten(value, where)


def _flatten(value: object, where: str) -> Steps:
    kind = component_type(value, where)
    if kind not in _PARSERS:
        raise UnsupportedError(f"{where} is a {kind!r} pre-tokenizer; supported are {', '.join(sorted(_PARSERS))}")
    fields = Fields(value, where)
    steps = _PARSERS[kind](fields)
    fields.finish()
    if len(steps) > native.MAX_STEPS:
        raise TokenizerError(f"{where} has {len(steps)} steps; the limit is {native.MAX_STEPS}")
    return steps


def _punctuation(fields: Fields) -> Steps:
    return (fields.choice("behavior", _PUNCTUATION, "Isolated"),)


def _sequence(fields: Fields) -> Steps:
    return tuple(step for steps in fields.nested("pretokenizers", _flatten) for step in steps)


_PARSERS: dict[str, Callable[[Fields], Steps]] = {
    "BertPreTokenizer": lambda fields: BERT_PRE_TOKENIZER,
    "Metaspace": parse_metaspace,
    "Punctuation": _punctuation,
    "Sequence": _sequence,
    "Whitespace": lambda fields: (native.SPLIT_WORD_RUNS,),
    "WhitespaceSplit": lambda fields: (native.SPLIT_WHITESPACE,),
}
