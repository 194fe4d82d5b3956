"""A generation as an iterator, for a loop or for an event loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.generation import Generation, advance
from lattice_inference.generate.result import GenerateResult, StreamPiece

if TYPE_CHECKING:
    from types import TracebackType

    from lattice_inference.causal_language_model import CausalLanguageModel

__all__ = ["GenerationStream"]


class GenerationStream(Iterator[StreamPiece]):
    """The pieces of a text as they are generated; made by :meth:`Session.stream`.

    An iterator and an asynchronous one. Their texts put together are the result's text. A step runs when a piece is asked
    for, in another thread where the asking is asynchronous. A context manager; leaving it, :meth:`close` and whatever the
    session does next end the generation.
    """

    def __init__(self, model: CausalLanguageModel, generation: Generation, chunk_tokens: int) -> None:
        self._model = model
        self._generation = generation
        self._chunk_tokens = chunk_tokens
        self._ready: deque[StreamPiece] = deque()
        self._when_ended: list[Callable[[GenerateResult | None], None]] = []
        self._lock = threading.Lock()  # an asynchronous step that nobody waits for any more runs to its end

    def __next__(self) -> StreamPiece:
        with self._lock:
            while not self._ready:
                if self._generation.finish_reason is not None:
                    self._tell(self._generation.result())
                    raise StopIteration
                try:
                    (pieces,) = advance(self._model, [self._generation], self._chunk_tokens)
                except Exception:
                    self._generation.cancel()
                    self._tell(None)
                    raise
                except BaseException:  # an interrupt: what there is of the text stays
                    self._generation.cancel()
                    self._tell(self._generation.result())
                    raise
                self._ready.extend(pieces)
            return self._ready.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamPiece:
        import asyncio

        piece = await asyncio.to_thread(next, self, None)
        if piece is None:
            raise StopAsyncIteration
        return piece

    @property
    def result(self) -> GenerateResult:
        """The result, once the generation has ended.

        Raises:
            InvalidInputError: it has not.
        """
        if self._generation.finish_reason is None:
            raise InvalidInputError("the generation has not ended: iterate to the end, or close it")
        return self._generation.result()

    @property
    def pending(self) -> list[int]:
        """The tokens of the context that the cache does not hold yet."""
        return list(self._generation.pending)

    def finish(self) -> GenerateResult:
        """Run to the end and return the result."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """End the generation where it is; what was held back of the text is in the result. Twice is harmless."""
        with self._lock:
            self._generation.cancel()
            self._ready.clear()
            self._tell(self._generation.result())

    def when_ended(self, tell: Callable[[GenerateResult | None], None]) -> None:
        """Have ``tell`` called once with the result when the stream has ended, or with ``None`` if it failed."""
        self._when_ended.append(tell)

    def _tell(self, result: GenerateResult | None) -> None:
        told, self._when_ended = self._when_ended, []
        for tell in told:
            tell(result)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
