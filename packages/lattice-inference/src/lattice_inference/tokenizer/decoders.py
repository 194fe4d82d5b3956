"""Decoders: how tokens become text again.

A decoder turns a list of tokens into a list of texts, whose concatenation is the text; several in a row hand the list on.
``stream`` gives the same piece by piece: see ``streaming.py``.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer import streaming
from lattice_inference.tokenizer.fields import Fields, component_type
from lattice_inference.tokenizer.metaspace import parse_metaspace_decoder

__all__ = [
    "BpeDecoder",
    "ByteFallbackDecoder",
    "ByteLevelDecoder",
    "Decoder",
    "FuseDecoder",
    "ReplaceDecoder",
    "SequenceDecoder",
    "SpaceDecoder",
    "StripDecoder",
    "WordPieceDecoder",
    "fallback_byte",
    "parse_decoder",
]


class Decoder(Protocol):
    """Turns tokens into texts."""

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the texts of ``tokens``; put together they are the text."""

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""


@dataclass(frozen=True)
class SpaceDecoder:
    """A file without decoder: tokens with spaces between them."""

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the tokens with spaces between them."""
        return [" ".join(tokens)]

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""
        return streaming.TokenStage(lambda token, is_first: token if is_first else f" {token}")


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
    """Joins continuing pieces to the word before.

    ``cleanup`` drops the space before English punctuation.
    """

    prefix: str = "##"
    cleanup: bool = True
    _rendered: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the first token as it is, others without the prefix or after a space."""
        texts: list[str] = []
        for token in tokens:
            if not texts:
                texts.append(self._render(token, True))
                continue
            text = self._rendered.get(token)
            if text is None:
                text = self._rendered[token] = self._render(token, False)
            texts.append(text)
        return texts

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""
        return streaming.TokenStage(self._render)

    def _render(self, token: str, is_first: bool) -> str:
        if not is_first:
            token = token.removeprefix(self.prefix) if token.startswith(self.prefix) else f" {token}"
        if self.cleanup:
            for old, new in _CLEANUP:
                token = token.replace(old, new)
        return token


_BYTES = {character: byte for byte, character in enumerate(native.BYTE_CHARACTERS)}


@dataclass(frozen=True)
class ByteLevelDecoder:
    """Tokens spelled in GPT-2's characters for bytes: the bytes are joined and read as UTF-8.

    Bytes that are no UTF-8 become U+FFFD. A token with another character stands for its own UTF-8.
    """

    _known: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that a token stands for."""
        known = self._known.get(token)
        if known is None:
            try:
                known = bytes([_BYTES[character] for character in token])
            except KeyError:
                known = token.encode()
            self._known[token] = known
        return known

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the one text of all tokens."""
        return [b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")]

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""
        return streaming.ByteStage(self.token_bytes)


def fallback_byte(token: str) -> int | None:
    """Return the byte of a token like ``<0x0A>``, as leniently as Hugging Face's library."""
    if len(token) != 6 or not token.startswith("<0x") or token[5] != ">" or not token.isascii():
        return None
    digits = token[4:5] if token[3] == "+" else token[3:5]
    try:
        return int(digits, 16) if digits.isalnum() else None
    except ValueError:
        return None


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


_EACH_BYTE = "lattice_replace_each_byte"
codecs.register_error(_EACH_BYTE, _replace_each_byte)


@dataclass(frozen=True)
class ByteFallbackDecoder:
    """Runs of tokens ``<0x00>`` to ``<0xFF>`` become the text that their bytes are.

    A byte that is part of no character becomes a U+FFFD, as in SentencePiece. Hugging Face's library then makes one
    of every byte of the run, even of whole characters. Text that was already streamed could not match that.
    """

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the other tokens, and for each run of bytes its text."""
        texts: list[str] = []
        run = bytearray()
        for token in [*tokens, None]:
            byte = None if token is None else fallback_byte(token)
            if byte is not None:
                run.append(byte)
                continue
            if run:
                texts.append(run.decode(errors=_EACH_BYTE))
                run.clear()
            if token is not None:
                texts.append(token)
        return texts

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""
        return streaming.ByteRunStage(fallback_byte, codecs.getincrementaldecoder("utf-8")(_EACH_BYTE))


@dataclass(frozen=True)
class FuseDecoder:
    """Makes one text of all."""

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the tokens as one."""
        return ["".join(tokens)]

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""
        return streaming.FuseStage()


@dataclass(frozen=True)
class StripDecoder:
    """Strips up to ``start`` ``content`` from each token's beginning, and ``stop`` from its end.

    ``content`` is one character.
    """

    content: str
    start: int
    stop: int

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the tokens without them."""
        return [self._strip(token) for token in tokens]

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""
        return streaming.StripStage(self.content, self.start, self.stop)

    def _strip(self, token: str) -> str:
        leading = min(self.start, len(token) - len(token.lstrip(self.content)))
        token = token[leading:]
        trailing = min(self.stop, len(token) - len(token.rstrip(self.content)))
        return token[: len(token) - trailing]


@dataclass(frozen=True)
class ReplaceDecoder:
    """Replaces a text in each token."""

    pattern: str
    content: str

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the changed tokens."""
        return [token.replace(self.pattern, self.content) for token in tokens]

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""
        if len(self.pattern) == 1:
            return streaming.CharacterStage(self._replace)
        return streaming.TokenStage(self._replace)

    def _replace(self, text: str, is_first: bool) -> str:
        return text.replace(self.pattern, self.content)


@dataclass(frozen=True)
class BpeDecoder:
    """Turns the suffix of a word's last token into a space, or nothing at the end of the text."""

    suffix: str

    def decode(self, tokens: list[str]) -> list[str]:
        """Return the changed tokens."""
        last = len(tokens) - 1
        return [self._render(token, i == last) for i, token in enumerate(tokens)]

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece, one token late."""
        return streaming.LastTokenStage(self._render)

    def _render(self, token: str, is_last: bool) -> str:
        return token.replace(self.suffix, "" if is_last else " ") if self.suffix else token


@dataclass(frozen=True)
class SequenceDecoder:
    """Decoders in a row."""

    decoders: tuple[Decoder, ...]

    def decode(self, tokens: list[str]) -> list[str]:
        """Return what the last one makes of what the others made."""
        for decoder in self.decoders:
            tokens = decoder.decode(tokens)
        return tokens

    def stream(self) -> streaming.Stage:
        """Return what does the same piece by piece."""
        return streaming.SequenceStage([decoder.stream() for decoder in self.decoders])


def parse_decoder(value: object, where: str = "decoder") -> Decoder:
    """Return the decoder of a ``decoder`` entry.

    Raises :class:`UnsupportedError` for one that is not built.
    """
    if value is None:
        return SpaceDecoder()
    kind = component_type(value, where)
    if kind not in _PARSERS:
        raise UnsupportedError(f"{where} is a {kind!r:.80} decoder; supported are {', '.join(sorted(_PARSERS))}")
    fields = Fields(value, where)
    decoder = _PARSERS[kind](fields)
    fields.finish()
    return decoder


def _byte_level(fields: Fields) -> Decoder:
    for name in ("add_prefix_space", "trim_offsets", "use_regex"):  # have no effect on decoding
        fields.boolean(name, True)
    return ByteLevelDecoder()


def _strip(fields: Fields) -> Decoder:
    return StripDecoder(
        _character(fields, "content"), fields.integer("start", 0, 2**31 - 1), fields.integer("stop", 0, 2**31 - 1)
    )


def _replace(fields: Fields) -> Decoder:
    pattern = Fields(fields.raw("pattern"), f"{fields.where}.pattern")
    if pattern.has("Regex"):
        raise UnsupportedError(f"{pattern.where} is a regex, which is not supported in a decoder")
    text = pattern.string("String")
    pattern.finish()
    if not text:
        raise TokenizerError(f"{pattern.where}.String is empty")
    return ReplaceDecoder(text, fields.string("content"))


def _character(fields: Fields, name: str) -> str:
    character = fields.string(name)
    if len(character) != 1:
        raise TokenizerError(f"{fields.where}.{name} is {character!r:.60}; expected one character")
    return character


def _sequence(fields: Fields) -> Decoder:
    return SequenceDecoder(tuple(fields.nested("decoders", parse_decoder)))


_PARSERS: dict[str, Callable[[Fields], Decoder]] = {
    "BPEDecoder": lambda fields: BpeDecoder(fields.string("suffix")),
    "ByteFallback": lambda fields: ByteFallbackDecoder(),
    "ByteLevel": _byte_level,
    "Fuse": lambda fields: FuseDecoder(),
    "Metaspace": parse_metaspace_decoder,
    "Replace": _replace,
    "Sequence": _sequence,
    "Strip": _strip,
    "WordPiece": lambda fields: WordPieceDecoder(prefix=fields.string("prefix"), cleanup=fields.boolean("cleanup")),
}
