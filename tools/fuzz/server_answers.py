"""Answers of a model server.

A service requests them from a local socket, which sends a file's bytes.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import threading
from functools import cache
from pathlib import Path

import numpy as np
from mutation import mutated_bytes, mutated_document, mutated_text
from target import Target

from lattice_embed import LatticeEmbedError, RemoteEmbeddingService, RetryPolicy

__all__ = ["TARGETS"]

TEXTS = ["one", "two", "three"]
SECONDS = 3.0


class Server:
    """Answers each request with the bytes it holds, and hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                try:
                    connection.settimeout(SECONDS)
                    self._read_request(connection)
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

    @staticmethod
    def _read_request(connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            part = connection.recv(65_536)
            if not part:
                return
            received += part
        head, _, body = received.partition(b"\r\n\r\n")
        (length,) = [
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
        ]
        while len(body) < length:
            body += connection.recv(65_536) or b"\0" * length


@cache
def server() -> Server:
    """Return the one server of this process."""
    for variable in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "OPENAI_API_KEY",
    ):
        os.environ.pop(variable, None)
    return Server()


def document(*, packed: bool) -> bytes:
    """Return the right answer, its vectors as numbers or in base64."""
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype("<f4")
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.tobytes()).decode()
            if packed
            else [float(number) for number in vector],
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return json.dumps({"object": "list", "data": data, "model": "model", "usage": usage}).encode()


def make_answers(folder: Path) -> None:
    """Write a success of both kinds, and answers that say why there is none."""
    failure = json.dumps({"error": {"message": "slow down", "type": "rate", "code": "insufficient_quota"}}).encode()
    for name, status, body in (
        ("numbers", "200 OK", document(packed=False)),
        ("packed", "200 OK", document(packed=True)),
        ("limited", "429 Too Many Requests", failure),
        ("refused", "401 Unauthorized", failure),
        ("moved", "301 Moved Permanently", b"<html>elsewhere</html>"),
        ("broken", "500 Internal Server Error", b"oops"),
    ):
        (folder / name).mkdir()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nRetry-After: 0\r\nLocation: /x\r\nConnection: close"
        (folder / name / "head").write_bytes(head.encode())
        (folder / name / "body.json").write_bytes(body)


HEADERS = (
    *("Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br", "Content-Encoding: zstd"),
    *("Transfer-Encoding: chunked", "Content-Length: 99999999999999999999", "Content-Length: -1", "Content-Length: 0"),
    *("Retry-After: 1e999", "Retry-After: Mon, 01 Jan 99999 00:00:00 GMT", "Retry-After: \xff", "retry-after-ms: nan"),
    *(
        "Set-Cookie: a=b",
        "X: " + "x" * 70_000,
        "Content-Type: text/html; charset=utf-7",
        "Location: http://[::1",
        "bad header",
    ),
)


def damage_answer(folder: Path, draw: random.Random) -> None:
    """Damage the head or the body of an answer."""
    head, body = folder / "head", folder / "body.json"
    if draw.random() < 0.7:
        content = body.read_bytes()
        body.write_bytes(mutated_document(content, draw) if content[:1] == b"{" else mutated_bytes(content, draw))
    kind = draw.randrange(8)
    if kind == 0:
        head.write_bytes(mutated_bytes(head.read_bytes(), draw))
    elif kind == 1:
        head.write_bytes(mutated_text(head.read_bytes().decode("latin-1"), draw).encode("utf-8", "replace"))
    elif kind < 4:
        head.write_bytes(head.read_bytes() + b"\r\n" + draw.choice(HEADERS).encode("latin-1"))
    elif kind == 4:
        status = draw.choice((b"100", b"204", b"206", b"304", b"400", b"404", b"418", b"503", b"999", b"000", b"2000"))
        head.write_bytes(head.read_bytes().replace(head.read_bytes()[9:12], status, 1))


def use_answer(folder: Path) -> None:
    """Ask for vectors."""
    asked = server()
    asked.answer = (folder / "head").read_bytes() + b"\r\n\r\n" + (folder / "body.json").read_bytes()
    address = f"http://127.0.0.1:{asked.port}/v1"
    with RemoteEmbeddingService(
        "model", base_url=address, retry=RetryPolicy(max_retries=0), timeout=SECONDS
    ) as service:
        service.embed(TEXTS)


TARGETS = [Target("server-answers", make_answers, damage_answer, use_answer, (LatticeEmbedError,))]
