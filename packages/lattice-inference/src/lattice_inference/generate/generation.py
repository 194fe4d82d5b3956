"""One generation in progress: the tokens to run next, and the choice from their logits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_inference.generate.config import ResolvedConfig
from lattice_inference.generate.result import FinishReason, GenerateResult, StreamPiece
from lattice_inference.generate.sampler import Sampler, TokenLogprobs, token_logprobs
from lattice_inference.generate.stopping import StopTexts

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.grammar.constraint import Constraint
    from lattice_inference.state import CachedSequence
    from lattice_inference.tokenizer import Tokenizer
    from lattice_inference.tokenizer.streaming import TokenStream

__all__ = ["Generation", "advance"]


class Generation:
    """Generates tokens after ``sequence`` and ``pending``; :func:`advance` runs the steps.

    A chosen token is run only when another token is wanted after it, so the last one never is. Until then it is in
    ``pending``. A stop token stays there too.

    Args:
        sequence: the cached beginning of the context.
        pending: the rest of the context; at least one token, unless nothing is to be generated.
        config: how to generate.
        tokenizer: turns tokens into text; without one the text is empty.
        vocab_size: how many of the logits belong to tokens; the model's further logits are ignored.
        most_tokens: the longest context.
        continues: whether the text continues a text, so that a leading blank of its first token is kept.
        cancelled: called before every step; true ends the generation.
        constraint: the grammar's constraint in its start state.
    """

    def __init__(
        self,
        sequence: CachedSequence,
        pending: Sequence[int],
        config: ResolvedConfig,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        most_tokens: int,
        continues: bool,
        cancelled: Callable[[], bool],
        constraint: Constraint | None = None,
    ) -> None:
        self.sequence = sequence
        self.pending: list[int] = list(pending)
        self.finish_reason: FinishReason | None = None
        self._config = config
        self._cancelled = cancelled
        self._constraint = constraint
        self._most_tokens = most_tokens
        self._vocab_size = vocab_size
        self._reused = sequence.length
        self._prompt_tokens = sequence.length + len(self.pending)
        self._position = self._prompt_tokens
        if sequence.slots is not None:
            sequence.slots.prompt_end = self._prompt_tokens
        context = (*sequence.token_ids, *self.pending) if config.sampling.repetition_penalty != 1 else ()
        # a prompt may hold ids that belong to no token; they are never chosen
        seen = {token_id for token_id in context if token_id < vocab_size}
        self._sampler = Sampler(config.sampling, config.seed, seen, vocab_size)
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._texts: list[str] = []
        self._stop_texts = StopTexts(config.stop)
        self._stop_token_id: int | None = None
        self._tokenizer = tokenizer
        self._stream: TokenStream | None = None
        if tokenizer is not None:
            self._stream = _stream_after_text(tokenizer) if continues else tokenizer.stream()
        self._started = time.perf_counter()
        self._prompt_ended: float | None = None
        self._ended = self._started
        self.check()

    def check(self) -> StreamPiece | None:
        """Finish if nothing is left to do; the piece is then the text that was held back."""
        if self.finish_reason is not None:
            return None
        if self._cancelled():
            return self._finish(FinishReason.CANCELLED)
        if len(self._token_ids) >= self._config.max_new_tokens:
            return self._finish(FinishReason.LENGTH)
        if self._position >= self._most_tokens:
            return self._finish(FinishReason.CONTEXT_FULL)
        return None

    def take(self, logits: npt.NDArray[np.float32]) -> list[StreamPiece]:
        """Choose the next token from ``logits``, (vocabulary,), and return the new pieces.

        Raises:
            NonFiniteError: the logits allow no choice.
        """
        if self._prompt_ended is None:
            self._prompt_ended = time.perf_counter()
        logits = logits[: self._vocab_size]
        allowed = None if self._constraint is None else self._constraint.allowed()
        token_id = self._sampler.sample(logits, self._position, allowed)
        logprobs = None
        if self._config.logprobs is not None and token_id not in self._config.stop_token_ids:
            logprobs = token_logprobs(logits, token_id, self._config.logprobs)
        self.pending = []
        pieces = self._accept(token_id, logprobs)
        while self.finish_reason is None and self._constraint is not None and logprobs is None:
            forced = self._constraint.forced()  # the only token allowed needs no logits
            if forced is None:
                break
            pieces += self._accept(forced, None)
        return pieces

    def _accept(self, token_id: int, logprobs: TokenLogprobs | None) -> list[StreamPiece]:
        """Append the next token and return the new pieces."""
        self.pending.append(token_id)
        self._position += 1
        if token_id in self._config.stop_token_ids:
            self._stop_token_id = token_id
            return _given(self._finish(FinishReason.STOP_TOKEN))
        self._sampler.accept(token_id)
        if self._constraint is not None:
            self._constraint.accept(token_id)
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        text = self._stop_texts.push(self._text_of(token_id))
        self._texts.append(text)
        piece = StreamPiece(text, token_id, logprobs)
        if self._stop_texts.matched is not None:
            return [piece, *_given(self._finish(FinishReason.STOP_TEXT))]
        last = self.check()
        return [piece] if last is None else [piece, last]

    def result(self) -> GenerateResult:
        """Return what has been generated; before the end it reads as if it were cancelled."""
        prompt_ended = self._ended if self._prompt_ended is None else self._prompt_ended
        return GenerateResult(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            finish_reason=self.finish_reason or FinishReason.CANCELLED,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused,
            stop=self._stop_texts.matched,
            stop_token_id=self._stop_token_id,
            logprobs=None if self._config.logprobs is None else tuple(self._logprobs),
            seed=self._config.seed,
            prompt_seconds=prompt_ended - self._started,
            generate_seconds=self._ended - prompt_ended,
        )

    def cancel(self) -> StreamPiece | None:
        """End the generation, if it has not ended."""
        return None if self.finish_reason is not None else self._finish(FinishReason.CANCELLED)

    def _text_of(self, token_id: int) -> str:
        """Return a token's text; an id in a gap of the vocabulary has none."""
        if self._stream is None or self._tokenizer is None or self._tokenizer.id_to_token(token_id) is None:
            return ""
        return self._stream.push(token_id)

    def _finish(self, reason: FinishReason) -> StreamPiece | None:
        self.finish_reason = reason
        self._ended = time.perf_counter()
        text = self._stop_texts.push("" if self._stream is None else self._stream.finish())
        if self._stop_texts.matched is None:
            text += self._stop_texts.finish()
        self._texts.append(text)
        return StreamPiece(text) if text else None


def advance(model: CausalLanguageModel, generations: Sequence[Generation], most_tokens: int) -> list[list[StreamPiece]]:
    """Run one step for all generations that have not ended, and return each one's new pieces.

    Every generation with one pending token takes part. The prompts share the rest of ``most_tokens`` in order, so a
    step is bounded for prompts of any length.
    """
    from lattice_inference.generate.causal_language_model import Extension

    pieces: list[list[StreamPiece]] = []
    left = most_tokens
    for generation in generations:
        piece = generation.check()
        pieces.append([] if piece is None else [piece])
        left -= generation.finish_reason is None and len(generation.pending) == 1
    left = max(1, left)
    extensions, takers, before = [], [], []
    for index, generation in enumerate(generations):
        if generation.finish_reason is not None:
            continue
        count = len(generation.pending) if len(generation.pending) == 1 else min(len(generation.pending), left)
        if count == 0:
            continue
        if len(generation.pending) > 1:
            left -= count
        is_last = count == len(generation.pending)
        ids = np.array(generation.pending[:count], np.int32)
        extensions.append(Extension(generation.sequence, ids, "last" if is_last else "none"))
        takers.append((index, generation, is_last))
        before.append(generation.sequence.length)
    if not extensions:
        return pieces
    try:
        logits = model.forward(extensions)
    finally:  # after an interrupt a sequence holds all of its new tokens or none
        for (_, generation, _), length in zip(takers, before, strict=True):
            del generation.pending[: generation.sequence.length - length]
    row = 0
    for index, generation, is_last in takers:
        if is_last:
            pieces[index] += generation.take(logits[row])
            row += 1
    return pieces


def _given(piece: StreamPiece | None) -> list[StreamPiece]:
    return [] if piece is None else [piece]


def _stream_after_text(tokenizer: Tokenizer) -> TokenStream:
    """Return a stream in the middle of a text, which keeps the next token's leading blank."""
    stream = tokenizer.stream()
    text = "".join([stream.push(token_id) for token_id in tokenizer.encode("a", add_special_tokens=False).ids.tolist()])
    return stream if text == "a" else tokenizer.stream()
