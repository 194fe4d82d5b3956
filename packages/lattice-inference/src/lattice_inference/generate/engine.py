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
from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.common_steps import CommonSteps
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.engine_calls import EngineCalls
from lattice_inference.generate.engine_config import EngineConfig, EngineStats
from lattice_inference.generate.engine_forks import end_in_children
from lattice_inference.generate.engine_request import EngineRequest, EngineStream
from lattice_inference.generate.preparation import Preparation, Prompt
from lattice_inference.generate.sampler import check_below
from lattice_inference.generate.session_drafts import SessionDrafts
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["Engine", "choice_seed"]

Returned = TypeVar("Returned")

CLOSED = "this engine is closed: make another one"

FORKED = "this engine runs in the process that this one was forked from: make another one here"

GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: its multiples are far apart."""

MOST_CHOICES = 128

IDLE_SECONDS = 0.05
"""How long the thread waits when a plan has no rows although requests wait."""

LOOK_SECONDS = 0.5
"""How often a parked request is looked at: a stream that is dropped cannot wake the thread."""


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
    fails ends alone; the engine goes on. A context manager; :meth:`close` ends what still runs. A forked child has no such
    thread: there the engine and its streams are closed.

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
        self._drafts = SessionDrafts(model, self.tokenizer, self._prepare.vocab_size)
        self._lock = threading.RLock()  # guards all but generations and sequences, which are the thread's
        self._has_work = threading.Condition(self._lock)
        self._is_idle = threading.Condition(self._lock)
        self._calls = EngineCalls()
        self._news: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._steps = CommonSteps(
            model,
            self._prepare,
            self._drafts,
            self._cache,
            step_tokens=config.step_tokens or model.step_tokens,
            step_ms=config.step_ms,
            remembers=bool(config.prefix_bytes),
            lock=self._lock,
            on_news=self._note_news,
        )
        self._requests = self._steps.requests
        self._refusal: str | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="lattice-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        end_in_children(self, self._lock)

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
            requests.append(
                self._steps.request(ids, own, found, key=key, priority=priority, deadline=deadline, wake=self._wake)
            )
        with self._lock:
            self._check_open()
            self._steps.add(requests, is_one_prompt=True)
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
            running = len(self._steps.room.sequences)
            return EngineStats(
                waiting=len(self._requests) - running,
                running=running,
                parked=sum(request.is_parked for request in self._requests.values()),
                **self._steps.ended,
                steps=self._steps.steps,
                rows=self._steps.runner.rows,
                step_seconds=self._steps.runner.seconds,
                prompt_tokens=self._steps.prompt_tokens,
                new_tokens=self._steps.new_tokens,
                preemptions=self._steps.scheduler.preemptions,
                cache_pages=self._steps.room.pages,
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

    def _wake(self) -> None:
        with self._lock:
            self._has_work.notify()

    def _end_in_child(self) -> None:
        """Refuse what comes, and give readers an error.

        The cache stays, as a thread that is gone may hold its lock.
        """
        self._refusal, self._is_closed = self._refusal or FORKED, True
        for request in self._requests.values():
            request.error, request.is_ended = InvalidInputError(FORKED), True
        self._requests.clear()
        self._steps.room.sequences.clear()

    # What follows runs in the engine's thread. Only this thread touches generations and sequences.

    def _run(self) -> None:
        error: BaseException = InvalidInputError(CLOSED)
        try:
            while self._await_work():
                if self._has_rows():
                    is_idle = not self._steps.run()
                    with self._lock:
                        self._park_unread()
                        if is_idle and not self._calls:
                            self._has_work.wait(IDLE_SECONDS)
                self._tell_readers()
                self._calls.run_next()
        except BaseException as problem:  # no request may wait for ever, whatever went wrong
            error = problem
        with self._lock:
            self._refusal = self._refusal or f"this engine has failed: {error}"
            for request in list(self._requests.values()):
                self._steps.end(request, error)
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
            return any(not request.is_parked for request in self._requests.values())

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
                self._steps.end(request)
            elif since is not None and len(request.outbox) <= self.config.outbox_pieces // 2:
                request.stalled_since = None
                self._steps.scheduler.unpark(request.name)
            else:
                self._steps.let_follow(request)

    def _park_unread(self) -> None:
        """Let requests wait whose readers fall behind."""
        for request in self._requests.values():
            if len(request.outbox) >= self.config.outbox_pieces and request.stalled_since is None:
                request.stalled_since = time.monotonic()
                self._steps.scheduler.park(request.name)

    def _next_event(self) -> float | None:
        """Return the seconds until a parked request may have to end."""
        now = time.monotonic()
        times = [request.deadline for request in self._requests.values() if request.deadline is not None]
        for request in self._requests.values():
            if request.stalled_since is not None:
                times.append(min(request.stalled_since + self.config.stall_timeout, now + LOOK_SECONDS))
        return max(0.0, min(times) - now) if times else None

    def _note_news(self, request: EngineRequest) -> None:
        request.has_news.notify_all()
        if request.waiter is not None:
            self._news.append(request.waiter)
            request.waiter = None
        if not self._requests:
            self._is_idle.notify_all()

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


def _answer(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
