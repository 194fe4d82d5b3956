"""What the requests of a server share, and what is noted of each."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
import uuid
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request

from lattice_inference.serve.api_errors import ApiError, run_error_of
from lattice_inference.serve.fields import Fields, parsed_body
from lattice_inference.serve.metrics import ServeMetrics
from lattice_inference.serve.token_batches import TokenBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import numpy as np
    import numpy.typing as npt

    from lattice_inference.generate.engine import Engine
    from lattice_inference.serve.config import ServeConfig
    from lattice_inference.serve.served import PairScorer, Served, TextEncoder

__all__ = [
    "CLIENT_LEFT",
    "LOGGER",
    "EmbeddingKey",
    "RequestNote",
    "ServerState",
    "is_loopback",
    "note_of",
    "read_fields",
]

LOGGER = logging.getLogger("lattice_inference.serve")
CLIENT_LEFT = 499
"""The status in the log of a request whose client has left."""


@dataclass
class RequestNote:
    """What the log and the metrics tell of a request."""

    route: str
    method: str
    traceparent: str | None
    started: float = field(default_factory=time.monotonic)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: int = 0
    code: str | None = None
    model: str | None = None
    prompt_tokens: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0
    ignored: tuple[str, ...] = ()
    stamp: int = field(default_factory=lambda: int(time.time()))


class EmbeddingKey(NamedTuple):
    """What texts of one call of an encoder have in common.

    Attributes:
        adapter: its name, or None.
        role: a request's ``input_type``, or None.
        is_ids: whether they are lists of token ids.
    """

    adapter: str | None
    role: str | None
    is_ids: bool


def note_of(request: Request) -> RequestNote:
    """Return the note of a request."""
    note: RequestNote = request.scope["lattice"]
    return note


class ServerState:
    """The shared part of a server: models, counts, and whether it takes requests."""

    def __init__(self, served: Served, config: ServeConfig) -> None:
        self.served = served
        self.config = config
        self.metrics = ServeMetrics()
        self.in_flight = 0
        self.is_draining = False
        schedule = self._beside_steps if served.models else None
        self.embedding_batches: dict[str, TokenBatches[Any, EmbeddingKey]] = {
            name: TokenBatches(partial(_vectors, encoder), config.batch_tokens, schedule)
            for name, encoder in served.embeddings.items()
        }
        self.pair_batches: dict[str, TokenBatches[tuple[str, str], str | None]] = {
            name: TokenBatches(partial(_scores, scorer), config.batch_tokens, schedule)
            for name, scorer in served.rerankers.items()
        }
        self._keys = [key.encode() for key in config.api_keys]

    def close(self) -> None:
        """End the threads of batches."""
        for embedding in self.embedding_batches.values():
            embedding.close()
        for pairs in self.pair_batches.values():
            pairs.close()

    def _beside_steps(self, call: Callable[[], None]) -> Future[None]:
        """Have a call made between two steps of the engine that has most to do."""

        def running(engine: Engine) -> int:
            return engine.stats().running

        engines = self.served.models.values()
        return (max(engines, key=running) if len(engines) > 1 else next(iter(engines))).between_steps(call)

    def waiting_texts(self) -> dict[str, int]:
        """Return how many requests wait for each encoder and scorer."""
        embeddings = {name: batches.waiting for name, batches in self.embedding_batches.items()}
        return embeddings | {name: batches.waiting for name, batches in self.pair_batches.items()}

    def refusal(self, headers: dict[str, str], route: str, method: str) -> ApiError | None:
        """Return why a request is not taken, by its headers and by what is going on."""
        if not self._keys:
            refused = _foreign(headers)
            if refused is not None:
                return refused
        elif not route.startswith("/health") and not self._has_key(headers.get("authorization", "")):
            return ApiError(
                401,
                "invalid_api_key",
                "this server wants one of its keys: Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if method == "POST":
            if self.is_draining:
                return ApiError(503, "draining", "this server is about to end", headers={"Retry-After": "5"})
            if self.in_flight >= self.config.max_requests:
                return ApiError(
                    429,
                    "server_busy",
                    f"{self.in_flight} requests are worked on or wait: try again later",
                    headers={"Retry-After": "1"},
                )
        return None

    def note_failure(self, note: RequestNote, error: BaseException) -> None:
        """Note why an answer ended early.

        The log gets the traceback of what is not expected.
        """
        if isinstance(error, ClientDisconnect):
            note.status, note.code = CLIENT_LEFT, "client_left"
            return
        failure = run_error_of(error)
        note.status, note.code = failure.status, failure.code
        if failure.code == "internal_error":
            LOGGER.error("request %s failed", note.id, exc_info=error)

    def _has_key(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        found = False
        for key in self._keys:  # all of them, so that the time tells nothing
            found |= hmac.compare_digest(given.strip().encode(), key)
        return found and scheme.lower() == "bearer"


@lru_cache(64)  # of each request's header
def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _foreign(headers: dict[str, str]) -> ApiError | None:
    """Return the error of a request that a web page may have sent."""
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if not is_loopback(name):
        return ApiError(403, "host_not_allowed", "the header Host does not name this machine: set an API key")
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return ApiError(403, "origin_not_allowed", "web pages of other hosts are not served")
    return None


async def read_fields(request: Request, config: ServeConfig) -> Fields:
    """Return the fields of a request's body.

    Raises:
        ApiError: it is too long or too slow, or no JSON object.
        ClientDisconnect: the client has left.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "unsupported_media_type", f"the body is {kind[:100]!r}; expected application/json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise ApiError(415, "unsupported_media_type", f"the body is coded as {coding[:100]!r}: send it as it is")
    most = config.max_body_bytes
    too_long = ApiError(413, "request_body_too_large", f"the body has more than {most:,} bytes, which is the limit")
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told[:20]) > most:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(config.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_long
    except TimeoutError:
        raise ApiError(408, "body_timeout", f"the body took over {config.body_seconds:g} seconds") from None
    return Fields(parsed_body(bytes(body)))


def _vectors(encoder: TextEncoder, texts: Sequence[Any], key: EmbeddingKey) -> npt.NDArray[np.float32]:
    settings: dict[str, Any] = {} if key.adapter is None else {"adapter": key.adapter}
    if key.is_ids:
        rows: npt.NDArray[np.float32] = encoder.encode_tokens(texts, **settings).vectors  # type: ignore[attr-defined]
        return rows
    if key.role is not None:
        settings["role"] = key.role
    return encoder.encode(texts, **settings).vectors


def _scores(scorer: PairScorer, pairs: Sequence[tuple[str, str]], adapter: str | None) -> npt.NDArray[np.float32]:
    settings: dict[str, Any] = {} if adapter is None else {"adapter": adapter}
    return scorer.score_pairs(pairs, **settings)
