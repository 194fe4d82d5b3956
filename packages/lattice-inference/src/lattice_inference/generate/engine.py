"""Generates for many callers at once, with the bits that each would have alone."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from lattice_inference.argument_checks import as_number, check_count
from lattice_inference.errors import CacheFullError, InvalidInputError
from lattice_inference.generate.config import GenerateConfig, ResolvedConfig
from lattice_inference.generate.engine_calls import EngineCalls
from lattice_inference.generate.engine_config import EngineConfig, EngineStats
from lattice_inference.generate.engine_request import EngineRequest, EngineStream
from lattice_inference.generate.engine_room import EngineRoom
from lattice_inference.generate.generation import Taker
from lattice_inference.generate.preparation import Preparation, Prompt
from lattice_inference.generate.result import FinishReason, StreamPiece
from lattice_inference.generate.sampler import check_below
from lattice_inference.generate.scheduler import Scheduler, Step
from lattice_inference.generate.session_drafts import SessionDrafts
from lattice_inference.generate.step_runner import StepRunner
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.lora.attached_adapter import AttachedAdapter
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["Engine", "choice_seed"]

Returned = TypeVar("Returned")

CLOSED = "this engine is closed: make another one"

GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: its multiples are far apart."""

MOST_CHOICES = 128

IDLE_SECONDS = 0.05
"""How long the thread waits when a plan has no rows although requests wait."""


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of the draws of a request's choice; that of choice 0 is ``seed``."""
    return (seed + choice * GOLDEN) % 2**64


class Engine:
    """Runs the requests of many callers in common steps of a model.

    >>> with Engine(model, EngineConfig(cache_tokens=8192)) as engine:                    # doctest: +SKIP
    ...     streams = [engine.submit(prompt) for prompt in prompts]
    ...     texts = [stream.finish().text for stream in streams]

    Each text, token and log-probability has the bits that :class:`Session` gives for the request alone.

    The engine owns a cache and a thread that runs the steps. All methods may be called from any thread. A request that
    fails ends alone; the engine goes on. A context manager; :meth:`close` ends what still runs.

    Args:
        model: made by :func:`load_model`.
        config: see :class:`EngineConfig`.
        tokenizer: by default the model's own. Without one, requests take and give token ids only.

    Raises:
        InvalidInputError: the configuration does not fit the model.
        CacheFullError: the process has too little address space for the cache.
    """

    def __init__(
        self, model: CausalLanguageModel, config: EngineConfig | None = None, *, tokenizer: Tokenizer | None = None
    ) -> None:
        if config is not None and not isinstance(config, EngineConfig):
            raise InvalidInputError(f"config is {value_text(config)}; expected an EngineConfig, or None")
        self.config: EngineConfig
        self.config = config = EngineConfig() if config is None else config
        self._prepare = Preparation(
            model,
            tokenizer,
            max_tokens=config.max_tokens,
            use_model_config=config.use_model_config,
            special_tokens_in_text=config.special_tokens_in_text,
        )
        self.model = model
        self.tokenizer: Tokenizer | None = self._prepare.tokenizer
        self.max_tokens: int = self._prepare.max_tokens
        self._cache = model.open_cache(
            tokens=config.cache_tokens or self.max_tokens,
            dtype=config.cache_dtype,
            page_tokens=config.page_tokens,
            prefix_bytes=config.prefix_bytes,
            sequences=config.sequences,
        )
        self._requests: dict[Hashable, EngineRequest] = {}
        self._room = EngineRoom(self._cache, self._requests)
        self._scheduler = Scheduler(
            self._room, step_tokens=config.step_tokens or model.step_tokens, step_ms=config.step_ms
        )
        self._drafts = SessionDrafts(model, self.tokenizer, self._prepare.vocab_size)
        self._runner = StepRunner(model, self._prepare, self._drafts)
        self._lock = threading.RLock()  # guards all but generations and sequences, which are the thread's
        self._has_work = threading.Condition(self._lock)
        self._is_idle = threading.Condition(self._lock)
        self._calls = EngineCalls()
        self._news: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._names = 0
        self._ended = dict.fromkeys(("finished", "cancelled", "failed"), 0)
        self._steps = self._prompt_tokens = self._new_tokens = 0
        self._refusal: str | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="lattice-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(
        self,
        prompt: Prompt,
        config: GenerateConfig | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        key: Hashable = None,
        adapter: str | None = None,
        special_tokens_in_text: bool | None = None,
    ) -> EngineStream:
        """Add a request and return the stream of its text.

        Args:
            prompt: a text, or token ids.
            config: how to generate.
            priority: each unit counts as 10 seconds of waiting; -1000 to 1000.
            deadline: after how many seconds the request ends as if it were cancelled.
            key: whose request it is; keys take turns.
            adapter: the name of one of ``model.adapters``.
            special_tokens_in_text: as in :meth:`Session.generate`.

        Raises:
            InvalidInputError: an argument is malformed, or the engine is closed or drained.
            TextTooLongError: the prompt does not fit into a context.
            CacheFullError: the whole cache has no room for the request.
            UnsupportedError: the model cannot do what the configuration asks for.
        """
        return self.submit_choices(
            prompt,
            1,
            config,
            priority=priority,
            deadline=deadline,
            key=key,
            adapter=adapter,
            special_tokens_in_text=special_tokens_in_text,
        )[0]

    def submit_choices(
        self,
        prompt: Prompt,
        n: int,
        config: GenerateConfig | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        key: Hashable = None,
        adapter: str | None = None,
        special_tokens_in_text: bool | None = None,
    ) -> list[EngineStream]:
        """Add a request for ``n`` texts after one prompt, which is run once; return their streams.

        Choice i draws by a seed that is made from the request's seed and i. ``stream.seed`` and the result tell it. The
        first choice has the request's seed. See :meth:`submit` for the other arguments and for the errors.
        """
        n = check_count("n", n, least=1, most=MOST_CHOICES)
        if deadline is not None:
            seconds = as_number(deadline)
            if seconds is None or not 0 < seconds <= 1e9:
                raise InvalidInputError(
                    f"deadline is {value_text(deadline)}; expected seconds, above 0 and at most 1e9"
                )
            deadline = time.monotonic() + seconds
        ids = self._prepare.prompt_ids(prompt, True, special_tokens_in_text)
        resolved = self._prepare.resolve(config)
        self._prepare.check_context(ids, resolved)
        self._drafts.check(resolved)
        bias = resolved.sampling.logit_bias
        check_below(np.fromiter(bias, np.intp, len(bias)), self._prepare.vocab_size, "logit_bias")
        found = self.model._adapter(adapter)
        requests = []
        for choice in range(n):
            own = replace(resolved, seed=choice_seed(resolved.seed, choice))
            requests.append(self._request(ids, own, found, key=key, priority=priority, deadline=deadline))
        with self._lock:
            self._check_open()
            try:
                for request in requests:
                    self._add(request, requests[0])
            except BaseException:
                for request in requests:
                    if request.name in self._requests:
                        self._scheduler.finish(request.name)
                        del self._requests[request.name]
                raise
            self._has_work.notify()
        return [EngineStream(request) for request in requests]

    def between_steps(self, function: Callable[[], Returned]) -> Future[Returned]:
        """Run a function in the engine's thread; return its future result.

        After each step one is run. Cancelling the future drops a function that has not begun. :meth:`drain` waits for none.

        Raises:
            InvalidInputError: ``function`` is not callable, or the engine is closed.
        """
        if not callable(function):
            raise InvalidInputError(f"function is {value_text(function)}; pass a function without arguments")
        with self._lock:
            if self._is_closed:
                raise InvalidInputError(self._refusal or CLOSED)
            future = self._calls.add(function)
            self._has_work.notify()
        return future

    def stats(self) -> EngineStats:
        """Return what the engine does and has done."""
        with self._lock:
            running = len(self._room.sequences)
            return EngineStats(
                waiting=len(self._requests) - running,
                running=running,
                parked=sum(_is_parked(request) for request in self._requests.values()),
                **self._ended,
                steps=self._steps,
                rows=self._runner.rows,
                step_seconds=self._runner.seconds,
                prompt_tokens=self._prompt_tokens,
                new_tokens=self._new_tokens,
                preemptions=self._scheduler.preemptions,
                cache_pages=self._room.pages,
                used_pages=self._cache.used_pages,
                remembered_pages=self._cache.remembered_pages,
            )

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests, and wait until those that are here have ended.

        Args:
            timeout: how many seconds to wait, at most.

        Returns:
            Whether all have ended.
        """
        seconds = None if timeout is None else as_number(timeout)
        if timeout is not None and (seconds is None or not 0 <= seconds <= 1e6):
            raise InvalidInputError(f"timeout is {value_text(timeout)}; expected seconds, 0 to 1e6, or None")
        with self._lock:
            self._refusal = self._refusal or "this engine takes no more requests: drain() was called"
            return self._is_idle.wait_for(lambda: not self._requests, seconds)

    def close(self) -> None:
        """End the thread after its present step, and free the cache; closing twice is harmless.

        The readers of requests that have not ended get an :class:`InvalidInputError`.
        """
        with self._lock:
            self._refusal, self._is_closed = CLOSED, True
            self._has_work.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise InvalidInputError(self._refusal)

    def _request(
        self,
        ids: Sequence[int],
        config: ResolvedConfig,
        adapter: AttachedAdapter | None,
        *,
        key: Hashable,
        priority: int,
        deadline: float | None,
    ) -> EngineRequest:
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
            wake=self._wake,
        )

    def _wake(self) -> None:
        with self._lock:
            self._has_work.notify()

    def _add(self, request: EngineRequest, first: EngineRequest) -> None:
        """Hand a request to the scheduler, unless there is nothing to generate."""
        room = self.max_tokens - len(request.token_ids)
        new_tokens = min(request.config.max_new_tokens, room)
        if new_tokens < 1:
            reason = FinishReason.CONTEXT_FULL if request.config.max_new_tokens else FinishReason.LENGTH
            request.result, request.is_ended = request.unstarted_result(reason), True
            self._ended["finished"] += 1
            return
        self._scheduler.submit(
            request.name,
            len(request.token_ids),
            new_tokens,
            now=time.monotonic(),
            key=request.key,
            priority=request.priority,
        )
        self._requests[request.name] = request
        if request is not first:
            self._follow(request, first, len(request.token_ids) - 1)
        else:
            self._follow(request, *self._leader_of(request))

    def _leader_of(self, request: EngineRequest) -> tuple[EngineRequest | None, int]:
        """Return whose prompt begins like that of a new request, and how many tokens are common.

        Of several requests it is the first with the longest beginning. None waits for one of a lower priority.
        """
        page = self._room.page_tokens
        ids = np.frombuffer(request.token_ids, np.int32)[:-1]
        beginning = request.token_ids[:page]
        found: EngineRequest | None = None
        most = page - 1
        for other in self._requests.values():
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
        page = self._room.page_tokens
        request.shared_tokens = common // page * page
        if leader is not None and request.shared_tokens:
            request.leader, request.follows = leader, True
            self._scheduler.park(request.name)

    # What follows runs in the engine's thread. Only this thread touches generations and sequences.

    def _run(self) -> None:
        error: BaseException = InvalidInputError(CLOSED)
        try:
            while self._await_work():
                if self._has_rows():
                    self._step()
                self._tell_readers()
                self._calls.run_next()
        except BaseException as problem:  # no request may wait for ever, whatever went wrong
            error = problem
        with self._lock:
            self._refusal = self._refusal or f"this engine has failed: {error}"
            for request in list(self._requests.values()):
                self._end(request, error)
            self._drafts.close()
            self._cache.close()
            self._is_closed = True
        self._calls.fail_all(error)  # without the lock, as this runs what waits for them
        self._tell_readers()

    def _await_work(self) -> bool:
        """Wait until a request can go on or has to end; return False once the engine is closed."""
        with self._lock:
            while not self._is_closed:
                self._look_after_requests()
                if self._has_rows() or self._calls:
                    return True
                self._tell_readers()
                self._has_work.wait(self._next_event())
            return False

    def _has_rows(self) -> bool:
        """Return whether a request can go on."""
        with self._lock:
            return any(not _is_parked(request) for request in self._requests.values())

    def _look_after_requests(self) -> None:
        """End requests that were cancelled or have no time left; let parked ones go on."""
        now = time.monotonic()
        for request in list(self._requests.values()):
            since = request.stalled_since
            if (
                request.is_cancelled
                or (request.deadline is not None and now >= request.deadline)
                or (since is not None and now >= since + self.config.stall_timeout)
            ):
                self._end(request)
            elif since is not None and len(request.outbox) <= self.config.outbox_pieces // 2:
                request.stalled_since = None
                self._scheduler.unpark(request.name)
            elif request.follows and self._has_shared(request):
                request.follows = False
                self._scheduler.unpark(request.name)

    def _has_shared(self, request: EngineRequest) -> bool:
        """Whether the pages that a request waits for hold their tokens, or will not come soon."""
        leader = request.leader
        if leader is None or leader.is_ended or leader.stalled_since is not None:
            return True
        sequence = self._room.sequences.get(leader.name)
        return sequence is not None and sequence.length >= request.shared_tokens

    def _next_event(self) -> float | None:
        """Return the seconds until a parked request has to end."""
        times = [request.deadline for request in self._requests.values() if request.deadline is not None]
        times += [
            request.stalled_since + self.config.stall_timeout
            for request in self._requests.values()
            if request.stalled_since is not None
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _step(self) -> None:
        """Plan a step, run it, and hand out what it gave."""
        failures: dict[EngineRequest, Exception] = {}
        with self._lock:
            decoding = [one for one in self._requests.values() if one.decodes and not _is_parked(one)]
        drafts = self._runner.draft(decoding, failures)
        with self._lock:
            for request, error in failures.items():
                self._end(request, error)
                drafts.pop(request.name, None)
            failures.clear()
            step = self._scheduler.plan(drafts={name: len(ids) for name, ids in drafts.items()})
            for name in step.failed:
                self._end(self._requests[name], CacheFullError("the cache has no room for this request's next tokens"))
            for name in step.preempted:
                self._free_followers(name)
            rows = [(self._requests[row.name], row) for row in step.rows if row.name in self._requests]
            if not rows and not step.failed:
                self._has_work.wait(0 if self._calls else IDLE_SECONDS)
                return
        started = time.perf_counter()
        for name in step.started:
            if name in self._requests:
                self._runner.start(self._requests[name], self._room.sequences[name], failures)
        takers: list[Taker] = []
        owners: list[EngineRequest] = []
        for request, row in rows:
            if request in failures or request.generation is None or request.generation.finish_reason is not None:
                continue
            ahead = drafts[row.name] if row.drafts else []
            takers.append(Taker(len(owners), request.generation, row.tokens, row.is_last, ahead))
            owners.append(request)
        pieces = self._runner.run(takers, owners, failures)
        self._complete(step, time.perf_counter() - started, owners, pieces, failures)

    def _complete(
        self,
        step: Step,
        seconds: float,
        owners: Sequence[EngineRequest],
        pieces: Sequence[list[StreamPiece]],
        failures: dict[EngineRequest, Exception],
    ) -> None:
        """Note what a step did, and put its pieces into the outboxes."""
        with self._lock:
            self._steps += 1
            self._prompt_tokens += step.prompt_tokens
            lengths: dict[Hashable, tuple[int, int]] = {}
            is_last = {row.name: row.is_last for row in step.rows}
            for request, new in zip(owners, pieces, strict=True):
                generation = request.generation
                assert generation is not None
                if request in failures:
                    continue
                self._new_tokens += sum(piece.token_id is not None for piece in new)
                request.outbox.extend(new)
                if generation.finish_reason is None and is_last[request.name]:
                    if not request.decodes and self.config.prefix_bytes:
                        self._cache.remember(generation.sequence, whole_pages=True)
                    request.decodes = True
                    lengths[request.name] = generation.sequence.length, len(generation.pending)
                elif generation.finish_reason is None and self.config.prefix_bytes:
                    self._cache.remember(generation.sequence, whole_pages=True)
                if new:
                    self._note_news(request)
            for request, error in failures.items():
                self._end(request, error)
            for request in owners:
                if request.generation is not None and request.generation.finish_reason is not None:
                    self._end(request)
            self._scheduler.complete(step, seconds, lengths)
            for request in owners:
                if len(request.outbox) >= self.config.outbox_pieces and not request.is_ended:
                    request.stalled_since = time.monotonic()
                    self._scheduler.park(request.name)

    def _end(self, request: EngineRequest, error: BaseException | None = None) -> None:
        """End a request: free what it holds, and give its reader the result or the error."""
        if request.is_ended:
            return
        generation = request.generation
        sequence = self._room.sequences.pop(request.name, None)
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
        self._scheduler.finish(request.name)
        del self._requests[request.name]
        self._free_followers(request.name)
        request.generation = request.constraint = request.leader = None
        is_cancelled = request.result is not None and request.result.finish_reason is FinishReason.CANCELLED
        self._ended["failed" if error is not None else "cancelled" if is_cancelled else "finished"] += 1
        self._note_news(request)
        if not self._requests:
            self._is_idle.notify_all()

    def _free_followers(self, name: Hashable) -> None:
        """Let requests run that wait for pages which are lost; the first of them leads the others."""
        followers = [one for one in self._requests.values() if one.follows and one.leader and one.leader.name == name]
        for index, request in enumerate(followers):
            if index == 0:
                request.follows, request.leader = False, None
                self._scheduler.unpark(request.name)
            else:
                request.leader = followers[0]
                request.shared_tokens = min(request.shared_tokens, followers[0].shared_tokens)

    def _note_news(self, request: EngineRequest) -> None:
        request.has_news.notify_all()
        if request.waiter is not None:
            self._news.append(request.waiter)
            request.waiter = None

    def _tell_readers(self) -> None:
        """Wake the event loops of readers, each once."""
        with self._lock:
            news, self._news = self._news, []
        of_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for loop, future in news:
            of_loop.setdefault(loop, []).append(future)
        for loop, futures in of_loop.items():
            try:
                loop.call_soon_threadsafe(_answer, futures)
            except RuntimeError:  # the loop is closed, and its readers with it
                continue


def _digest(adapter: AttachedAdapter | None) -> str | None:
    return None if adapter is None else adapter.sha256


def _is_parked(request: EngineRequest) -> bool:
    return request.follows or request.stalled_since is not None


def _answer(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
