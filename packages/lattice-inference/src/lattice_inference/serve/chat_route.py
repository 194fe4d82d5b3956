"""``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from lattice_inference.errors import GrammarError, LatticeError
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.result import GenerateResult
from lattice_inference.serve.answers import ChatReader, finish_reason, merged, usage
from lattice_inference.serve.api_errors import refusal_of
from lattice_inference.serve.conversation import Conversation, conversation_of
from lattice_inference.serve.fields import Fields
from lattice_inference.serve.generation_fields import Asked, asked_of, chat_logprobs, room_for
from lattice_inference.serve.generation_route import answer_generation
from lattice_inference.serve.state import RequestNote, ServerState
from lattice_inference.serve.token_texts import TokenTexts
from lattice_inference.serve.token_times import timed

if TYPE_CHECKING:
    from lattice_inference.generate.engine import Engine
    from lattice_inference.generate.engine_request import EngineStream

__all__ = ["CHAT_FIELDS", "chat"]

CHAT_FIELDS = (
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "grammar", "chat_template_kwargs"),
    *("max_completion_tokens", "top_logprobs"),
)
"""What chat takes besides ``model`` and the fields of every generation."""


@dataclass(frozen=True)
class _Begun:
    """A request whose texts are being generated."""

    engine: Engine
    streams: list[EngineStream]
    conversation: Conversation
    asked: Asked
    logprobs: int | None

    def readers(self) -> list[ChatReader]:
        text_of = TokenTexts(self.engine.tokenizer)
        return [ChatReader(self.conversation, text_of, place) for place in range(len(self.streams))]


async def chat(request: Request, state: ServerState) -> Response:
    """Answer a conversation, at once or by events."""
    return await answer_generation(request, state, begin=_begin, answer=_answer, events=_events)


def _begin(fields: Fields, state: ServerState, note: RequestNote) -> _Begun:
    """Check all of a request and hand it to its engine; runs in a thread."""
    note.model = fields.needed_text("model")
    base, adapter = state.served.find(note.model, "model")
    engine = state.served.models[base]
    longest = fields.integer("max_completion_tokens", 1, 2**31 - 1)
    asked = asked_of(fields, state.config.max_choices)
    logprobs = chat_logprobs(fields)
    for name in CHAT_FIELDS:
        fields.any(name)
    note.ignored = tuple(fields.finish(lenient=state.config.lenient))
    conversation = conversation_of(fields, engine)
    note.prompt_tokens = len(conversation.ids)
    wanted = asked.max_tokens if longest is None else longest
    try:
        config = GenerateConfig(
            **asked.settings,
            max_new_tokens=room_for(engine, len(conversation.ids), wanted),
            logprobs=logprobs,
            grammar=conversation.grammar,
        )
        streams = engine.submit_choices(
            conversation.ids, asked.n, config, adapter=adapter, deadline=state.config.request_seconds
        )
    except LatticeError as error:
        param = str(error).split()[0]
        if isinstance(error, GrammarError):
            param = conversation.param
        elif param not in {*asked.settings, "logprobs"}:
            param = "messages"
        raise refusal_of(error, param) from error
    return _Begun(engine, streams, conversation, asked, logprobs)


async def _answer(begun: _Begun, state: ServerState, note: RequestNote) -> dict[str, Any]:
    """Return the whole answer."""
    readers, results = begun.readers(), {}
    logprobs: list[list[dict[str, Any]]] = [[] for _ in readers]
    async for place, item in timed(merged(begun.streams, state.config.first_token_seconds), state.metrics, note):
        if isinstance(item, GenerateResult):
            results[place] = item
            readers[place].finish()
        else:
            logprobs[place] += readers[place].push(item).logprobs
    choices = []
    for place, reader in enumerate(readers):
        calls = reader.tool_calls
        message: dict[str, Any] = {"role": "assistant", "content": reader.text if reader.text or not calls else None}
        message["refusal"] = None
        if reader.reasoning:
            message["reasoning_content"] = reader.reasoning
        if calls:
            message["tool_calls"] = calls
        told = None if begun.logprobs is None else {"content": logprobs[place], "refusal": None}
        reason = finish_reason(results[place], bool(calls))
        choices.append({"index": place, "message": message, "logprobs": told, "finish_reason": reason})
    return {**_head(note, "chat.completion"), "choices": choices, "usage": usage(results, note, begun.asked.n)}


async def _events(begun: _Begun, state: ServerState, note: RequestNote) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of an answer."""
    head = _head(note, "chat.completion.chunk")
    if begun.asked.includes_usage:
        head["usage"] = None

    def event(place: int, delta: dict[str, Any], logprobs: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
        told = {"content": logprobs, "refusal": None} if logprobs else None
        return {**head, "choices": [{"index": place, "delta": delta, "logprobs": told, "finish_reason": reason}]}

    readers, results = begun.readers(), {}
    source = timed(merged(begun.streams, state.config.first_token_seconds), state.metrics, note)
    try:
        for place in range(len(readers)):
            yield event(place, {"role": "assistant", "content": ""}, [], None)
        async for place, item in source:
            if isinstance(item, GenerateResult):
                results[place] = item
                last = readers[place].finish()
                if last.fields:
                    yield event(place, last.fields, [], None)
                yield event(place, {}, [], finish_reason(item, bool(readers[place].tool_calls)))
                continue
            delta = readers[place].push(item)
            if delta.fields or delta.logprobs:
                yield event(place, delta.fields, delta.logprobs, None)
        told = usage(results, note, begun.asked.n)
        if begun.asked.includes_usage:
            yield {**head, "choices": [], "usage": told}
    finally:
        await source.aclose()
        for stream in begun.streams:
            stream.cancel()


def _head(note: RequestNote, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{note.id}", "object": kind, "created": note.stamp, "model": note.model}
