"""``/tokenize``, ``/detokenize`` and ``/apply-template``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lattice_inference.errors import LatticeError
from lattice_inference.generate.prompt_tokens import check_vocabulary
from lattice_inference.serve.api_errors import ApiError, refusal_of
from lattice_inference.serve.client_watch import unless_gone
from lattice_inference.serve.conversation import conversation_of
from lattice_inference.serve.fields import Fields
from lattice_inference.serve.state import RequestNote, ServerState, note_of, read_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from lattice_inference.generate.engine import Engine
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["apply_template", "detokenize", "tokenize"]


async def tokenize(request: Request, state: ServerState) -> Response:
    """Return the tokens of a text."""
    note = note_of(request)

    def work(fields: Fields, engine: Engine) -> dict[str, Any]:
        prompt = fields.needed_text("prompt")
        adds = fields.flag("add_special_tokens", True)
        note.ignored = tuple(fields.finish(lenient=state.config.lenient))
        ids = _tokenizer(engine).encode(prompt, add_special_tokens=adds).ids.tolist()
        return {"tokens": ids, "count": len(ids), "max_model_len": engine.max_tokens}

    return await _answered(request, state, note, work, "prompt")


async def detokenize(request: Request, state: ServerState) -> Response:
    """Return the text of tokens."""
    note = note_of(request)

    def work(fields: Fields, engine: Engine) -> dict[str, Any]:
        ids = fields.any("tokens")
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**31 for one in ids):
            fields.refuse("tokens", "a list of token ids")
        skips = fields.flag("skip_special_tokens")
        note.ignored = tuple(fields.finish(lenient=state.config.lenient))
        check_vocabulary(ids, engine.model.vocab_size, "tokens")
        return {"prompt": _tokenizer(engine).decode(ids, skip_special_tokens=skips)}

    return await _answered(request, state, note, work, "tokens")


async def apply_template(request: Request, state: ServerState) -> Response:
    """Return the prompt of a conversation."""
    note = note_of(request)

    def work(fields: Fields, engine: Engine) -> dict[str, Any]:
        found = conversation_of(fields, engine)
        note.ignored = tuple(fields.finish(lenient=state.config.lenient))
        return {"prompt": found.text, "tokens": found.ids, "count": len(found.ids)}

    return await _answered(request, state, note, work, "messages")


async def _answered(
    request: Request,
    state: ServerState,
    note: RequestNote,
    work: Callable[[Fields, Engine], dict[str, Any]],
    param: str,
) -> Response:
    fields = await read_fields(request, state.config)
    task = asyncio.to_thread(_with_engine, fields, state, note, work, param)
    return JSONResponse(await unless_gone(request, task, state.config.request_seconds))


def _with_engine(
    fields: Fields,
    state: ServerState,
    note: RequestNote,
    work: Callable[[Fields, Engine], dict[str, Any]],
    param: str,
) -> dict[str, Any]:
    note.model = fields.needed_text("model")
    base, _ = state.served.find(note.model, "model")
    try:
        return work(fields, state.served.models[base])
    except LatticeError as error:
        raise refusal_of(error, param) from error


def _tokenizer(engine: Engine) -> Tokenizer:
    if engine.tokenizer is None:
        raise ApiError(400, "unsupported", "this model has no tokenizer", "model")
    return engine.tokenizer
