"""Decoders: how tokens become text again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lattice_inference.errors import UnsupportedError
from lattice_inference.tokenizer.fields import Fields, component_type
from lattice_inference.tokenizer.metaspace import parse_metaspace_decoder

__all__ = ["Decoder", "SpaceDecoder", "WordPieceDecoder", "parse_decoder"]


class Decoder(Protocol):
    """Turns one token into the text that it adds."""

    def render(self, token: str, *, is_first: bool) -> str:
        """Return what ``token`` adds to a text, at its beginning or behind another token."""


@dataclass(frozen=True)
class SpaceDecoder:
    """A file without decoder: tokens with spaces between them."""

    def render(self, token: str, *, is_first: bool) -> str:
        """Return the token, behind a space unless it is the first."""
        return token if is_first else f" {token}"


# In the order in which Hugging Face's clean-up applies them, each to the outcome of the one before.
_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


@dataclass(frozen=True)
class WordPieceDecoder:
    """Joins continuing pieces to the word before; ``cleanup`` drops the space before English punctuation."""

    prefix: str = "##"
    cleanup: bool = True

    def render(self, token: str, *, is_first: bool) -> str:
        """Return the token without its prefix, or behind a space; the first token of a text stays as it is."""
        if not is_first:
            token = token.removeprefix(self.prefix) if token.startswith(self.prefix) else f" {token}"
        if self.cleanup:
            for old, new in _CLEANUP:
                token = token.replace(old, new)
        return token


def parse_decoder(value: object, where: str = "decoder") -> Decoder:
    """Return the decoder of a ``decoder`` entry; raise :class:`UnsupportedError` for one that is not built."""
    if value is None:
        return SpaceDecoder()
    kind = component_type(value, where)
    if kind not in _PARSERS:
        raise UnsupportedError(f"{where} is a {kind!r} decoder; supported are {', '.join(sorted(_PARSERS))}")
    fields = Fields(value, where)
    decoder = _PARSERS[kind](fields)
    fields.finish()
    return decoder


def _wordpiece(fields: Fields) -> Decoder:
    return WordPieceDecoder(prefix=fields.string("prefix"), cleanup=fields.boolean("cleanup"))


_PARSERS: dict[str, Callable[[Fields], Decoder]] = {"Metaspace": parse_metaspace_decoder, "WordPiece": _wordpiece}
