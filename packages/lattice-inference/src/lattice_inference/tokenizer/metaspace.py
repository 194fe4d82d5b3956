"""Metaspace: SentencePiece's visible spaces, as a pre-tokenizer and as a decoder."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.fields import Fields
from lattice_inference.tokenizer.replacements import Step
from lattice_inference.tokenizer.streaming import CharacterStage, Stage

__all__ = ["SPACE", "MetaspaceDecoder", "metaspace", "parse_metaspace", "parse_metaspace_decoder"]

SPACE = "\u2581"
"""What SentencePiece writes for a space."""

_SCHEMES: dict[str, int] = {
    "always": native.PREPEND_ALWAYS,
    "first": native.PREPEND_FIRST,
    "never": native.PREPEND_NEVER,
}


def metaspace(replacement: str = SPACE, *, prepend_scheme: str = "always", split: bool = True) -> Step:
    """Return the step that writes ``replacement`` for each space and before words.

    ``prepend_scheme``: before each word ("always"), before the text's first ("first"), or before none ("never");
    ``split``: words end before each ``replacement``.
    """
    return (native.SPLIT_METASPACE, replacement, _SCHEMES[prepend_scheme], split)


@dataclass(frozen=True)
class MetaspaceDecoder:
    """Turns ``replacement`` back into spaces.

    With ``has_prefix`` the first token gives none, as one was added to it.
    """

    replacement: str = SPACE
    has_prefix: bool = True

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the tokens with spaces."""
        return [self._render(token, i == 0) for i, token in enumerate(tokens)]

    def stream(self) -> Stage:
        """Return what does the same piece by piece."""
        return CharacterStage(self._render)

    def _render(self, text: str, is_first: bool) -> str:
        return text.replace(self.replacement, "" if is_first and self.has_prefix else " ")


def parse_metaspace(fields: Fields) -> tuple[Step, ...]:
    """Return the step of a ``Metaspace`` pre-tokenizer."""
    replacement, scheme, split = _parse(fields)
    return (metaspace(replacement, prepend_scheme=scheme, split=split),)


def parse_metaspace_decoder(fields: Fields) -> MetaspaceDecoder:
    """Return the decoder of a ``Metaspace`` decoder entry."""
    replacement, scheme, _ = _parse(fields)
    return MetaspaceDecoder(replacement, has_prefix=scheme != "never")


def _parse(fields: Fields) -> tuple[str, str, bool]:
    """Return replacement, scheme and split.

    Files of older versions have ``add_prefix_space`` and ``str_rep`` too.
    """
    replacement = fields.string("replacement")
    if len(replacement) != 1 or "\ud800" <= replacement <= "\udfff":
        raise TokenizerError(f"{fields.where}.replacement is {replacement!r:.60}; expected one character")
    scheme = fields.string("prepend_scheme", "always")
    if scheme not in _SCHEMES:
        raise TokenizerError(f"{fields.where}.prepend_scheme is {scheme!r:.60}; expected one of {sorted(_SCHEMES)}")
    adds_prefix = fields.raw("add_prefix_space", None) is None or fields.boolean("add_prefix_space")
    if not adds_prefix and scheme != "never":
        raise TokenizerError(f"{fields.where}.add_prefix_space is false, but its prepend_scheme is {scheme!r:.80}")
    if fields.raw("str_rep", None) is not None:
        fields.string("str_rep")
    split = True if fields.raw("split", None) is None else fields.boolean("split")
    return replacement, scheme, split
