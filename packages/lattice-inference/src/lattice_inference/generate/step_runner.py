"""Runs the rows of common steps: drafts, the model, the choice of tokens."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from lattice_inference.errors import CacheFullError, NonFiniteError
from lattice_inference.generate.generation import Generation, Taker, run_step, without_drafts
from lattice_inference.generate.session_drafts import SessionDrafts, watch_rows

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.engine_request import EngineRequest
    from lattice_inference.generate.preparation import Preparation
    from lattice_inference.generate.result import StreamPiece
    from lattice_inference.state import CachedSequence

__all__ = ["Failures", "StepRunner"]

Failures = dict["EngineRequest", Exception]
"""The requests that fail in a step, and their errors."""


class StepRunner:
    """Runs parts of steps for the thread that owns their generations, without a lock.

    A request that fails is noted in ``failures``, and the others go on.

    Args:
        model: the model.
        prepare: what turns prompts and configurations into generations.
        drafts: opens the sources of drafts.

    Attributes:
        rows: how many parts of requests were run so far.
        seconds: how long that took.
    """

    def __init__(self, model: CausalLanguageModel, prepare: Preparation, drafts: SessionDrafts) -> None:
        self._model = model
        self._prepare = prepare
        self._drafts = drafts
        self.rows = 0
        self.seconds = 0.0

    def draft(self, decoding: Sequence[EngineRequest], failures: Failures) -> dict[Hashable, list[int]]:
        """Return tokens to run after the pending ones, for texts that are being generated."""
        drafts: dict[Hashable, list[int]] = {}
        for request in decoding:
            generation = request.generation
            if generation is None or generation.speculation is None:
                continue
            try:
                ids = generation.draft(len(decoding))
            except Exception as error:
                failures[request] = error
                continue
            if ids:
                drafts[request.name] = ids
        return drafts

    def start(self, request: EngineRequest, sequence: CachedSequence, failures: Failures) -> None:
        """Begin or go on with a generation in the sequence that the scheduler began."""
        try:
            if request.generation is not None:
                request.generation.move_to(sequence)
                if request.generation.speculation is not None:
                    watch_rows(request.generation.speculation.drafts, sequence)
                return
            ids = list(request.token_ids)
            speculation = self._drafts.begin_one(request.config, ids, self._prepare.max_tokens, sequence)
            try:
                request.generation = Generation(
                    sequence,
                    ids[sequence.length :],
                    request.config,
                    self._prepare.tokenizer,
                    vocab_size=self._prepare.vocab_size,
                    most_tokens=self._prepare.max_tokens,
                    continues=self._prepare.continues(ids, request.config),
                    cancelled=request.shall_end,
                    constraint=request.constraint,
                    speculation=speculation,
                )
            except BaseException:
                if speculation is not None:
                    speculation.drafts.close()
                raise
        except Exception as error:
            failures[request] = error

    def run(self, takers: list[Taker], owners: Sequence[EngineRequest], failures: Failures) -> list[list[StreamPiece]]:
        """Run the rows of a step and return each one's new pieces; what fails is noted."""
        started = time.perf_counter()
        self.rows += len(takers)
        pieces: list[list[StreamPiece]] = [[] for _ in takers]
        chosen = None
        while takers and chosen is None:
            try:
                chosen = run_step(self._model, takers)
            except (NonFiniteError, CacheFullError) as error:
                if any(taker.drafts for taker in takers):  # a draft may have caused it
                    takers = without_drafts(takers)
                    continue
                bad = _takers_of(error, takers)
                for taker in bad:
                    failures[owners[taker.place]] = error
                takers = [taker for taker in takers if taker not in bad]
            except Exception as error:
                for taker in takers:
                    failures[owners[taker.place]] = error
                takers = []
        for taker, logits, choice in chosen or ():
            try:
                pieces[taker.place] += taker.generation.take(logits, choice)
                if taker.generation.speculation is not None:
                    pieces[taker.place] += taker.generation.take_all_ahead()
            except Exception as error:
                failures[owners[taker.place]] = error
        self.seconds += time.perf_counter() - started
        return pieces


def _takers_of(error: Exception, takers: Sequence[Taker]) -> list[Taker]:
    """Return whose rows are not finite; all of them if the error does not say."""
    with_logits = [taker for taker in takers if taker.is_last]
    rows = error.rows if isinstance(error, NonFiniteError) else ()
    return [with_logits[row] for row in rows if row < len(with_logits)] or list(takers)
