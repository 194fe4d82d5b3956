"""The steps of a request that generates: check it, begin it, answer at once or by events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lattice_inference.serve.client_watch import unless_gone
from lattice_inference.serve.event_stream import EventStream
from lattice_inference.serve.fields import Fields
from lattice_inference.serve.generation_fields import Asked
from lattice_inference.serve.state import RequestNote, ServerState, note_of, read_fields

__all__ = ["answer_generation"]


class _Begun(Protocol):
    @property
    def asked(self) -> Asked:
        """What the request asks for."""


END_SECONDS = 5.0
"""How much longer an answer may take than the engine may work on it."""

Begun = TypeVar("Begun", bound=_Begun)


async def answer_generation(
    request: Request,
    state: ServerState,
    *,
    begin: Callable[[Fields, ServerState, RequestNote], Begun],
    answer: Callable[[Begun, ServerState, RequestNote], Coroutine[Any, Any, dict[str, Any]]],
    events: Callable[[Begun, ServerState, RequestNote], AsyncGenerator[dict[str, Any], None]],
) -> Response:
    """Answer a request.

    Args:
        request: from a client.
        state: of the server.
        begin: checks the fields and hands the request to its engine; runs in a thread.
        answer: returns the body, once the texts have ended.
        events: yields the events of a streamed answer.
    """
    note = note_of(request)
    fields = await read_fields(request, state.config)
    begun = await unless_gone(request, asyncio.to_thread(begin, fields, state, note), state.config.request_seconds)
    if begun.asked.streams:
        told = partial(state.note_failure, note)
        return EventStream(events(begun, state, note), told, state.config.request_seconds + END_SECONDS)
    body = await unless_gone(request, answer(begun, state, note), state.config.request_seconds + END_SECONDS)
    return JSONResponse(body)
