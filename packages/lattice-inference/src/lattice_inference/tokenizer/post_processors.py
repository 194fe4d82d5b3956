"""Post-processors: special tokens around a text or a pair, token types, trimmed ranges.

Trimming takes white space out of the ranges of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer.fields import Fields, component_type

__all__ = [
    "DEFAULT_POST_PROCESSOR",
    "Part",
    "PostProcessor",
    "Trimming",
    "bert_post_processor",
    "parse_post_processor",
]


@dataclass(frozen=True)
class Part:
    """A template's part: text 0 or 1 (``sequence``), or special token ``id`` (``sequence`` -1)."""

    sequence: int
    id: int
    type_id: int


Trimming = Literal["all", "all but a prefix space"]
"""What white space is taken out of tokens' ranges; a space at a text's beginning may be the pre-tokenizer's own."""


@dataclass(frozen=True)
class PostProcessor:
    """The templates of a text and of a pair, and the white space trimmed from tokens' ranges."""

    single: tuple[Part, ...]
    pair: tuple[Part, ...]
    trimming: Trimming | None = None

    def __post_init__(self) -> None:
        for name, parts, wanted in (("single", self.single, [0]), ("pair", self.pair, [0, 1])):
            used = sorted(part.sequence for part in parts if part.sequence >= 0)
            if used != wanted:
                names = " and ".join(f"${'AB'[i]}" for i in wanted)
                raise TokenizerError(f"post_processor.{name} must use {names} once each and no other text")

    def without_special_tokens(self) -> PostProcessor:
        """Return the same templates with the texts only, as ``add_special_tokens=False`` wants them."""
        return PostProcessor(
            tuple(part for part in self.single if part.sequence >= 0),
            tuple(part for part in self.pair if part.sequence >= 0),
            self.trimming,
        )


DEFAULT_POST_PROCESSOR = PostProcessor((Part(0, -1, 0),), (Part(0, -1, 0), Part(1, -1, 1)))
"""A file without post-processor: no special tokens, type 1 for the second text."""


def bert_post_processor(cls_id: int, sep_id: int) -> PostProcessor:
    """Return BERT's ``[CLS] A [SEP]`` and ``[CLS] A [SEP] B [SEP]``."""
    single = (Part(-1, cls_id, 0), Part(0, -1, 0), Part(-1, sep_id, 0))
    return PostProcessor(single, (*single, Part(1, -1, 1), Part(-1, sep_id, 1)))


def parse_post_processor(value: object, where: str = "post_processor") -> PostProcessor:
    """Return the templates of a ``post_processor`` entry.

    Raises :class:`UnsupportedError` for one that is not built.
    """
    if value is None:
        return DEFAULT_POST_PROCESSOR
    kind = component_type(value, where)
    if kind not in _PARSERS:
        raise UnsupportedError(f"{where} is a {kind!r:.80} post-processor; supported are {', '.join(sorted(_PARSERS))}")
    fields = Fields(value, where)
    processor = _PARSERS[kind](fields)
    fields.finish()
    return processor


def _bert(fields: Fields) -> PostProcessor:
    return bert_post_processor(_token_and_id(fields, "cls"), _token_and_id(fields, "sep"))


def _token_and_id(fields: Fields, name: str) -> int:
    value = fields.array(name)
    if len(value) != 2 or type(value[0]) is not str or type(value[1]) is not int:
        raise TokenizerError(f"{fields.where}.{name} is not a pair of token and id")
    return value[1]


def _template(fields: Fields) -> PostProcessor:
    special = _special_tokens(fields)

    def parse_part(value: object, where: str) -> list[Part]:
        if not isinstance(value, dict) or len(value) != 1:
            raise TokenizerError(f"{where} is not an object of one field, Sequence or SpecialToken")
        [(kind, body)] = value.items()
        part = Fields(body, f"{where}.{kind}")
        type_id = part.integer("type_id", 0, 2**31 - 1)
        if kind == "Sequence":
            parts = [Part(part.choice("id", {"A": 0, "B": 1}), -1, type_id)]
        elif kind == "SpecialToken":
            name = part.string("id")
            if name not in special:
                raise TokenizerError(f"{where} names {name!r}, which is not in {fields.where}.special_tokens")
            parts = [Part(-1, token_id, type_id) for token_id in special[name]]
        else:
            raise TokenizerError(f"{where} is a {kind!r:.80}; expected Sequence or SpecialToken")
        part.finish()
        return parts

    single = [part for parts in fields.nested("single", parse_part) for part in parts]
    pair = [part for parts in fields.nested("pair", parse_part) for part in parts]
    return PostProcessor(tuple(single), tuple(pair))


def _trimming(fields: Fields) -> Trimming | None:
    prefix = fields.boolean("add_prefix_space")
    if not fields.boolean("trim_offsets"):
        return None
    return "all but a prefix space" if prefix else "all"


def _byte_level(fields: Fields) -> PostProcessor:
    fields.boolean("use_regex", True)  # has its effect in the pre-tokenizer of the same name
    return replace(DEFAULT_POST_PROCESSOR, trimming=_trimming(fields))


def _roberta(fields: Fields) -> PostProcessor:
    cls_id, sep_id = _token_and_id(fields, "cls"), _token_and_id(fields, "sep")
    single = (Part(-1, cls_id, 0), Part(0, -1, 0), Part(-1, sep_id, 0))
    second = (Part(-1, sep_id, 0), Part(1, -1, 0), Part(-1, sep_id, 0))
    return PostProcessor(single, (*single, *second), _trimming(fields))


def _sequence(fields: Fields) -> PostProcessor:
    """Several in a row: at most one of them may have a template, and at most one may trim."""
    result = DEFAULT_POST_PROCESSOR
    for i, processor in enumerate(fields.nested("processors", parse_post_processor)):
        where = f"{fields.where}.processors[{i}]"
        if processor.trimming is not None:
            if result.trimming is not None:
                raise UnsupportedError(f"{where} trims offsets that are trimmed already")
            result = replace(result, trimming=processor.trimming)
        bare = replace(processor, trimming=None)
        if bare != DEFAULT_POST_PROCESSOR:
            if replace(result, trimming=None) != DEFAULT_POST_PROCESSOR:
                raise UnsupportedError(f"{where} adds special tokens, and a post-processor before it does too")
            result = replace(bare, trimming=result.trimming)
    return result


def _special_tokens(fields: Fields) -> dict[str, list[int]]:
    value = fields.raw("special_tokens")
    if not isinstance(value, dict):
        raise TokenizerError(f"{fields.where}.special_tokens is a {type(value).__name__}; expected an object")
    special = {}
    for name, body in value.items():
        token = Fields(body, f"{fields.where}.special_tokens[{name!r}]")
        token.string("id")
        token.array("tokens")
        ids: list[int] = []
        for token_id in token.array("ids"):
            if type(token_id) is not int:
                raise TokenizerError(f"{token.where}.ids holds {token_id!r:.60}; expected integers")
            ids.append(token_id)
        token.finish()
        special[name] = ids
    return special


_PARSERS: dict[str, Callable[[Fields], PostProcessor]] = {
    "BertProcessing": _bert,
    "ByteLevel": _byte_level,
    "RobertaProcessing": _roberta,
    "Sequence": _sequence,
    "TemplateProcessing": _template,
}
