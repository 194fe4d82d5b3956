"""Cuts the texts of a call into requests that a server takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

__all__ = ["TokenCounter", "most_tokens", "split_requests"]

TokenCounter = Callable[[str], int]
"""Counts the tokens of one text as the server's model does."""

SPECIAL_TOKENS = 2


def most_tokens(text: str) -> int:
    """Return an upper bound of a text's tokens: a token covers at least one byte of UTF-8."""
    return len(text.encode()) + SPECIAL_TOKENS


def split_requests(
    texts: Sequence[str], *, max_texts: int, max_tokens: int, count: TokenCounter
) -> Iterator[Sequence[str]]:
    """Yield runs of ``texts``, in order, within both limits.

    A text that exceeds the second limit by itself is a run alone.
    """
    start, tokens = 0, 0
    for index, text in enumerate(texts):
        size = count(text)
        if index > start and (index - start == max_texts or tokens + size > max_tokens):
            yield texts[start:index]
            start, tokens = index, 0
        tokens += size
    if start < len(texts):
        yield texts[start:]
