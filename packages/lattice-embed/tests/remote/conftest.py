"""A server on this machine that speaks the embeddings protocol, and misbehaves as a test tells it to."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.util
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from lattice_embed import EmbeddingResult, RemoteEmbeddingService, RetryPolicy
from lattice_embed.remote import transport

DIMENSIONS = 8
QUICK = RetryPolicy(max_retries=3, initial_delay=0.01, max_delay=0.02, max_retry_after=5.0)


@dataclass
class Asked:
    """One request as the server saw it."""

    body: dict[str, Any]
    headers: dict[str, str]
    path: str
    client: tuple[str, int]
    time: float = field(default_factory=time.monotonic)

    @property
    def texts(self) -> list[str]:
        return self.body["input"]


Behaviour = Callable[["Handler", Asked], None]


class Handler(BaseHTTPRequestHandler):
    """Lets the next behaviour of the script answer, or answers as it should."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(json.loads(raw), headers, self.path, self.client_address)
        with self.server.lock:
            self.server.asked.append(asked)
            behaviour = self.server.script.pop(0) if self.server.script else self.server.usual
        try:
            behaviour(self, asked)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def reply(self, document: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Records what it was asked, and follows a script."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: list[Asked] = []
        self.script: list[Behaviour] = []
        self.dimensions = DIMENSIONS
        self.dripped = 0
        self.usual: Behaviour = lambda handler, asked: handler.reply(self.document(asked))
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def vector(self, text: str, dimensions: int | None = None) -> np.ndarray[Any, Any]:
        """The vector of a text: drawn from its hash, of length 2 so that scaling shows."""
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        drawn = np.random.default_rng(seed).standard_normal(dimensions or self.dimensions)
        return (2 * drawn / np.linalg.norm(drawn)).astype(np.float32)

    def unit(self, text: str) -> np.ndarray[Any, Any]:
        vector = self.vector(text)
        return vector / np.linalg.norm(vector)

    def document(self, asked: Asked, **changes: Any) -> dict[str, Any]:
        """The right answer."""
        data = []
        for index, text in enumerate(asked.texts):
            vector = self.vector(text, asked.body.get("dimensions"))
            packed = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            written: object = packed if asked.body["encoding_format"] == "base64" else vector.tolist()
            data.append({"object": "embedding", "index": index, "embedding": written})
        tokens = sum(len(text.split()) for text in asked.texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": asked.body["model"], "usage": usage} | changes

    def all_texts(self) -> list[str]:
        return [text for asked in self.asked for text in asked.texts]

    # Ways to misbehave

    def status(self, code: int, body: object = b"", **headers: str) -> Behaviour:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return lambda handler, asked: handler.reply(body, code, named)

    def changed(self, change: Callable[[dict[str, Any]], object]) -> Behaviour:
        """Answer with the right document after ``change`` was let at it."""

        def behave(handler: Handler, asked: Asked) -> None:
            document = self.document(asked)
            replaced = change(document)
            handler.reply(document if replaced is None else replaced)

        return behave

    def raw(self, edit: Callable[[bytes], bytes], **headers: str) -> Behaviour:
        """Answer with the right bytes after ``edit``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return lambda handler, asked: handler.reply(edit(json.dumps(self.document(asked)).encode()), headers=named)

    def slow(self, seconds: float) -> Behaviour:
        def behave(handler: Handler, asked: Asked) -> None:
            time.sleep(seconds)
            self.usual(handler, asked)

        return behave

    def drip(self, pause: float) -> Behaviour:
        """Send the right answer a few bytes at a time, which ``dripped`` counts."""

        def behave(handler: Handler, asked: Asked) -> None:
            body = json.dumps(self.document(asked)).encode()
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            for start in range(0, len(body), 4):
                handler.wfile.write(body[start : start + 4])
                handler.wfile.flush()
                self.dripped += 1
                time.sleep(pause)

        return behave

    def reset(self, part: float) -> Behaviour:
        """Reset the connection after a part of the answer; 0 is before any of it."""

        def behave(handler: Handler, asked: Asked) -> None:
            body = json.dumps(self.document(asked)).encode()
            if part:
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body[: int(len(body) * part)])
                handler.wfile.flush()
                time.sleep(0.02)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            handler.connection.close()

        return behave

    def endless(self) -> Behaviour:
        """Send chunks until the client has had enough."""

        def behave(handler: Handler, asked: Asked) -> None:
            handler.close_connection = True
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            chunk = b" " * 65_536
            for _ in range(10_000):
                handler.wfile.write(b"10000\r\n" + chunk + b"\r\n")

        return behave

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is no error of the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


INSTALLED = [name for name in transport.LIBRARIES if importlib.util.find_spec(name) is not None]


@pytest.fixture(params=INSTALLED or ["none"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each HTTP library that is installed."""
    name: str = request.param
    if name == "none":
        pytest.skip("no HTTP library: pip install httpx2")
    monkeypatch.setattr(transport, "LIBRARIES", (name,))
    assert transport.http_library() is importlib.import_module(name)
    transport._certificates(transport.http_library())  # read once here, so that no test with a short limit pays for it
    return name


@pytest.fixture(params=["threads", "asyncio"])
def embed(request: pytest.FixtureRequest, library: str) -> Callable[..., EmbeddingResult]:
    """``service.embed`` or its twin, on each library."""

    def run(service: RemoteEmbeddingService, texts: Sequence[str], **options: Any) -> EmbeddingResult:
        if request.param == "threads":
            return service.embed(texts, **options)
        return asyncio.run(service.aembed(texts, **options))

    return run


@pytest.fixture
def connect(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RemoteEmbeddingService]]:
    """Makes services for the server, and closes them."""
    for variable in (
        "OPENAI_API_KEY",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "LATTICE_OFFLINE",
        "LATTICE_ALLOW_PLAIN_HTTP",
    ):
        monkeypatch.delenv(variable, raising=False)
    made: list[RemoteEmbeddingService] = []

    def make(model: Any = "house-model", **options: Any) -> RemoteEmbeddingService:
        service = RemoteEmbeddingService(model, **{"base_url": server.url, "retry": QUICK} | options)
        made.append(service)
        return service

    yield make
    for service in made:
        service.close()
