"""The application: routes, and what is done with every request before and after its route."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lattice_inference._version import __version__
from lattice_inference.argument_checks import checked_flag
from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.preparation import known_tokens
from lattice_inference.grammar.compiler import begin_compiler
from lattice_inference.serve.api_errors import ApiError, run_error_of
from lattice_inference.serve.chat_route import CHAT_FIELDS, chat
from lattice_inference.serve.completions_route import COMPLETION_FIELDS, complete
from lattice_inference.serve.config import ServeConfig
from lattice_inference.serve.fields import LABELS
from lattice_inference.serve.generation_fields import SAMPLING_FIELDS
from lattice_inference.serve.metrics import engine_lines, model_lines
from lattice_inference.serve.served import PairScorer, Served, TextEncoder
from lattice_inference.serve.state import CLIENT_LEFT, LOGGER, RequestNote, ServerState
from lattice_inference.serve.text_routes import EMBEDDING_FIELDS, RERANK_FIELDS, embed, rerank
from lattice_inference.serve.token_routes import apply_template, detokenize, tokenize

if TYPE_CHECKING:
    from lattice_inference.generate.engine import Engine

__all__ = ["create_app"]

Handler = Callable[[Request, ServerState], Awaitable[Response]]

MOST_NAMES = 50
MOST_NAME = 100
"""How many ignored fields a header lists, and how much of a name: clients take headers of a few kB."""

_NOT_HERE = ("/v1/responses", "/v1/messages")


def create_app(
    *,
    models: Mapping[str, Engine] | None = None,
    embeddings: Mapping[str, TextEncoder] | None = None,
    rerankers: Mapping[str, PairScorer] | None = None,
    adapters: Mapping[str, tuple[str, str]] | None = None,
    config: ServeConfig | None = None,
    logs_requests: bool = True,
) -> Starlette:
    """Return an ASGI application that serves models as OpenAI's API does.

    >>> with Engine(load_model("model.gguf")) as engine:                                  # doctest: +SKIP
    ...     uvicorn.run(create_app(models={"small": engine}))

    The caller closes the engines and encoders, after the application. ``app.state.lattice`` is the shared state:
    ``is_draining = True`` makes the server refuse new requests, and ``in_flight`` counts those that are worked on.

    Args:
        models: engines by the names that requests use.
        embeddings: encoders, or what has their members :class:`TextEncoder`.
        rerankers: cross-encoders, or what has their members :class:`PairScorer`.
        adapters: for a further name, the name of its model here and that of an adapter attached to it.
        config: limits and keys.
        logs_requests: write a line of JSON for each request to the logger ``lattice_inference.serve``, without its text.

    Raises:
        InvalidInputError: an argument is malformed, or there is nothing to serve.
    """
    if config is not None and not isinstance(config, ServeConfig):
        raise InvalidInputError("config is no ServeConfig")
    checked_flag("logs_requests", logs_requests)
    served = Served(models or {}, embeddings or {}, rerankers or {}, adapters or {})
    state = ServerState(served, ServeConfig() if config is None else config)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        for engine in served.models.values():
            if engine.tokenizer is not None:
                begin_compiler(engine.tokenizer, known_tokens(engine.tokenizer, engine.model.vocab_size))
        yield
        state.close()

    posts: dict[str, Handler] = {
        "/v1/chat/completions": chat,
        "/v1/completions": complete,
        "/v1/embeddings": embed,
        "/v1/rerank": rerank,
        "/tokenize": tokenize,
        "/detokenize": detokenize,
        "/apply-template": apply_template,
    }
    gets: dict[str, Handler] = {
        "/v1/models": _models,
        "/v1/models/{model:path}": _model,
        "/info": _info,
        "/health": _ready,
        "/health/ready": _ready,
        "/health/live": _live,
        "/metrics": _metrics,
    }
    endpoints = {path: _Endpoint(handler, state) for path, handler in posts.items()}
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]
    routes += [Route(path, _Endpoint(handler, state), methods=["GET"]) for path, handler in gets.items()]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Gate, state=state, endpoints=endpoints, logs_requests=logs_requests)],
        exception_handlers={HTTPException: _not_found},
        lifespan=lifespan,
    )
    app.state.lattice = state
    return app


class _Endpoint:
    """A handler with its errors as answers.

    A whole ASGI application: Starlette would wrap a function in two layers more, for each request.
    """

    def __init__(self, handler: Handler, state: ServerState) -> None:
        self._handler = handler
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note: RequestNote = scope["lattice"]
        response: Response
        try:
            response = await self._handler(Request(scope, receive, send), self._state)
        except ClientDisconnect:
            note.code = "client_left"
            response = Response(status_code=CLIENT_LEFT)
        except (Exception, asyncio.CancelledError) as error:  # cancelled: the server ends, and this task with it
            failure = run_error_of(error)
            if failure.code == "internal_error":
                LOGGER.error("request %s failed", note.id, exc_info=error)
            response = _error_response(failure, note)
        await response(scope, receive, send)


def _error_response(error: ApiError, note: RequestNote) -> Response:
    note.code = error.code
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def _not_found(request: Request, error: Exception) -> Response:
    note: RequestNote = request.scope["lattice"]
    note.route = "(no route)"
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        text = f"{request.url.path[:200]} takes another method than {request.method}"
        allowed = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        failure = ApiError(405, "method_not_allowed", text, headers=allowed)
    else:
        hint = ": use /v1/chat/completions" if request.url.path.startswith(_NOT_HERE) else ""
        failure = ApiError(404, "unknown_route", f"there is no {request.url.path[:200]} here{hint}")
    return _error_response(failure, note)


class _Gate:
    """Refuses what may not come in, counts what is worked on, and notes how each request ended."""

    def __init__(self, app: ASGIApp, state: ServerState, endpoints: Mapping[str, ASGIApp], logs_requests: bool) -> None:
        self._app = app
        self._endpoints = endpoints  # of POST; asked before the router, which tries one pattern after the other
        self._state = state
        self._logs_requests = logs_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        note = RequestNote(scope["path"], scope["method"], headers.get("traceparent"))
        scope["lattice"] = note

        async def noting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                note.status = note.status or message["status"]
                added = [(b"x-request-id", note.id.encode())]
                if note.ignored:
                    shown = [name[:MOST_NAME] for name in note.ignored[:MOST_NAMES]]
                    added.append((b"x-lattice-ignored", json.dumps(shown).encode()))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        counted = scope["method"] == "POST"
        refused = self._state.refusal(headers, scope["path"], scope["method"])
        if refused is not None:
            note.route = note.route if refused.status in (429, 503) and note.route in self._endpoints else "(refused)"
            await _error_response(refused, note)(scope, receive, noting_send)
            self._note(note)
            return
        self._state.in_flight += counted
        try:
            app = self._endpoints.get(scope["path"], self._app) if counted else self._app
            await app(scope, receive, noting_send)
        except ClientDisconnect:
            note.status, note.code = CLIENT_LEFT, "client_left"
        finally:
            self._state.in_flight -= counted
            self._note(note)

    def _note(self, note: RequestNote) -> None:
        """Put an ended request into the metrics and the log."""
        seconds = time.monotonic() - note.started
        metrics = self._state.metrics
        route = "/v1/models" if note.route.startswith("/v1/models") else note.route
        metrics.add("lattice_requests_total", route=route, status=note.status, code=note.code or "")
        if note.method == "POST" and note.code is None:
            metrics.observe("lattice_request_seconds", seconds, route=route)
            metrics.add("lattice_tokens_total", note.prompt_tokens, model=note.model, kind="prompt")
            metrics.add("lattice_tokens_total", note.cached_tokens, model=note.model, kind="cached")
            metrics.add("lattice_tokens_total", note.new_tokens, model=note.model, kind="completion")
        if self._logs_requests and not note.route.startswith(("/health", "/metrics")):
            told = {
                "time": round(time.time(), 3),
                "id": note.id,
                "method": note.method,
                "route": note.route[:200],
                "status": note.status,
                "code": note.code,
                "seconds": round(seconds, 6),
                "model": None if note.model is None else note.model[:200],
                "prompt_tokens": note.prompt_tokens,
                "new_tokens": note.new_tokens,
                "traceparent": None if note.traceparent is None else note.traceparent[:200],
            }
            LOGGER.info("%s", json.dumps(told))


async def _models(_: Request, state: ServerState) -> Response:
    return JSONResponse({"object": "list", "data": state.served.listing()})


async def _model(request: Request, state: ServerState) -> Response:
    return JSONResponse(state.served.listed(request.path_params["model"]))


async def _info(_: Request, state: ServerState) -> Response:
    config = state.config
    limits = {
        name: getattr(config, name) for name in config.__dataclass_fields__ if name not in ("api_keys", "lenient")
    }
    fields: dict[str, Any] = {
        "/v1/chat/completions": ["model", *CHAT_FIELDS, *SAMPLING_FIELDS],
        "/v1/completions": ["model", *COMPLETION_FIELDS, *SAMPLING_FIELDS],
        "/v1/embeddings": ["model", *EMBEDDING_FIELDS],
        "/v1/rerank": ["model", *RERANK_FIELDS],
    }
    labels = {name: list(values) or "any" for name, values in LABELS.items()}
    return JSONResponse(
        {
            "version": __version__,
            "models": state.served.listing(),
            "limits": limits,
            "lenient": config.lenient,
            "fields": fields,
            "labels_without_effect": labels,
        }
    )


async def _live(_: Request, state: ServerState) -> Response:
    return JSONResponse({"status": "ok"})


async def _ready(_: Request, state: ServerState) -> Response:
    if state.is_draining:
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ok"})


async def _metrics(_: Request, state: ServerState) -> Response:
    further = [
        "# TYPE lattice_requests_in_flight gauge",
        f"lattice_requests_in_flight {state.in_flight}",
        *model_lines("lattice_text_requests_waiting", "gauge", state.waiting_texts()),
    ]
    engines = {name: engine.stats() for name, engine in state.served.models.items()}
    return PlainTextResponse(
        state.metrics.text([*further, *engine_lines(engines)]), media_type="text/plain; version=0.0.4"
    )
