"""A generation as an iterator and as an asynchronous iterator."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
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
    """The steps of a generation and its unread pieces, which a stream and its session share.

    Steps and the end of the generation take turns, so a session that ends it waits for the present step.

    Attributes:
        refusal: the error for the reader if something other than the reader has ended the generation.
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
        """Whether there is, or may come, a piece to read."""
        return not self._is_left and (self.generation.finish_reason is None or bool(self.ready))

    def fill(self, is_left: Callable[[], bool] = bool) -> None:
        """Run steps until a piece is ready, the generation has ended or the reader has left."""
        with self._turn.waited():
            while not self.ready and self.generation.finish_reason is None and not is_left():
                try:
                    pieces = advance(self._model, self.generation, self._chunk_tokens)
                except Exception:
                    self.generation.cancel()
                    self.tell(None)
                    raise
                except BaseException:  # an interrupt: the text so far stays
                    with suppress(BusyError):  # it came while the text's decoder took or gave back its turn
                        self.generation.cancel()
                    self.tell(self.generation.result())
                    raise
                self.ready.extend(pieces)
                if self._is_left:
                    self._end()

    def end(self, refusal: str | None = None) -> None:
        """End the generation after the present step; later reads raise ``refusal``, if given."""
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
            return self.generation.context()

    def leave(self) -> None:
        """End a generation without a reader, without waiting; a running step ends it afterwards."""
        self._is_left = True
        try:
            with self._turn:
                self._end()
        except BusyError:
            return

    def tell(self, result: GenerateResult | None) -> None:
        """Call each registered function once with the result."""
        told, self.when_ended = self.when_ended, []
        for tell in told:
            tell(result)

    def _end(self) -> None:
        self.generation.cancel()
        self.ready.clear()
        self.tell(self.generation.result())


class GenerationStream(Iterator[StreamPiece]):
    """The pieces of a text as they are generated; made by :meth:`Session.stream`.

    It is an iterator and an asynchronous iterator. The pieces' texts, joined, are the result's text. Reading a piece runs a
    step; an asynchronous read runs it in another thread. If such a read is cancelled, the next read gets the piece. A
    stream is for one reader at a time; a second one gets a :class:`BusyError`.

    The session refuses other work until the stream has ended. It ends when it is read to its end, closed, or dropped, such
    as by ``break`` out of ``for piece in session.stream(...)``. A context manager; leaving it closes the stream.
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
            InvalidInputError: the generation has not ended.
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
        """End the generation now; closing twice is harmless.

        The text that was held back is part of the result.
        """
        self._steps.end()

    def when_ended(self, tell: Callable[[GenerateResult | None], None]) -> None:
        """Call ``tell`` once when the stream has ended: with the result, or ``None`` if it failed."""
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
