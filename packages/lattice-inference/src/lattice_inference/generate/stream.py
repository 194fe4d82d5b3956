"""A generation as an iterator, for a loop or for an event loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from lattice_inference.errors import BusyError, InvalidInputError
from lattice_inference.generate.generation import Generation, advance
from lattice_inference.generate.result import GenerateResult, StreamPiece
from lattice_inference.turn import Turn

if TYPE_CHECKING:
    from types import TracebackType

    from lattice_inference.generate.causal_language_model import CausalLanguageModel

__all__ = ["GenerationStream", "Steps"]


class Steps:
    """The steps of one generation and the pieces not read yet: what a stream and its session share.

    Steps and their end take turns, so a session that ends them waits for the present step.

    Attributes:
        refusal: why a reader may not read on, where something other than the reader has ended the generation.
    """

    def __init__(self, model: CausalLanguageModel, generation: Generation, chunk_tokens: int) -> None:
        self._model = model
        self.generation = generation
        self._chunk_tokens = chunk_tokens
        self.ready: deque[StreamPiece] = deque()
        self.when_ended: list[Callable[[GenerateResult | None], None]] = []
        self.refusal: str | None = None
        self._is_left = False
        self._turn = Turn("this stream", "wait for its step")

    @property
    def is_open(self) -> bool:
        """Whether there is, or may be, a piece to read."""
        return not self._is_left and (self.generation.finish_reason is None or bool(self.ready))

    def fill(self, is_left: Callable[[], bool] = bool) -> None:
        """Have a piece ready, or the generation ended, unless who asked has left meanwhile."""
        with self._turn.waited():
            while not self.ready and self.generation.finish_reason is None and not is_left():
                try:
                    (pieces,) = advance(self._model, [self.generation], self._chunk_tokens)
                except Exception:
                    self.generation.cancel()
                    self.tell(None)
                    raise
                except BaseException:  # an interrupt: what there is of the text stays
                    self.generation.cancel()
                    self.tell(self.generation.result())
                    raise
                self.ready.extend(pieces)
                if self._is_left:
                    self._end()

    def end(self, refusal: str | None = None) -> None:
        """End the generation after the present step; ``refusal`` is what a reader of pieces to come is told."""
        with self._turn.waited():
            if self.is_open:
                self.refusal = refusal
            self._end()

    def context(self) -> tuple[int, ...]:
        """Return the tokens so far.

        Raises:
            BusyError: a step runs.
        """
        with self._turn:
            return (*self.generation.sequence.token_ids, *self.generation.pending)

    def leave(self) -> None:
        """End a generation without a reader; a running step is not waited for, and ends it."""
        self._is_left = True
        try:
            with self._turn:
                self._end()
        except BusyError:
            return

    def tell(self, result: GenerateResult | None) -> None:
        """Tell the result to those who asked for it, once."""
        told, self.when_ended = self.when_ended, []
        for tell in told:
            tell(result)

    def _end(self) -> None:
        self.generation.cancel()
        self.ready.clear()
        self.tell(self.generation.result())


class GenerationStream(Iterator[StreamPiece]):
    """The pieces of a text as they are generated; made by :meth:`Session.stream`.

    An iterator and an asynchronous one. Their texts put together are the result's text. A step runs when a piece is asked
    for, in another thread where the asking is asynchronous; where that is cancelled, the next asking gets the piece. For
    one reader at a time: another one beside it gets a :class:`BusyError`.

    The session refuses other work until the stream has ended: it was read to its end, or closed, or dropped, as by
    ``break`` out of ``for piece in session.stream(...)``. A context manager; leaving it closes the stream.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._reader = Turn("this stream", "read it in one thread or task, and hand on what it gives")

    def __next__(self) -> StreamPiece:
        with self._reader:
            self._steps.fill()
            return self._take(StopIteration)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamPiece:
        import asyncio

        left = threading.Event()
        with self._reader:
            try:
                await asyncio.to_thread(self._steps.fill, left.is_set)
            except asyncio.CancelledError:
                left.set()
                raise
            return self._take(StopAsyncIteration)

    def _take(self, end: type[StopIteration | StopAsyncIteration]) -> StreamPiece:
        steps = self._steps
        if steps.ready:
            return steps.ready.popleft()
        if steps.refusal is not None:
            raise InvalidInputError(steps.refusal)
        steps.tell(steps.generation.result())
        raise end

    @property
    def result(self) -> GenerateResult:
        """The result, once the generation has ended.

        Raises:
            InvalidInputError: it has not.
        """
        if self._steps.generation.finish_reason is None:
            raise InvalidInputError("the generation has not ended: iterate to the end, or close it")
        return self._steps.generation.result()

    @property
    def pending(self) -> list[int]:
        """The tokens of the context that the cache does not hold yet."""
        return list(self._steps.generation.pending)

    def finish(self) -> GenerateResult:
        """Run to the end and return the result."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """End the generation where it is; what was held back of the text is in the result. Twice is harmless."""
        self._steps.end()

    def when_ended(self, tell: Callable[[GenerateResult | None], None]) -> None:
        """Have ``tell`` called once with the result when the stream has ended, or with ``None`` if it failed."""
        self._steps.when_ended.append(tell)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        steps: Steps | None = getattr(self, "_steps", None)
        if steps is not None:
            steps.leave()
