"""A server on this machine that speaks each provider's protocol, keeps a bill, and misbehaves as a test tells it to."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["LABELS", "Asked", "Handler", "TeacherServer", "label_of"]

LABELS = ("alpha", "beta", "gamma")
_TEXT = re.compile(r"----- text (\w+) -----\n(.*)\n----- end of text \1 -----", re.DOTALL)
OUTPUT_TOKENS = 10


def label_of(text: str) -> str:
    """The label that the server gives a text."""
    return LABELS[hashlib.sha256(text.encode()).digest()[0] % len(LABELS)]


@dataclass
class Asked:
    """One request as the server saw it."""

    body: dict[str, Any]
    headers: dict[str, str]
    path: str
    size: int
    time: float = field(default_factory=time.monotonic)

    @property
    def protocol(self) -> str:
        if self.path.endswith("/messages"):
            return "anthropic"
        return "openai" if self.path.endswith("/chat/completions") else "gemini"

    @property
    def user(self) -> str:
        if self.protocol == "gemini":
            return str(self.body["contents"][0]["parts"][0]["text"])
        return str(self.body["messages"][-1]["content"])

    @property
    def text(self) -> str:
        found = _TEXT.search(self.user)
        assert found is not None, self.user
        return found[2]

    @property
    def input_tokens(self) -> int:
        return self.size // 4


Behaviour = Callable[["Handler", Asked], None]


class Handler(BaseHTTPRequestHandler):
    """Lets the next behaviour of the script answer, or answers as it should."""

    protocol_version = "HTTP/1.1"
    server: TeacherServer

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        if len(raw) < int(self.headers["content-length"]):
            self.close_connection = True  # the client was killed while it asked
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(json.loads(raw), headers, self.path, len(raw))
        with self.server.lock:
            self.server.asked.append(asked)
            self.server.under_way += 1
            self.is_under_way = True
            self.server.most_under_way = max(self.server.most_under_way, self.server.under_way)
            behaviour = self.server.script.pop(0) if self.server.script else self.server.usual
        try:
            behaviour(self, asked)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.leave()

    def leave(self) -> None:
        """Count the request as ended, once: before its answer is written, since the next one may come at once."""
        with self.server.lock:
            self.server.under_way -= self.is_under_way
            self.is_under_way = False

    def reply(self, document: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        head = {"Content-Type": "application/json", "Content-Length": str(len(body))} | (headers or {})
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.leave()
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class TeacherServer(ThreadingHTTPServer):
    """Records what it was asked, keeps the bill, and follows a script."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: list[Asked] = []
        self.answered: Counter[str] = Counter()  # by text: whole answers that were written to the socket
        self.again: int = 0  # requests for a text that had been answered
        self.billed_input = self.billed_output = 0
        self.under_way = self.most_under_way = 0
        self.script: list[Behaviour] = []
        self.usual: Behaviour = self.right
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def texts(self) -> list[str]:
        return [asked.text for asked in self.asked]

    def bill(self, asked: Asked) -> None:
        with self.lock:
            self.billed_input += asked.input_tokens
            self.billed_output += OUTPUT_TOKENS

    def document(
        self, asked: Asked, value: object = None, *, said: str | None = None, reason: str | None = None
    ) -> Any:
        """The answer of a protocol: ``value`` as structured output, or what the model said in plain words."""
        value = {"label": label_of(asked.text)} if value is None else value
        written = json.dumps(value) if said is None else said
        if asked.protocol == "anthropic":
            block: dict[str, Any] = {"type": "text", "text": written}
            if said is None and "tools" in asked.body:
                block = {"type": "tool_use", "id": "t1", "name": asked.body["tools"][0]["name"], "input": value}
            usage = {"input_tokens": asked.input_tokens, "output_tokens": OUTPUT_TOKENS}
            return {"type": "message", "content": [block], "stop_reason": reason or "end_turn", "usage": usage}
        if asked.protocol == "gemini":
            usage = {"promptTokenCount": asked.input_tokens, "candidatesTokenCount": OUTPUT_TOKENS}
            content = {"role": "model", "parts": [{"text": written}]}
            return {"candidates": [{"content": content, "finishReason": reason or "STOP"}], "usageMetadata": usage}
        usage = {"prompt_tokens": asked.input_tokens, "completion_tokens": OUTPUT_TOKENS}
        choice = {"index": 0, "message": {"role": "assistant", "content": written}, "finish_reason": reason or "stop"}
        return {"choices": [choice], "usage": usage}

    # Behaviours

    def right(self, handler: Handler, asked: Asked) -> None:
        """Answer as it should be."""
        with self.lock:
            self.again += self.answered[asked.text] > 0
        self.bill(asked)
        handler.reply(self.document(asked))
        with self.lock:
            self.answered[asked.text] += 1

    def says(self, value: object = None, *, said: str | None = None, reason: str | None = None) -> Behaviour:
        """Answer, and bill, something else."""

        def behave(handler: Handler, asked: Asked) -> None:
            self.bill(asked)
            handler.reply(self.document(asked, value, said=said, reason=reason))

        return behave

    def document_of(self, make: Callable[[Asked], object]) -> Behaviour:
        return lambda handler, asked: handler.reply(make(asked))

    def status(self, code: int, body: object = b"", **headers: str) -> Behaviour:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return lambda handler, asked: handler.reply(body, code, named)

    def cut_body(self) -> Behaviour:
        """Bill an answer, and break off in the middle of it."""

        def behave(handler: Handler, asked: Asked) -> None:
            self.bill(asked)
            body = json.dumps(self.document(asked)).encode()
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body[: len(body) // 2])
            handler.wfile.flush()
            handler.close_connection = True

        return behave

    def drip(self, until: threading.Event) -> Behaviour:
        """Bill an answer, and send it a byte at a time until the client is gone, or the event is set."""

        def behave(handler: Handler, asked: Asked) -> None:
            self.bill(asked)
            handler.send_response(200)
            handler.send_header("Content-Length", "1000000")
            handler.end_headers()
            while not until.wait(0.01):
                handler.wfile.write(b" ")
                handler.wfile.flush()

        return behave

    def huge(self, size: int) -> Behaviour:
        """Send an endless body in chunks."""

        def behave(handler: Handler, asked: Asked) -> None:
            handler.close_connection = True
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            chunk = b" " * 65_536
            for _ in range(size // len(chunk)):
                handler.wfile.write(b"10000\r\n" + chunk + b"\r\n")

        return behave

    def twice(self) -> Behaviour:
        """Deliver one answer two times on the connection."""

        def behave(handler: Handler, asked: Asked) -> None:
            self.bill(asked)
            body = json.dumps(self.document(asked)).encode()
            one = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            handler.wfile.write(one + one)
            handler.wfile.flush()

        return behave

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is no error of the server."""
        if not isinstance(sys.exception(), (ConnectionError, AssertionError)):
            super().handle_error(request, client_address)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()
