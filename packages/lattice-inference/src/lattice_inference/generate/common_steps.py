"""Requests that share a cache, in common steps of a model: an engine's, or a batch's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lattice_inference.errors import CacheFullError
from lattice_inference.generate.engine_request import EngineRequest
from lattice_inference.generate.engine_room import EngineRoom
from lattice_inference.generate.generation import Taker
from lattice_inference.generate.result import FinishReason, GenerateResult, StreamPiece
from lattice_inference.generate.scheduler import Scheduler, Step
from lattice_inference.generate.step_runner import Failures, StepRunner

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.preparation import Preparation
    from lattice_inference.generate.session_drafts import SessionDrafts
    from lattice_inference.lora.attached_adapter import AttachedAdapter
    from lattice_inference.state import KvCache

__all__ = ["CommonSteps"]

NO_ROOM = (
    "the cache has no room for this request's next tokens beside what other contexts hold: reset() or close() those, or "
    "raise cache_tokens"
)


class CommonSteps:
    """Runs requests in common steps: plan, draft, run, note what came.

    Requests may be made and added by any thread. Only the thread that calls :meth:`run` touches generations and sequences.

    Args:
        model: the model.
        prepare: what turns prompts and configurations into generations.
        drafts: opens the sources of drafts.
        cache: where keys, values and states are.
        step_tokens: the most tokens of prompts in a step.
        step_ms: how long a step should take while texts are being generated, in milliseconds.
        remembers: whether prompts are remembered while they are run.
        lock: guards all but generations and sequences.
        on_news: called under the lock for a request that has new pieces or has ended.

    Attributes:
        requests: those that have not ended, by name.
        room: the cache as the scheduler sees it.
        scheduler: plans the steps.
        runner: runs their rows.
        ended: how many requests finished, were cancelled, and failed.
        steps: calls of the model.
        prompt_tokens: tokens of prompts that were run.
        new_tokens: tokens that were generated.
    """

    def __init__(
        self,
        model: CausalLanguageModel,
        prepare: Preparation,
        drafts: SessionDrafts,
        cache: KvCache,
        *,
        step_tokens: int,
        step_ms: float,
        remembers: bool,
        lock: threading.RLock | None = None,
        on_news: Callable[[EngineRequest], None] = lambda request: None,
    ) -> None:
        self._prepare = prepare
        self._cache = cache
        self._remembers = remembers
        self._lock = threading.RLock() if lock is None else lock
        self._on_news = on_news
        self._names = 0
        self._begun: list[Hashable] = []  # since the last plan
        self.runner = StepRunner(model, prepare, drafts)
        self.requests: dict[Hashable, EngineRequest] = {}
        self.room = EngineRoom(cache, self.requests)
        self.scheduler = Scheduler(self.room, step_tokens=step_tokens, step_ms=step_ms)
        self.ended: dict[str, int] = dict.fromkeys(("finished", "cancelled", "failed"), 0)
        self.steps = self.prompt_tokens = self.new_tokens = 0

    def request(
        self,
        ids: Sequence[int],
        config: ResolvedConfig,
        adapter: AttachedAdapter | None,
        *,
        key: Hashable = None,
        priority: int = 0,
        deadline: float | None = None,
        cancelled: Callable[[], bool] | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> EngineRequest:
        """Return a new request, for :meth:`add`; see :class:`EngineRequest`."""
        with self._lock:
            name, self._names = self._names, self._names + 1
        return EngineRequest(
            name,
            ids,
            config,
            constraint=self._prepare.constraint(config),
            adapter=adapter,
            key=key,
            priority=priority,
            deadline=deadline,
            lock=self._lock,
            wake=wake,
            cancelled=cancelled,
        )

    def add(self, requests: Sequence[EngineRequest], *, is_one_prompt: bool = False) -> None:
        """Hand requests to the scheduler, all or none; those with nothing to generate end at once.

        Args:
            requests: from :meth:`request`.
            is_one_prompt: whether all have the prompt of the first one, which then runs it for the others.

        Raises:
            CacheFullError: the whole cache has no room for one of them.
            InvalidInputError: a key or a priority that the scheduler refuses.
        """
        with self._lock:
            try:
                for request in requests:
                    self._add(request, requests[0] if is_one_prompt else request)
            except BaseException:
                for request in requests:
                    if request.name in self.requests:
                        self.scheduler.finish(request.name)
                        del self.requests[request.name]
                raise

    def run(self) -> bool:
        """Run the next step and put its pieces into the outboxes; return whether there was one."""
        failures: Failures = {}
        with self._lock:
            decoding = [one for one in self.requests.values() if one.decodes and not one.is_parked]
        drafts = self.runner.draft(decoding, failures)
        with self._lock:
            for request, error in failures.items():
                self.end(request, error)
                drafts.pop(request.name, None)
            failures.clear()
            step = self.scheduler.plan(drafts={name: len(ids) for name, ids in drafts.items()})
            for name in step.failed:
                self.end(self.requests[name], CacheFullError(NO_ROOM))
            for name in step.preempted:
                self._free_followers(name)
            begun, self._begun = [*self._begun, *step.started], []
            rows = [(self.requests[row.name], row) for row in step.rows if row.name in self.requests]
            if not rows:
                return bool(step.failed)
        started = time.perf_counter()
        for name in begun:
            if name in self.room.sequences:
                self.runner.start(self.requests[name], self.room.sequences[name], failures)
        takers: list[Taker] = []
        owners: list[EngineRequest] = []
        for request, row in rows:
            if request in failures or request.generation is None or request.generation.finish_reason is not None:
                continue
            ahead = drafts[row.name] if row.drafts else []
            takers.append(Taker(len(owners), request.generation, row.tokens, row.is_last, ahead))
            owners.append(request)
        pieces = self.runner.run(takers, owners, failures)
        self._complete(step, time.perf_counter() - started, owners, pieces, failures)
        return True

    def run_to_end(self, requests: Sequence[EngineRequest]) -> list[GenerateResult]:
        """Run added requests to their ends and return their results.

        An error of one of them, of ``cancelled`` or an interrupt ends them all and is raised.
        """
        try:
            while self.requests:
                self.check()
                self.run()
                for request in requests:
                    request.outbox.clear()
                    if request.error is not None:
                        raise request.error
        except BaseException as error:
            for request in list(self.requests.values()):
                self.end(request, error)
            raise
        return [request.result for request in requests if request.result is not None]

    def check(self) -> None:
        """End requests that were cancelled; let those go on whose shared pages have come."""
        with self._lock:
            for request in list(self.requests.values()):
                generation = request.generation
                if generation is not None:
                    last = generation.check()
                    if last is not None:
                        request.outbox.append(last)
                    if generation.finish_reason is not None:
                        self.end(request)
                        continue
                self.let_follow(request)

    def let_follow(self, request: EngineRequest) -> None:
        """Let a request go on if the pages that it waits for have come, or will not come soon."""
        if request.follows and self._has_shared(request):
            request.follows = False
            self.scheduler.unpark(request.name)

    def end(self, request: EngineRequest, error: BaseException | None = None) -> None:
        """End a request: free what it holds, and give its reader the result or the error."""
        if request.is_ended:
            return
        if error is None:
            self._begin_followers(request)
        generation = request.generation
        sequence = self.room.sequences.pop(request.name, None)
        if error is None:
            if generation is None:
                request.result = request.unstarted_result(FinishReason.CANCELLED)
            else:
                last = generation.cancel()
                if last is not None:
                    request.outbox.append(last)
                request.result = generation.result()
                if sequence is not None:
                    self._cache.remember(sequence)
        request.error, request.is_ended = error, True
        if generation is not None:
            generation.close()
        if sequence is not None:
            sequence.close()
        self.scheduler.finish(request.name)
        del self.requests[request.name]
        self._free_followers(request.name)
        request.generation = request.constraint = request.leader = None
        is_cancelled = request.result is not None and request.result.finish_reason is FinishReason.CANCELLED
        self.ended["failed" if error is not None else "cancelled" if is_cancelled else "finished"] += 1
        self._on_news(request)

    def _add(self, request: EngineRequest, first: EngineRequest) -> None:
        room = self._prepare.max_tokens - len(request.token_ids)
        new_tokens = min(request.config.max_new_tokens, room)
        if new_tokens < 1:
            reason = FinishReason.CONTEXT_FULL if request.config.max_new_tokens else FinishReason.LENGTH
            request.result, request.is_ended = request.unstarted_result(reason), True
            self.ended["finished"] += 1
            return
        self.scheduler.submit(
            request.name,
            len(request.token_ids),
            new_tokens,
            now=time.monotonic(),
            key=request.key,
            priority=request.priority,
        )
        self.requests[request.name] = request
        if request is not first:
            self._follow(request, first, len(request.token_ids) - 1)
        else:
            self._follow(request, *self._leader_of(request))

    def _leader_of(self, request: EngineRequest) -> tuple[EngineRequest | None, int]:
        """Return whose prompt begins like that of a new request, and how many tokens are common.

        Of several requests it is the first with the longest beginning. None waits for one of a lower priority.
        """
        page = self.room.page_tokens
        ids = np.frombuffer(request.token_ids, np.int32)[:-1]
        beginning = request.token_ids[:page]
        found: EngineRequest | None = None
        most = page - 1
        for other in self.requests.values():
            if (
                other.priority < request.priority
                or other.token_ids[:page] != beginning
                or _digest(other.adapter) != _digest(request.adapter)
                or other is request
            ):
                continue
            theirs = np.frombuffer(other.token_ids, np.int32)[: len(ids)]
            differing = np.flatnonzero(ids[: len(theirs)] != theirs)
            common = int(differing[0]) if len(differing) else len(theirs)
            if common > most:
                found, most = other, common
        return found, most

    def _follow(self, request: EngineRequest, leader: EngineRequest | None, common: int) -> None:
        """Let a request wait for the pages that hold its first ``common`` tokens."""
        page = self.room.page_tokens
        request.shared_tokens = common // page * page
        if leader is not None and request.shared_tokens:
            request.leader, request.follows = leader, True
            self.scheduler.park(request.name)

    def _has_shared(self, request: EngineRequest) -> bool:
        """Whether the pages that a request waits for hold their tokens, or will not come soon."""
        leader = request.leader
        if leader is None or leader.is_ended or leader.stalled_since is not None:
            return True
        sequence = self.room.sequences.get(leader.name)
        return sequence is not None and sequence.length >= request.shared_tokens

    def _complete(
        self,
        step: Step,
        seconds: float,
        owners: Sequence[EngineRequest],
        pieces: Sequence[list[StreamPiece]],
        failures: Failures,
    ) -> None:
        """Note what a step did, and put its pieces into the outboxes."""
        with self._lock:
            self.steps += 1
            self.prompt_tokens += step.prompt_tokens
            lengths: dict[Hashable, tuple[int, int]] = {}
            is_last = {row.name: row.is_last for row in step.rows}
            for request, new in zip(owners, pieces, strict=True):
                generation = request.generation
                assert generation is not None
                if request in failures:
                    continue
                self.new_tokens += sum(piece.token_id is not None for piece in new)
                request.outbox.extend(new)
                if generation.finish_reason is None and is_last[request.name]:
                    if not request.decodes and self._remembers:
                        self._cache.remember(generation.sequence, whole_pages=True)
                    request.decodes = True
                    lengths[request.name] = generation.sequence.length, len(generation.pending)
                elif generation.finish_reason is None and self._remembers:
                    self._cache.remember(generation.sequence, whole_pages=True)
                if new:
                    self._on_news(request)
            for request, error in failures.items():
                self.end(request, error)
            for request in owners:
                if request.generation is not None and request.generation.finish_reason is not None:
                    self.end(request)
            self.scheduler.complete(step, seconds, lengths)

    def _begin_followers(self, leader: EngineRequest) -> None:
        """Let requests that wait for the pages of ``leader`` share them before they are freed."""
        sequence = self.room.sequences.get(leader.name)
        if sequence is None:
            return
        for request in self.requests.values():
            if not (request.follows and request.leader is leader and sequence.length >= request.shared_tokens):
                continue
            if self.scheduler.begin(request.name):
                request.follows = False
                self.scheduler.unpark(request.name)
                self._begun.append(request.name)

    def _free_followers(self, name: Hashable) -> None:
        """Let requests run that wait for pages which are lost; the first of them leads the others."""
        followers = [one for one in self.requests.values() if one.follows and one.leader and one.leader.name == name]
        for index, request in enumerate(followers):
            if index == 0:
                request.follows, request.leader = False, None
                self.scheduler.unpark(request.name)
            else:
                request.leader = followers[0]
                request.shared_tokens = min(request.shared_tokens, followers[0].shared_tokens)


def _digest(adapter: AttachedAdapter | None) -> str | None:
    return None if adapter is None else adapter.sha256
