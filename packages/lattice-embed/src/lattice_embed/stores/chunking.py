"""Cuts documents longer than the model into overlapping chunks.

Lengths are in tokens of the model's tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError
from lattice_embed.service import EmbeddingService
from lattice_embed.validation import check_limit

__all__ = ["Chunking", "TokenizingService", "room_for_text", "spans_of_chunks"]

Offsets = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Chunking:
    """How long documents are cut into overlapping chunks, each with a separate vector.

    Args:
        tokens: most tokens of a chunk, in the model's own tokenizer, prompt and special tokens not counted; ``None``
            for what the model takes.
        overlap: tokens that a chunk shares with the one before it. Chunks begin and end between words where there are
            any, so that they may be a little shorter and share a little less.

    Raises:
        InvalidInputError: ``tokens`` is below 1, or ``overlap`` not in [0, tokens).
    """

    tokens: int | None = None
    overlap: int = 32

    def __post_init__(self) -> None:
        check_limit("overlap", self.overlap, lowest=0)
        if self.tokens is not None:
            check_limit("tokens", self.tokens)
            if not self.overlap < self.tokens:
                raise InvalidInputError(f"overlap is {self.overlap}; it must be below tokens={self.tokens}")

    def within(self, room: int) -> Chunking:
        """Return the same with ``tokens`` set for a model with room for ``room`` tokens of text.

        Raises:
            InvalidInputError: ``tokens`` is more than the model takes, or ``overlap`` no less than it takes.
        """
        if self.tokens is not None and self.tokens > room:
            raise InvalidInputError(f"chunks of {self.tokens} tokens: the model has room for {room}")
        return replace(self, tokens=room if self.tokens is None else self.tokens)


@runtime_checkable
class TokenizingService(Protocol):
    """A service that can say how its model reads a text. :class:`NativeEmbeddingService` is one."""

    def token_offsets(self, text: str) -> Offsets:
        """Return (n, 2) int32: the characters ``text[start:end]`` of each token.

        No prompt, no special tokens.
        """
        ...

    def token_room(self, *, role: Role = Role.GENERIC) -> int:
        """Return how many tokens of a text the model takes beside prompt and special tokens."""
        ...


def room_for_text(service: EmbeddingService, role: Role) -> int:
    """Return how many tokens of a document ``service`` takes.

    Raises:
        InvalidInputError: the service has no tokenizer to cut by, or its prompt leaves no room.
    """
    room = _tokenizing(service).token_room(role=role)
    if room < 1:
        raise InvalidInputError(
            f"{service.name}: the prompt of {role.value} leaves no room for a token of the document"
        )
    return room


def spans_of_chunks(service: EmbeddingService, text: str, chunking: Chunking) -> list[tuple[int, int]]:
    """Return the characters ``text[start:end]`` of each chunk of a document, in order.

    A document that fits is one chunk. Every token lies in a chunk, and each chunk by itself has at most
    ``chunking.tokens`` tokens. A word cut in two may have more tokens than the whole word. So chunks are counted again,
    and cut shorter if they have too many. Only a single token, which cannot be cut, may by itself have more than a
    limit of one or two.

    Raises:
        InvalidTextError: the text holds a lone surrogate.
        InvalidInputError: the service has no tokenizer.
    """
    tokenizing = _tokenizing(service)
    offsets = tokenizing.token_offsets(text)
    most = chunking.tokens
    assert most is not None
    if len(offsets) <= most:
        return [(0, len(text))]
    starts_word = _word_starts(text, offsets)
    size = most
    while True:
        pieces = _cut(starts_word, size, min(chunking.overlap, size - 1))
        spans = [(int(offsets[first, 0]), int(offsets[last - 1, 1])) for first, last in pieces]
        excess = max(len(tokenizing.token_offsets(text[start:end])) for start, end in spans) - most
        if excess <= 0 or size == 1:
            return spans
        size = max(size - excess, 1)


def _tokenizing(service: EmbeddingService) -> TokenizingService:
    if not isinstance(service, TokenizingService):
        raise InvalidInputError(
            f"{service.name} has no tokenizer to cut documents by (token_offsets, token_room): use a service that runs "
            "here, or leave chunking out"
        )
    return service


def _word_starts(text: str, offsets: Offsets) -> npt.NDArray[np.bool_]:
    """Return for each token whether it may begin a chunk.

    It may if it does not touch the token before, or begins with a space.
    """
    apart = np.empty(len(offsets), np.bool_)
    apart[0] = True
    apart[1:] = offsets[1:, 0] > offsets[:-1, 1]
    for index in np.flatnonzero(~apart).tolist():  # tokens of a byte-level BPE hold the space before their word
        apart[index] = text[offsets[index, 0] : offsets[index, 0] + 1].isspace()
    return apart


def _cut(starts_word: npt.NDArray[np.bool_], size: int, overlap: int) -> list[tuple[int, int]]:
    """Return the tokens [first, last) of each chunk.

    A chunk has at most ``size`` tokens and is cut between words if one ends in time.
    """
    pieces = []
    count = len(starts_word)
    first = 0
    while True:
        last = min(first + size, count)
        if last < count:
            shortest = first + max(size // 2, overlap) + 1
            last = _latest(starts_word, shortest, last) or last
        pieces.append((first, last))
        if last == count:
            return pieces
        # begin again `overlap` tokens earlier, at the next word, but always after where this chunk began
        begin = max(last - overlap, first + 1)
        words = np.flatnonzero(starts_word[begin : last + 1])
        first = begin + int(words[0]) if len(words) else begin


def _latest(starts_word: npt.NDArray[np.bool_], low: int, high: int) -> int | None:
    """Return the last token in [low, high] that begins a word, or ``None``."""
    words = np.flatnonzero(starts_word[low : high + 1])
    return low + int(words[-1]) if len(words) else None
