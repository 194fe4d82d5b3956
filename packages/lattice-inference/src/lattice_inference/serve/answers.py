"""Reads what engines generate for a request, and writes it in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lattice_inference.generate.result import FinishReason, GenerateResult, StreamPiece
from lattice_inference.serve.reasoning_split import ReasoningSplit
from lattice_inference.tools.answer import AnswerReader

if TYPE_CHECKING:
    from lattice_inference.generate.engine_request import EngineStream
    from lattice_inference.generate.sampler import TokenLogprobs
    from lattice_inference.serve.conversation import Conversation
    from lattice_inference.serve.state import RequestNote

__all__ = [
    "ChatReader",
    "Choice",
    "Delta",
    "finish_reason",
    "finished",
    "logprob_entry",
    "merged",
    "usage",
]

_QUEUED = 4
_LEAST_LOGPROB = -9999.0  # as OpenAI writes a probability of zero, which JSON cannot as a logarithm

Choice = tuple[int, "StreamPiece | GenerateResult"]


async def merged(streams: Sequence[EngineStream], first_seconds: float) -> AsyncGenerator[Choice, None]:
    """Yield the pieces of all streams as they come, each with its place, and the results.

    Leaving it cancels what still runs.

    Args:
        streams: of one request.
        first_seconds: how long it may take until the first piece of any.

    Raises:
        TimeoutError: the first piece is late, or the engine had no more time for a text.
        LatticeError: a text failed.
    """
    if len(streams) == 1:  # without a task and a queue, which cost as much as all the rest
        async with contextlib.aclosing(_pieces_of(streams[0], first_seconds)) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    queue: asyncio.Queue[tuple[int, StreamPiece | GenerateResult | Exception]] = asyncio.Queue(_QUEUED)

    async def read(place: int, stream: EngineStream) -> None:
        try:
            async for piece in stream:
                await queue.put((place, piece))
            await queue.put((place, finished(stream.result)))
        except Exception as error:
            await queue.put((place, error))

    tasks = [asyncio.create_task(read(place, stream)) for place, stream in enumerate(streams)]
    try:
        left = len(streams)
        seconds: float | None = first_seconds
        while left:
            async with asyncio.timeout(seconds):
                place, item = await queue.get()
            seconds = None
            if isinstance(item, Exception):
                raise item
            left -= isinstance(item, GenerateResult)
            yield place, item
    finally:
        for task in tasks:
            task.cancel()
        for stream in streams:
            stream.cancel()


async def _pieces_of(stream: EngineStream, first_seconds: float) -> AsyncGenerator[StreamPiece | GenerateResult, None]:
    try:
        with contextlib.suppress(StopAsyncIteration):
            async with asyncio.timeout(first_seconds):
                piece = await anext(stream)
            yield piece
            async for piece in stream:
                yield piece
        yield finished(stream.result)
    finally:
        stream.cancel()


def finished(result: GenerateResult) -> GenerateResult:
    """Return a result that is whole.

    Raises:
        TimeoutError: the engine ended it because it had no more time.
    """
    if result.finish_reason is FinishReason.CANCELLED:
        raise TimeoutError
    return result


def finish_reason(result: GenerateResult, has_calls: bool = False) -> str:
    """Return OpenAI's word for the end of a text."""
    if result.finish_reason in (FinishReason.LENGTH, FinishReason.CONTEXT_FULL):
        return "length"
    return "tool_calls" if has_calls else "stop"


def usage(results: Mapping[int, GenerateResult], note: RequestNote, n: int) -> dict[str, Any]:
    """Return the numbers of tokens of a request, and note them.

    Args:
        results: by their places; those of a prompt's ``n`` texts follow each other.
        note: of the request; it has the tokens of all prompts, each once.
        n: how many texts each prompt has.
    """
    # the first text of a prompt runs it; the others share what that one has computed
    reused = sum(
        min(results[place].reused_tokens for place in range(first, first + n)) for first in range(0, len(results), n)
    )
    note.new_tokens = sum(len(result.token_ids) for result in results.values())
    note.cached_tokens = min(reused, note.prompt_tokens)
    return {
        "prompt_tokens": note.prompt_tokens,
        "completion_tokens": note.new_tokens,
        "total_tokens": note.prompt_tokens + note.new_tokens,
        "prompt_tokens_details": {"cached_tokens": note.cached_tokens},
    }


def logprob_entry(told: TokenLogprobs, text_of: Callable[[int], str]) -> dict[str, Any]:
    """Return a token's log-probabilities as chat has them."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = text_of(token_id)
        known = None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
        return {"token": text, "logprob": max(logprob, _LEAST_LOGPROB), "bytes": known}

    return entry(told.token_id, told.logprob) | {"top_logprobs": [entry(*pair) for pair in told.top]}


@dataclass(frozen=True)
class Delta:
    """What a piece adds to an answer of a chat.

    Attributes:
        fields: the members of OpenAI's ``delta``; may be empty.
        logprobs: the entries of its tokens.
    """

    fields: dict[str, Any]
    logprobs: list[dict[str, Any]]


class ChatReader:
    """Tells the reasoning, the text and the calls of one answer apart, piece by piece."""

    def __init__(self, conversation: Conversation, text_of: Callable[[int], str], place: int) -> None:
        seed = conversation.call_seed if place == 0 else f"{conversation.call_seed}/{place}"
        self._calls = None if conversation.calls is None else AnswerReader(conversation.calls, seed)
        self._split = ReasoningSplit(conversation.reasoning)
        self._text_of = text_of
        self.reasoning = ""
        self.text = ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls that are whole, as a message holds them."""
        return [] if self._calls is None else [call.to_message() for call in self._calls.calls]

    def push(self, piece: StreamPiece) -> Delta:
        """Take the next piece."""
        text, calls = piece.text, []
        if self._calls is not None and text:
            text, deltas = self._calls.push(text)
            for delta in deltas:
                function: dict[str, Any] = {} if delta.name is None else {"name": delta.name}
                call: dict[str, Any] = {"index": delta.index, "function": {**function, "arguments": delta.arguments}}
                calls.append(call if delta.id is None else {**call, "id": delta.id, "type": "function"})
        fields = self._told(*self._split.push(text))
        if calls:
            fields["tool_calls"] = calls
        told = piece.logprobs
        return Delta(fields, [] if told is None else [logprob_entry(told, self._text_of)])

    def finish(self) -> Delta:
        """Return what was held back to the end."""
        held = "" if self._calls is None else self._calls.finish()
        thought, text = self._split.push(held)
        last_thought, last_text = self._split.finish()
        return Delta(self._told(thought + last_thought, text + last_text), [])

    def _told(self, thought: str, text: str) -> dict[str, Any]:
        self.reasoning += thought
        self.text += text
        return ({"reasoning_content": thought} if thought else {}) | ({"content": text} if text else {})
