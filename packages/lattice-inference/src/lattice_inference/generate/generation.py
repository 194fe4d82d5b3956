"""One generation in progress: the tokens to run next, and the choice from their logits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import CacheFullError, GrammarError, NonFiniteError
from lattice_inference.generate.config import ResolvedConfig
from lattice_inference.generate.drafts import MOST_DRAFTS
from lattice_inference.generate.result import FinishReason, GenerateResult, StreamPiece
from lattice_inference.generate.row_sampler import Choice, Draw, RowSampler, sample_rows
from lattice_inference.generate.sampler import TokenLogprobs, token_logprobs
from lattice_inference.generate.stopping import StopTexts

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.rejection import Candidates
    from lattice_inference.generate.speculation import Speculation
    from lattice_inference.grammar.constraint import Constraint
    from lattice_inference.grammar.masks_ahead import MasksAhead
    from lattice_inference.state import CachedSequence
    from lattice_inference.tokenizer import Tokenizer
    from lattice_inference.tokenizer.streaming import TokenStream

__all__ = ["Generation", "Taker", "advance", "run_step", "stream_after_text", "without_drafts"]


class Taker(NamedTuple):
    """A generation's part of a step.

    Attributes:
        place: of the generation, for the caller.
        generation: the generation.
        tokens: how many of its pending tokens are run; all of them if a token is chosen.
        is_last: whether a token is chosen.
        drafts: tokens that are run after them.
    """

    place: int
    generation: Generation
    tokens: int
    is_last: bool
    drafts: list[int]


class Generation:
    """Generates tokens after ``sequence`` and ``pending``; :func:`run_step` runs them.

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
        speculation: the drafts, begun with the context.

    Attributes:
        sequence: as the argument; until the end it may hold drafts after the tokens of the context.
        pending: the end of the context: the tokens that no logits were taken after.
        finish_reason: why it ended; None until then.
        constraint: as the argument, after the tokens so far.
        speculation: as the argument.
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
        speculation: Speculation | None = None,
    ) -> None:
        self.sequence: CachedSequence = sequence
        self.speculation = speculation
        self.pending: list[int] = list(pending)
        self.finish_reason: FinishReason | None = None
        self._config = config
        self._cancelled = cancelled
        self.constraint = constraint
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
        self._sampler = RowSampler(config.sampling, config.seed, seen, vocab_size, logprobs=config.logprobs)
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._texts: list[str] = []
        self._stop_texts = StopTexts(config.stop)
        self._stop_token_id: int | None = None
        self._tokenizer = tokenizer
        self._stream: TokenStream | None = None
        if tokenizer is not None:
            self._stream = stream_after_text(tokenizer) if continues else tokenizer.stream()
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

    def remember_prompt(self) -> None:
        """Keep the recurrent states of a prompt that has just been run, before a token is chosen.

        A template may drop what is generated now, so the next prompt may agree up to here and no further. Whole pages are
        kept, so the sequence goes on in its last one. A layer for further tokens still has to write to the pages; its source
        of drafts keeps the prompt after that.
        """
        if self._prompt_ended is None and self.sequence.slots is not None and self.sequence.hidden is None:
            self.sequence.cache.remember(self.sequence, whole_pages=True)

    def next_draw(self) -> Draw:
        """Return what the next row of logits is sampled for."""
        return Draw(self._sampler, self._position, None if self.constraint is None else self.constraint.allowed())

    def take(self, logits: npt.NDArray[np.float32], choice: Choice | GrammarError) -> list[StreamPiece]:
        """Append the token that was chosen from ``logits`` and return the new pieces.

        Raises:
            NonFiniteError: the logits allow no choice.
            GrammarError: the grammar allows none.
        """
        if self._prompt_ended is None:
            self._prompt_ended = time.perf_counter()
        if isinstance(choice, Exception):
            raise choice
        token_id, logprobs = choice
        drawn = None
        if self.speculation is not None and self._config.verify == "distribution":
            drawn = self.speculation.drawn_draft()
        if drawn is not None:
            logits = logits[: self._vocab_size]
            token_id = self._verified(drawn, logits)
            logprobs = (
                None if self._config.logprobs is None else token_logprobs(logits, token_id, self._config.logprobs)
            )
        if token_id in self._config.stop_token_ids:
            logprobs = None
        self.pending = []
        pieces = self._accept(token_id, logprobs)
        while self.finish_reason is None and self.constraint is not None and logprobs is None:
            forced = self.constraint.forced()  # the only token allowed needs no logits
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
        if self.constraint is not None:
            self.constraint.accept(token_id)
        if self.speculation is not None:
            self.speculation.drafts.accept(token_id)
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

    def draft(self, company: int) -> list[int]:
        """Return tokens to run after the pending ones, in a step that serves ``company`` texts."""
        if self.speculation is None or not self._token_ids:
            return []
        # a step gives a token more than it has drafts, and none may be beyond the end
        most = min(self._config.max_new_tokens - len(self._token_ids), self._most_tokens - self._position) - 1
        if most < 1 or len(self.pending) > MOST_DRAFTS:
            return []
        drafts = self.speculation.drafts.propose(min(most, MOST_DRAFTS), company)
        if self._config.verify == "distribution":
            return drafts  # each has a part in the probabilities of its token, also one that is never run
        for index, token_id in enumerate(drafts):
            if token_id in self._config.stop_token_ids or token_id >= self._vocab_size:
                drafts = drafts[:index]  # nothing is run after these
                break
        return drafts if self.constraint is None else drafts[: self.constraint.count_allowed(drafts)]

    def take_ahead(self) -> list[StreamPiece] | None:
        """Choose the next token from logits of an earlier step; None if there are none.

        Without them the sequence is cut after the last draft that became part of the text.
        """
        assert self.speculation is not None
        logits = self.speculation.follow(self.pending)
        if logits is not None:
            return self.take(logits, sample_rows(logits[None], [self.next_draw()])[0])
        self._drop_drafts()
        return None

    def _verified(self, drawn: tuple[int, Candidates], logits: npt.NDArray[np.float32]) -> int:
        """Return a token with the probabilities of ``logits``: the draft, or another one."""
        from lattice_inference.generate.rejection import Candidates, verified_token

        target = Candidates(*self._sampler.distribution(logits, self.next_draw().allowed))
        return verified_token(target, drawn[1], drawn[0], self._config.seed, self._position)

    def take_all_ahead(self) -> list[StreamPiece]:
        """Choose tokens from logits of an earlier step, as many as there are."""
        pieces: list[StreamPiece] = []
        while self.finish_reason is None and (taken := self.take_ahead()) is not None:
            pieces += taken
        return pieces

    def move_to(self, sequence: CachedSequence) -> None:
        """Go on in another sequence, which holds a beginning of the context."""
        context = self.context()
        self.sequence.close()
        self.sequence, self.pending = sequence, list(context[sequence.length :])

    def context(self) -> tuple[int, ...]:
        """Return the tokens so far, without drafts."""
        return (*self.sequence.token_ids[: self._position - len(self.pending)], *self.pending)

    def _drop_drafts(self, *, runs_on: bool = True) -> None:
        """Cut the sequence after the context.

        Drafted tokens at the context's end are kept if the text runs on.
        """
        assert self.speculation is not None
        kept = self.speculation.drop(self.pending)
        if runs_on:
            del self.pending[:kept]
        length = self._position - len(self.pending)
        if self.sequence.length > length:
            self.sequence.rewind(length)

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
            drafted_tokens=0 if self.speculation is None else self.speculation.drafted_tokens,
            accepted_tokens=0 if self.speculation is None else self.speculation.accepted_tokens,
        )

    def cancel(self) -> StreamPiece | None:
        """End the generation, if it has not ended."""
        return None if self.finish_reason is not None else self._finish(FinishReason.CANCELLED)

    def close(self) -> None:
        """Free the sequence and the source of drafts, where both are of this generation alone."""
        self.sequence.close()
        if self.speculation is not None:
            self.speculation.drafts.close()

    def _text_of(self, token_id: int) -> str:
        """Return a token's text; an id in a gap of the vocabulary has none."""
        if self._stream is None or self._tokenizer is None or self._tokenizer.id_to_token(token_id) is None:
            return ""
        shown = None if self.constraint is None else self.constraint.shown.get(token_id)
        if shown is None:
            return self._stream.push(token_id)
        before, self._stream = self._stream.finish(), stream_after_text(self._tokenizer)
        return before + shown

    def _finish(self, reason: FinishReason) -> StreamPiece | None:
        self.finish_reason = reason
        self._ended = time.perf_counter()
        if self.speculation is not None:
            self._drop_drafts(runs_on=False)  # as without drafts, what was chosen last is not run
        text = self._stop_texts.push("" if self._stream is None else self._stream.finish())
        if self._stop_texts.matched is None:
            text += self._stop_texts.finish()
        self._texts.append(text)
        return StreamPiece(text) if text else None


def advance(model: CausalLanguageModel, generation: Generation, most_tokens: int) -> list[StreamPiece]:
    """Run one step of a generation and return the new pieces.

    A step runs at most ``most_tokens`` of the context, so it is bounded for a prompt of any length. Drafts come on top of
    them. If an earlier step has logits left, one token is taken from them and no step is run, so the generation can be
    ended between any two tokens.
    """
    last = generation.check()
    if generation.finish_reason is not None:
        return _given(last)
    if generation.speculation is not None:
        taken = generation.take_ahead()
        if taken is not None:
            return taken
    count = min(len(generation.pending), most_tokens)
    is_last = count == len(generation.pending)
    drafts = generation.draft(company=1) if is_last and generation.speculation is not None else []
    taker = Taker(0, generation, count, is_last, drafts)
    try:
        chosen = run_step(model, [taker])
    except (NonFiniteError, CacheFullError):
        if not taker.drafts:
            raise
        # a draft may have caused it, and without drafts the text would go on
        chosen = run_step(model, without_drafts([taker]))
    pieces: list[StreamPiece] = []
    for _, logits, choice in chosen:
        generation.remember_prompt()
        pieces += generation.take(logits, choice)
    return pieces


def run_step(
    model: CausalLanguageModel, takers: Sequence[Taker]
) -> list[tuple[Taker, npt.NDArray[np.float32], Choice | GrammarError]]:
    """Run tokens of several generations in one call of the model.

    Return the logits and the choice of each whose context ended, or the error of its grammar. If the call raises, nothing
    has changed.
    """
    from lattice_inference.generate.causal_language_model import Extension

    extensions: list[Extension] = []
    constraints: list[Constraint] = []
    before = []
    for _, generation, count, is_last, drafts in takers:
        ids = np.array([*generation.pending[:count], *drafts], np.int32)
        extensions.append(Extension(generation.sequence, ids, "all" if drafts else "last" if is_last else "none"))
        before.append(generation.sequence.length)
        if is_last and generation.constraint is not None:
            constraints.append(generation.constraint)
    masks = _begin_masks(model, constraints) if constraints else None
    try:
        logits = model.forward(extensions)
    finally:  # after an interrupt a sequence holds all of its new tokens or none
        if masks is not None:
            masks.finish()
        for taker, length in zip(takers, before, strict=True):
            del taker.generation.pending[: taker.generation.sequence.length - length]
    row = 0
    chosen: list[Taker] = []
    draws, rows = [], []
    results: list[tuple[Taker, npt.NDArray[np.float32], Choice | GrammarError]] = []
    for taker in takers:
        if taker.drafts:
            assert taker.generation.speculation is not None
            row += taker.tokens - 1  # several tokens without a choice were pending
            taker.generation.speculation.hold(logits[row : row + 1 + len(taker.drafts)], taker.drafts)
        if taker.is_last:
            try:
                draws.append(taker.generation.next_draw())
                chosen.append(taker)
                rows.append(row)
            except GrammarError as error:  # of this text alone
                results.append((taker, logits[row], error))
            row += 1 + len(taker.drafts)
    for taker, row, choice in zip(chosen, rows, sample_rows(logits, draws, rows), strict=True):
        results.append((taker, logits[row], choice))
    return results


def _begin_masks(model: CausalLanguageModel, constraints: Sequence[Constraint]) -> MasksAhead | None:
    """Let the masks of the next tokens be made while the model runs, where that saves time."""
    from lattice_inference.grammar.masks_ahead import begin_masks

    return begin_masks(constraints, has_idle_processors=model.device != "cpu")


def without_drafts(takers: Sequence[Taker]) -> list[Taker]:
    """Return a step's work without its drafts."""
    return [taker._replace(drafts=[]) for taker in takers]


def _given(piece: StreamPiece | None) -> list[StreamPiece]:
    return [] if piece is None else [piece]


def stream_after_text(tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> TokenStream:
    """Return a stream in the middle of a text, which keeps the next token's leading blank."""
    stream = tokenizer.stream(skip_special_tokens=skip_special_tokens)
    text = "".join([stream.push(token_id) for token_id in tokenizer.encode("a", add_special_tokens=False).ids.tolist()])
    return stream if text == "a" else tokenizer.stream(skip_special_tokens=skip_special_tokens)
