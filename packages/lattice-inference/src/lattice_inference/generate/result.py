"""What a generation gives back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lattice_inference.generate.sampler import TokenLogprobs

__all__ = ["FinishReason", "GenerateResult", "StreamPiece"]


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP_TOKEN = "stop_token"
    """The model ended it: a token that ends texts came."""
    STOP_TEXT = "stop_text"
    """One of the configuration's ``stop`` texts came."""
    LENGTH = "length"
    """``max_new_tokens`` were generated."""
    CONTEXT_FULL = "context_full"
    """The session holds no further token."""
    CANCELLED = "cancelled"
    """The caller asked for it."""


@dataclass(frozen=True)
class StreamPiece:
    """What one token brought.

    Attributes:
        text: the text that is certain now, often ``""``: bytes wait until their character is complete, and what may begin a
            stop text waits too.
        token_id: the token, ``None`` for what was held back and comes at the end.
        logprobs: how probable it was, where the configuration asks for it.
    """

    text: str
    token_id: int | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class GenerateResult:
    """A generated text.

    Attributes:
        text: without the prompt; it ends before a stop text.
        token_ids: the tokens generated, those of a stop text included, a stop token not.
        finish_reason: why it ended.
        prompt_tokens: tokens before the generated ones.
        reused_tokens: how many of them were held already and not computed again.
        stop: the stop text that came, or ``None``.
        stop_token_id: the stop token that came, or ``None``.
        logprobs: one entry a token, ``None`` unless asked for.
        seed: of the draws; the same configuration with it gives the same text.
        prompt_seconds: wall time to the end of the prompt, the first token's logits included.
        generate_seconds: wall time from there to the end.
        drafted_tokens: how many tokens were guessed and checked; 0 without ``speculate``.
        accepted_tokens: how many of them became part of the text.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    reused_tokens: int
    stop: str | None
    stop_token_id: int | None
    logprobs: tuple[TokenLogprobs, ...] | None
    seed: int
    prompt_seconds: float
    generate_seconds: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def __str__(self) -> str:
        return self.text
