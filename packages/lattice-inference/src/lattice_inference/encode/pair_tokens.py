"""Pairs of texts as tokens: the tokenizer's pairs, or a question to a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lattice_inference.encode.cut_side import cut_to
from lattice_inference.errors import InvalidInputError
from lattice_inference.models.pair_template import PairTemplate
from lattice_inference.tokenizer import PackedEncoding, Tokenizer
from lattice_inference.tokenizer.limits import Side
from lattice_inference.value_text import value_text

__all__ = ["AskedPairs", "PairTokens", "PlainPairs"]

Pairs = Sequence[tuple[str, str]]


class PairTokens(Protocol):
    """How a model reads pairs."""

    @property
    def least_tokens(self) -> int:
        """Tokens of a pair beside its texts, and one."""
        ...

    def check_instruction(self, instruction: object) -> str | None:
        """Return what a call asks for, or raise InvalidInputError if the model takes no such thing."""
        ...

    def pack(
        self, pairs: Pairs, instruction: str | None, *, limit: int | None, finds_special: bool, threads: int | None
    ) -> PackedEncoding:
        """Return the tokens of ``pairs``, each cut to ``limit``.

        ``finds_special``: whether special tokens that a text spells out become those tokens.
        """
        ...


class PlainPairs:
    """A query and a document as the tokenizer's template joins them."""

    def __init__(self, tokenizer: Tokenizer, cut_side: Side = "right") -> None:
        self._tokenizer = tokenizer
        self._cut_side = cut_side

    @property
    def least_tokens(self) -> int:
        """Tokens of a pair beside its texts, and one."""
        return self._tokenizer.special_token_count(pair=True) + 1

    def check_instruction(self, instruction: object) -> None:
        """Refuse an instruction."""
        if instruction is not None:
            raise InvalidInputError("this model reads a query and a document and no instruction: leave instruction out")

    def pack(
        self, pairs: Pairs, instruction: str | None, *, limit: int | None, finds_special: bool, threads: int | None
    ) -> PackedEncoding:
        """Return the tokens of ``pairs``.

        A pair over ``limit`` is cut at the end, or the beginning, of its longer text, token by token.
        """
        return self._tokenizer.encode_packed(
            pairs,
            max_tokens=cut_to(limit, self._cut_side),
            special_tokens_in_text=finds_special,
            threads=threads,
        )


class AskedPairs:
    """A query and a document in a question. Its words are read once, and are never cut."""

    def __init__(self, tokenizer: Tokenizer, template: PairTemplate, cut_side: Side = "right") -> None:
        self._tokenizer = tokenizer
        self._cut_side = cut_side
        self._template = template
        self._before, self._after = (
            tokenizer.encode(text, add_special_tokens=False).ids.tolist() for text in (template.before, template.after)
        )

    @property
    def least_tokens(self) -> int:
        """Tokens of the question beside what the pair is part of, and one."""
        return len(self._before) + len(self._after) + 1

    def check_instruction(self, instruction: object) -> str | None:
        """Return the instruction of a call; None is the model's own."""
        if instruction is not None and not isinstance(instruction, str):
            raise InvalidInputError(f"instruction is {value_text(instruction)}; pass a str or None")
        return instruction

    def pack(
        self, pairs: Pairs, instruction: str | None, *, limit: int | None, finds_special: bool, threads: int | None
    ) -> PackedEncoding:
        """Return the tokens of ``pairs``.

        One over ``limit`` is cut at the end of its document, or at the beginning of what is asked.
        """
        packed = self._tokenizer.encode_packed(
            [self._template.text(instruction, query, document) for query, document in pairs],
            max_tokens=cut_to(None if limit is None else limit - self.least_tokens + 1, self._cut_side),
            special_tokens_in_text=finds_special,
            threads=threads,
        )
        return packed.framed(self._before, self._after)
