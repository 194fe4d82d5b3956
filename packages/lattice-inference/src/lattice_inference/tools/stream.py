"""An answer that may call tools, piece by piece, and as a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from lattice_inference.generate.result import GenerateResult, StreamPiece
from lattice_inference.tools.answer import AnswerReader

if TYPE_CHECKING:
    from types import TracebackType

    from lattice_inference.generate.stream import GenerationStream
    from lattice_inference.tools.grammar import ToolGrammar

__all__ = ["ToolStream", "read_answer"]


def read_answer(grammar: ToolGrammar, seed: str, result: GenerateResult) -> GenerateResult:
    """Return a generation's result with its text and its calls told apart."""
    reader = AnswerReader(grammar, seed)
    shown, _ = reader.push(result.text)
    return replace(result, text=shown + reader.finish(), tool_calls=reader.calls)


class ToolStream(Iterator[StreamPiece]):
    """The pieces of an answer that may call tools; made by :meth:`Chat.stream`.

    As :class:`GenerationStream`, whose methods it has. A piece's ``text`` is the answer's own, and ``tool_calls`` is what
    it adds to calls.

    Args:
        stream: the answer as the model writes it.
        grammar: that it obeys.
        seed: the ids of calls are made of it.
    """

    def __init__(self, stream: GenerationStream, grammar: ToolGrammar, seed: str) -> None:
        self._stream = stream
        self._grammar = grammar
        self._seed = seed
        self._reader: AnswerReader | None = AnswerReader(grammar, seed)

    def __next__(self) -> StreamPiece:
        try:
            return self._read(next(self._stream))
        except StopIteration:
            last = self._last()
            if last is None:
                raise
            return last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamPiece:
        try:
            return self._read(await self._stream.__anext__())
        except StopAsyncIteration:
            last = self._last()
            if last is None:
                raise
            return last

    def _read(self, piece: StreamPiece) -> StreamPiece:
        assert self._reader is not None  # a stream that has ended gives no piece
        text, deltas = self._reader.push(piece.text)
        return replace(piece, text=text, tool_calls=tuple(deltas))

    def _last(self) -> StreamPiece | None:
        """Return the text that was held back to the end, once."""
        reader, self._reader = self._reader, None
        text = "" if reader is None else reader.finish()
        return StreamPiece(text) if text else None

    @property
    def result(self) -> GenerateResult:
        """The result, once the generation has ended; see :attr:`GenerationStream.result`."""
        return read_answer(self._grammar, self._seed, self._stream.result)

    def finish(self) -> GenerateResult:
        """Run to the end and return the result."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """End the generation now; closing twice is harmless."""
        self._stream.close()

    def when_ended(self, tell: Callable[[GenerateResult | None], None]) -> None:
        """Call ``tell`` once when the stream has ended: with the result, or ``None`` if it failed."""
        self._stream.when_ended(
            lambda result: tell(None if result is None else read_answer(self._grammar, self._seed, result))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
