"""``/v1/completions``: texts after prompts that are taken as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from lattice_inference.errors import GrammarError, LatticeError
from lattice_inference.generate.config import MOST_LOGPROBS, GenerateConfig
from lattice_inference.generate.prompt_logprobs import prompt_logprobs
from lattice_inference.generate.prompt_tokens import prompt_ids
from lattice_inference.generate.result import GenerateResult
from lattice_inference.serve.answers import finish_reason, merged, usage
from lattice_inference.serve.api_errors import ApiError, refusal_of
from lattice_inference.serve.fields import Fields
from lattice_inference.serve.generation_fields import Asked, asked_of, room_for
from lattice_inference.serve.generation_route import answer_generation
from lattice_inference.serve.grammar_fields import grammar_field, written_grammar
from lattice_inference.serve.state import RequestNote, ServerState
from lattice_inference.serve.token_texts import TextOffsets, TokenTexts
from lattice_inference.serve.token_times import timed

if TYPE_CHECKING:
    from lattice_inference.generate.engine import Engine
    from lattice_inference.generate.engine_request import EngineStream
    from lattice_inference.generate.sampler import TokenLogprobs

__all__ = ["COMPLETION_FIELDS", "complete"]

COMPLETION_FIELDS = ("prompt", "echo", "grammar")
"""What completions take besides ``model`` and the fields of every generation."""

Prompts = list[str] | list[list[int]]


@dataclass(frozen=True)
class _Begun:
    engine: Engine
    streams: list[EngineStream]
    asked: Asked
    logprobs: int | None
    echoes: list[str]  # what stands before each text
    echoed_ids: list[list[int]]  # the prompts whose log-probabilities are told
    adapter: str | None


async def complete(request: Request, state: ServerState) -> Response:
    """Continue prompts, at once or by events."""
    return await answer_generation(request, state, begin=_begin, answer=_answer, events=_events)


def _begin(fields: Fields, state: ServerState, note: RequestNote) -> _Begun:
    """Check all of a request and hand it to its engine; runs in a thread."""
    note.model = fields.needed_text("model")
    base, adapter = state.served.find(note.model, "model")
    engine = state.served.models[base]
    asked = asked_of(fields, state.config.max_choices, least_tokens=0)
    prompts = _prompts(fields, state.config.max_inputs)
    logprobs = fields.integer("logprobs", 0, MOST_LOGPROBS)
    echoes = fields.flag("echo")
    grammar = grammar_field(fields)
    note.ignored = tuple(fields.finish(lenient=state.config.lenient))
    streams: list[EngineStream] = []
    echoed_ids: list[list[int]] = []
    try:
        config = GenerateConfig(**asked.settings, logprobs=logprobs, grammar=grammar and written_grammar(grammar))
        echoed = [_text_of(engine, prompt) if echoes else "" for prompt in prompts]
        for prompt in prompts:
            special = engine.config.special_tokens_in_text
            ids = prompt_ids(engine.tokenizer, prompt, begins=True, special_tokens_in_text=special)
            config = replace(config, max_new_tokens=room_for(engine, len(ids), asked.max_tokens))
            seconds = state.config.request_seconds
            streams += engine.submit_choices(ids, asked.n, config, adapter=adapter, deadline=seconds)
            note.prompt_tokens += len(ids)
            if echoes and logprobs is not None:
                echoed_ids.append(ids)
    except BaseException as error:
        for stream in streams:
            stream.cancel()
        if not isinstance(error, LatticeError):
            raise
        param = "grammar" if isinstance(error, GrammarError) else str(error).split()[0]
        raise refusal_of(error, param if param in {*asked.settings, "logprobs", "grammar"} else "prompt") from error
    texts = [text for text in echoed for _ in range(asked.n)]
    return _Begun(engine, streams, asked, logprobs, texts, echoed_ids, adapter)


def _prompts(fields: Fields, most: int) -> Prompts:
    given = fields.any("prompt")
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given and all(type(one) is int for one in given):
        return [given]  # one prompt, whose length is checked against the context
    if isinstance(given, list) and given and len(given) <= most:
        if all(isinstance(one, str) for one in given):
            return given
        if all(isinstance(one, list) and one and all(type(token) is int for token in one) for one in given):
            return given
    return fields.refuse("prompt", f"a text, token ids, or a list of up to {most:,} of either")


def _text_of(engine: Engine, prompt: str | Sequence[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    if engine.tokenizer is None:
        raise ApiError(400, "unsupported", "the model has no tokenizer, so token ids have no text", "echo")
    return engine.tokenizer.decode(prompt)


class _Logprobs:
    """The log-probabilities of one text, in the form of completions."""

    def __init__(self, engine: Engine) -> None:
        self._tokenizer = engine.tokenizer
        self._text_of = TokenTexts(engine.tokenizer)
        self._offsets = TextOffsets(engine.tokenizer)

    def begin(self, echo: str, ids: Sequence[int], told: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the entries of an echoed prompt, whose first token has none."""
        if not ids:
            return self.entries(())
        self._offsets = TextOffsets(self._tokenizer, echo)
        self._offsets.next(ids[0])
        rest = self.entries(told)
        return {
            "tokens": [self._text_of(ids[0]), *rest["tokens"]],
            "token_logprobs": [None, *rest["token_logprobs"]],
            "top_logprobs": [None, *rest["top_logprobs"]],
            "text_offset": [0, *rest["text_offset"]],
        }

    def entries(self, told: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the entries of the next tokens."""
        return {
            "tokens": [self._text_of(one.token_id) for one in told],
            "token_logprobs": [max(one.logprob, -9999.0) for one in told],
            "top_logprobs": [self._alternatives(one) for one in told],
            "text_offset": [self._offsets.next(one.token_id) for one in told],
        }

    def _alternatives(self, told: TokenLogprobs) -> dict[str, float]:
        """Return the most probable tokens by their texts; of those with one text, the most probable."""
        found: dict[str, float] = {}
        for token_id, logprob in told.top:
            found.setdefault(self._text_of(token_id), max(logprob, -9999.0))
        return found


async def _told_prompts(begun: _Begun) -> list[list[TokenLogprobs]]:
    """Return the log-probabilities of the echoed prompts, computed between steps."""
    prompts = []
    for ids in begun.echoed_ids:
        told: list[TokenLogprobs] = []
        parts = prompt_logprobs(begun.engine, ids, begun.logprobs or 0, begun.adapter)
        try:
            while (
                part := await asyncio.wrap_future(begun.engine.between_steps(partial(next, parts, None)))
            ) is not None:
                told += part
        finally:
            # a part that is being computed for a client that has left ends first
            begun.engine.between_steps(parts.close)
        prompts.append(told)
    return prompts


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {name: first[name] + second[name] for name in first}


def _echo_entries(
    begun: _Begun, writer: _Logprobs, echoed: Sequence[list[TokenLogprobs]], place: int
) -> dict[str, Any] | None:
    if not echoed:
        return None
    prompt = place // begun.asked.n
    return writer.begin(begun.echoes[place], begun.echoed_ids[prompt], echoed[prompt])


async def _answer(begun: _Begun, state: ServerState, note: RequestNote) -> dict[str, Any]:
    echoed = await _told_prompts(begun)
    results: dict[int, GenerateResult] = {}
    async for place, item in timed(merged(begun.streams, state.config.first_token_seconds), state.metrics, note):
        if isinstance(item, GenerateResult):
            results[place] = item
    choices = []
    for place in range(len(begun.streams)):
        logprobs = None
        if begun.logprobs is not None:
            writer = _Logprobs(begun.engine)
            before = _echo_entries(begun, writer, echoed, place)
            logprobs = writer.entries(results[place].logprobs or ())
            logprobs = logprobs if before is None else _joined(before, logprobs)
        text = begun.echoes[place] + results[place].text
        reason = finish_reason(results[place])
        choices.append({"index": place, "text": text, "logprobs": logprobs, "finish_reason": reason})
    return {**_head(note), "choices": choices, "usage": usage(results, note, begun.asked.n)}


async def _events(begun: _Begun, state: ServerState, note: RequestNote) -> AsyncGenerator[dict[str, Any], None]:
    head = _head(note)
    if begun.asked.includes_usage:
        head["usage"] = None

    def event(place: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        return {**head, "choices": [{"index": place, "text": text, "logprobs": logprobs, "finish_reason": reason}]}

    results: dict[int, GenerateResult] = {}
    logprobs = [_Logprobs(begun.engine) for _ in begun.streams]
    source = timed(merged(begun.streams, state.config.first_token_seconds), state.metrics, note)
    try:
        echoed = await _told_prompts(begun)
        for place, echo in enumerate(begun.echoes):
            if echo:
                yield event(place, echo, _echo_entries(begun, logprobs[place], echoed, place), None)
        async for place, item in source:
            if isinstance(item, GenerateResult):
                results[place] = item
                yield event(place, "", None, finish_reason(item))
            elif item.text or item.logprobs is not None:
                told = None if item.logprobs is None else logprobs[place].entries([item.logprobs])
                yield event(place, item.text, told, None)
        told_usage = usage(results, note, begun.asked.n)
        if begun.asked.includes_usage:
            yield {**head, "choices": [], "usage": told_usage}
    finally:
        await source.aclose()
        for stream in begun.streams:
            stream.cancel()


def _head(note: RequestNote) -> dict[str, Any]:
    return {"id": f"cmpl-{note.id}", "object": "text_completion", "created": note.stamp, "model": note.model}
