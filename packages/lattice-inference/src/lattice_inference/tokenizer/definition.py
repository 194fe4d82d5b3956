"""A tokenizer's full definition, from any kind of file, and its form in a tokenizer.json."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer._tokenizer import PieceTable
from lattice_inference.tokenizer.added_tokens import AddedToken, assign_ids, parse_added_tokens
from lattice_inference.tokenizer.decoders import Decoder, parse_decoder
from lattice_inference.tokenizer.fields import Fields
from lattice_inference.tokenizer.growth import check_growth
from lattice_inference.tokenizer.limits import Padding, Truncation, parse_padding, parse_truncation
from lattice_inference.tokenizer.models import Model, parse_model
from lattice_inference.tokenizer.normalizers import parse_normalizer
from lattice_inference.tokenizer.post_processors import PostProcessor, parse_post_processor
from lattice_inference.tokenizer.pre_tokenizers import parse_pre_tokenizer
from lattice_inference.tokenizer.replacements import Step

__all__ = ["RepeatedToken", "TokenizerDefinition", "parse_definition"]


@dataclass(frozen=True)
class RepeatedToken:
    """An id whose text is that of another id, which texts are encoded to; decoding knows both."""

    id: int
    content: str
    special: bool


@dataclass(frozen=True)
class TokenizerDefinition:
    """A tokenizer's five stages, its added tokens with their ids, and its file's limits."""

    normalizer: tuple[Step, ...]
    pre_tokenizer: tuple[Step, ...]
    model: Model
    post_processor: PostProcessor
    decoder: Decoder
    added_tokens: tuple[AddedToken, ...] = ()
    truncation: Truncation | None = None
    padding: Padding | None = None
    repeated_tokens: tuple[RepeatedToken, ...] = ()

    def __post_init__(self) -> None:
        check_growth(self.normalizer)
        size = self.highest_id + 1
        for part in (*self.post_processor.single, *self.post_processor.pair):
            if part.sequence < 0 and not 0 <= part.id < size:
                raise TokenizerError(f"post_processor uses the id {part.id}; the vocabulary has ids 0 to {size - 1}")

    @cached_property
    def added_token_ids(self) -> dict[str, int]:
        """The ids of the added tokens."""
        return assign_ids(list(self.added_tokens), self.model.vocabulary)

    @cached_property
    def highest_id(self) -> int:
        """The highest id that the tokenizer can give."""
        vocabulary = self.model.vocabulary
        highest = len(vocabulary) - 1 if isinstance(vocabulary, PieceTable) else max(vocabulary.values())
        return max(highest, *self.added_token_ids.values(), *(token.id for token in self.repeated_tokens), -1)


def parse_definition(value: dict[str, Any]) -> TokenizerDefinition:
    """Return the definition that a tokenizer.json's object states.

    Raises :class:`TokenizerError` for a malformed one and :class:`UnsupportedError` for a component that is not built.
    """
    fields = Fields(value, "tokenizer.json")
    version = fields.raw("version", "1.0")
    if version != "1.0":
        raise TokenizerError(f"tokenizer.json is of version {version!r:.60}; expected '1.0'")
    model = parse_model(fields.raw("model"))
    stated = parse_added_tokens(fields.raw("added_tokens", None))
    added_tokens = tuple(token for token, _ in stated)
    ids = assign_ids(list(added_tokens), model.vocabulary)
    for token, token_id in stated:
        if ids[token.content] != token_id:
            raise TokenizerError(
                f"added_tokens gives {token.content!r:.80} the id {token_id}, but by the vocabulary and the tokens before "
                f"it, its id is {ids[token.content]}"
            )
    definition = TokenizerDefinition(
        normalizer=parse_normalizer(fields.raw("normalizer", None)),
        pre_tokenizer=parse_pre_tokenizer(fields.raw("pre_tokenizer", None)),
        model=model,
        post_processor=parse_post_processor(fields.raw("post_processor", None)),
        decoder=parse_decoder(fields.raw("decoder", None)),
        added_tokens=added_tokens,
        truncation=parse_truncation(fields.raw("truncation", None)),
        padding=parse_padding(fields.raw("padding", None)),
    )
    fields.finish()
    return definition
