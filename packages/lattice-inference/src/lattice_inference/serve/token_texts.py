"""The texts of single tokens, and where they stand in a text."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from lattice_inference.generate.generation import stream_after_text

if TYPE_CHECKING:
    from lattice_inference.tokenizer import Tokenizer
    from lattice_inference.tokenizer.streaming import TokenStream

__all__ = ["TextOffsets", "TokenTexts"]


class TokenTexts:
    """Gives the text of a token inside a longer text, so with its leading blank.

    It is ``"token_id:N"`` for a token that has none.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _before(self) -> list[int]:
        """The ids of the text before, which is "a"."""
        assert self._tokenizer is not None
        ids = self._tokenizer.encode("a", add_special_tokens=False).ids.tolist()
        return ids if self._tokenizer.decode(ids) == "a" else []

    def __call__(self, token_id: int) -> str:
        """Return the text of a token."""
        if self._tokenizer is None or self._tokenizer.id_to_token(token_id) is None:
            return f"token_id:{token_id}"
        text = self._tokenizer.decode([*self._before, token_id], skip_special_tokens=False)
        return text[1:] if self._before else text


class TextOffsets:
    """Tells where each token of a text begins in it.

    Args:
        tokenizer: of the model.
        echo: the prompt, if the text begins with it; else it begins after a prompt.
    """

    def __init__(self, tokenizer: Tokenizer | None, echo: str = "") -> None:
        self._tokenizer = tokenizer
        self._text_of = TokenTexts(tokenizer)
        self._echo = echo
        self._offset = 0
        self._stream: TokenStream | None = None
        if tokenizer is not None and echo:
            self._stream = tokenizer.stream(skip_special_tokens=False)
        elif tokenizer is not None:
            self._stream = stream_after_text(tokenizer, skip_special_tokens=False)

    def next(self, token_id: int) -> int:
        """Take the next token and return its place.

        A token has no characters of the text if it only begins one, or if it is special and not spelled out in the prompt.
        """
        place = self._offset
        if self._tokenizer is None or self._stream is None or self._tokenizer.id_to_token(token_id) is None:
            return place
        is_special = self._tokenizer.token_of(token_id, skip_special_tokens=True) is None
        if is_special and not self._echo.startswith(self._text_of(token_id), place):
            return place
        self._offset += len(self._stream.push(token_id))
        return place
