"""A request of an engine, and the stream that its caller reads."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Self

from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.result import FinishReason, GenerateResult, StreamPiece
from lattice_inference.turn import Turn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from types import TracebackType

    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.generation import Generation
    from lattice_inference.grammar.constraint import Constraint
    from lattice_inference.lora.attached_adapter import AttachedAdapter

__all__ = ["EngineRequest", "EngineStream"]


class EngineRequest:
    """What an engine and the reader of a request share, under the engine's lock.

    Args:
        name: its name in the scheduler.
        token_ids: the prompt.
        config: how to generate.
        constraint: the grammar's constraint in its start state.
        adapter: what its tokens are run with.
        lock: the engine's.
        wake: wakes the engine's thread.
        cancelled: called before every step; true ends the request.

    Attributes:
        generation: its generation, once it was started.
        leader: an older request with the same beginning, whose pages it will share.
        shared_tokens: how many tokens these pages hold.
        follows: whether it waits until they have been computed.
        decodes: whether a token is chosen in every step.
        outbox: the unread pieces.
        stalled_since: while it is parked because its outbox was full: when that began, or its last read.
        is_cancelled: whether it shall end. The reader sets it without the lock.
        is_ended: whether nothing more comes.
        error: why it failed.
        result: its result, if it has ended without an error.
    """

    def __init__(
        self,
        name: int,
        token_ids: Sequence[int],
        config: ResolvedConfig,
        *,
        constraint: Constraint | None,
        adapter: AttachedAdapter | None,
        key: Hashable,
        priority: int,
        deadline: float | None,
        lock: threading.RLock,
        wake: Callable[[], None],
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.token_ids = array("i", token_ids)
        self.config = config
        self.constraint = constraint
        self.adapter = adapter
        self.key = key
        self.priority = priority
        self.deadline = deadline
        self.lock = lock
        self.wake = wake
        self._cancelled = cancelled
        self.generation: Generation | None = None
        self.leader: EngineRequest | None = None
        self.shared_tokens = 0
        self.follows = False
        self.decodes = False
        self.outbox: deque[StreamPiece] = deque()
        self.stalled_since: float | None = None
        self.is_cancelled = False
        self.is_ended = False
        self.error: BaseException | None = None
        self.result: GenerateResult | None = None
        self.has_news = threading.Condition(lock)
        self.waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @property
    def is_parked(self) -> bool:
        """Whether it waits for its reader, or for another prompt with the same beginning."""
        return self.follows or self.stalled_since is not None

    def shall_end(self) -> bool:
        """Return whether it was cancelled."""
        return self.is_cancelled or (self._cancelled is not None and self._cancelled())

    def context(self) -> Sequence[int]:
        """Return the tokens so far."""
        return self.token_ids if self.generation is None else self.generation.context()

    def unstarted_result(self, reason: FinishReason) -> GenerateResult:
        """Return the result of a request of which nothing was run."""
        return GenerateResult(
            text="",
            token_ids=(),
            finish_reason=reason,
            prompt_tokens=len(self.token_ids),
            reused_tokens=0,
            stop=None,
            stop_token_id=None,
            logprobs=None if self.config.logprobs is None else (),
            seed=self.config.seed,
            prompt_seconds=0.0,
            generate_seconds=0.0,
        )

    def has_piece(self) -> bool:
        """Return whether a read need not wait."""
        return bool(self.outbox) or self.is_ended

    def take(self, end: type[StopIteration | StopAsyncIteration]) -> StreamPiece:
        """Return the next piece; raise the error of the request, or ``end``."""
        if self.outbox:
            piece = self.outbox.popleft()
            if self.stalled_since is not None:
                self.stalled_since = time.monotonic()  # a slow reader is not one that has left
                self.wake()
            return piece
        if self.error is not None:
            raise self.error
        raise end


class EngineStream(Iterator[StreamPiece]):
    """The pieces of a request's text as they are generated; made by :meth:`Engine.submit`.

    It is an iterator and an asynchronous iterator. The pieces' texts, joined, are the result's text. A stream is for one
    reader at a time; a second one gets a :class:`BusyError`. A request that failed raises its error after its pieces.

    A stream that is dropped, such as by ``break`` out of a loop over ``engine.submit(...)``, cancels its request. A context
    manager; leaving it cancels too.
    """

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self._reader = Turn("this stream", "read it in one thread or task, and hand on what it gives")

    def __next__(self) -> StreamPiece:
        request = self._request
        with self._reader, request.lock:
            while not request.has_piece():
                request.has_news.wait()
            return request.take(StopIteration)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamPiece:
        import asyncio

        request = self._request
        loop = asyncio.get_running_loop()
        with self._reader:
            while True:
                with request.lock:
                    if request.has_piece():
                        return request.take(StopAsyncIteration)
                    news = loop.create_future()
                    request.waiter = loop, news
                await news

    @property
    def seed(self) -> int:
        """The seed of its draws: a session with it draws the same text."""
        return self._request.config.seed

    @property
    def result(self) -> GenerateResult:
        """The result, once the request has ended; unread pieces stay.

        Raises:
            InvalidInputError: it has not ended.
            LatticeError: its own error, if it failed.
        """
        request = self._request
        with request.lock:
            if request.error is not None:
                raise request.error
            if request.result is None:
                raise InvalidInputError("the request has not ended: iterate to the end, or cancel() it")
            return request.result

    def finish(self) -> GenerateResult:
        """Read to the end and return the result."""
        for _ in self:
            pass
        return self.result

    async def finish_async(self) -> GenerateResult:
        """Read to the end and return the result, without blocking the event loop."""
        async for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """End the request after the present step, from any thread; the text so far is its result."""
        self._request.is_cancelled = True
        self._request.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        request: EngineRequest | None = getattr(self, "_request", None)
        if request is not None:
            request.is_cancelled = True  # without the lock, as any thread may run this at any time
