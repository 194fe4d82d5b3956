"""Connections on a port: slow senders, idle ones, what is not HTTP, and answers that come too late."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from types import SimpleNamespace

import httpx2
import numpy as np
import pytest
from starlette.requests import ClientDisconnect

from lattice_inference import Engine, EngineConfig
from lattice_inference.serve import ServeConfig, create_app, generation_route
from lattice_inference.serve.client_watch import ClientWatch

from .conftest import client_of, served_at
from .test_answers import ASKED
from .test_operation import called
from .test_refusals import refused

pytest.importorskip("uvicorn")

from uvicorn.server import ServerState

from lattice_inference.serve import connection as connection_module
from lattice_inference.serve import server as server_module
from lattice_inference.serve.server import listen, server_config

LONG = {"model": "drawn", "messages": ASKED, "seed": 1, "ignore_eos": True}
SLOW = ServeConfig(header_seconds=0.7, body_seconds=0.7, max_connections=20)
HEADERS = (
    b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
)


@pytest.fixture(scope="module")
def slow(models):
    with served_at(models.app(SLOW)) as (server, address):
        yield server, address


@contextlib.contextmanager
def connected(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 30) as made:
        made.settimeout(30)
        yield made


def rest(connection):
    """Return all that comes until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def health(connection):
    """Ask whether the server is healthy, and return the whole answer: its head and its body come apart at times."""
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        part = connection.recv(65536)
        assert part, answer
        answer += part
    return answer


def told(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.slow
class TestSlowSenders:
    def test_headers_have_a_deadline(self, slow):
        with connected(slow[1]) as connection:
            connection.sendall(HEADERS[:40])
            assert told(rest(connection)) == (408, "header_timeout")

    def test_bytes_that_trickle_do_not_renew_it(self, slow):
        with connected(slow[1]) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for byte in HEADERS:
                connection.sendall(bytes([byte]))
                time.sleep(0.02)
            pytest.fail("the server read all headers")

    def test_a_connection_without_a_request_is_closed(self, slow):
        with connected(slow[1]) as connection:
            assert rest(connection) == b""

    def test_the_next_request_of_a_connection_has_one_too(self, slow):
        with connected(slow[1]) as connection:
            assert health(connection).startswith(b"HTTP/1.1 200")
            time.sleep(1.0)  # an idle connection stays
            assert health(connection).startswith(b"HTTP/1.1 200")
            connection.sendall(HEADERS[:40])
            assert told(rest(connection)) == (408, "header_timeout")

    def test_bodies_have_a_deadline_and_their_rest_is_not_awaited(self, slow):
        with connected(slow[1]) as connection:
            connection.sendall(HEADERS + b"{")
            answer = rest(connection)
            assert told(answer) == (408, "body_timeout")

    def test_what_is_not_http_gets_an_error(self, slow):
        for sent in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost\r\n\r\n"):
            with connected(slow[1]) as connection:
                connection.sendall(sent)
                assert told(rest(connection)) == (400, "invalid_http")


def test_idle_connections_make_room_for_requests(slow, models):
    server, address = slow
    body = {**LONG, "stream": True, "n": 4}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx2.Client(base_url=address, timeout=60))
        stream = stack.enter_context(client.stream("POST", "/v1/chat/completions", json=body))
        lines = stream.iter_lines()
        next(lines)
        for _ in range(100):
            connection = stack.enter_context(connected(address))
            connection.sendall(b"GET /heal")
        assert httpx2.get(f"{address}/health").status_code == 200
        assert len(server.server_state.connections) <= SLOW.max_connections
        assert [line for line in lines if line][-1] == "data: [DONE]"


class Stepping:
    """A model that runs as many steps as it may."""

    def __init__(self, model):
        self._model = model
        self.may_run = threading.Semaphore(0)
        self.is_free = False
        self.steps = 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, extensions):
        if not self.is_free:
            assert self.may_run.acquire(timeout=60)
        self.steps += 1
        return self._model.forward(extensions)


@pytest.mark.parametrize("streams", [True, False])
def test_a_closed_socket_frees_its_row_within_two_steps(models, streams):
    model = Stepping(models.drawn)
    with Engine(model, EngineConfig(page_tokens=16, prefix_bytes=0)) as engine:
        app = models.app(models={"drawn": engine}, adapters={})
        with served_at(app) as (_, address):
            body = json.dumps({**LONG, "stream": streams}).encode()
            with connected(address) as connection:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                model.may_run.release(3)
                while model.steps < 3:
                    threading.Event().wait(0.002)
            while app.state.lattice.in_flight:
                threading.Event().wait(0.002)
            model.is_free = True
            model.may_run.release()  # the step that was waiting
            while engine.stats().running:
                threading.Event().wait(0.002)
            assert model.steps <= 3 + 2
            assert engine.stats().cancelled == 1
            assert engine.stats().used_pages == 0


@pytest.mark.parametrize("streams", [True, False])
def test_a_first_token_that_is_late_is_an_error(models, streams):
    config = ServeConfig(first_token_seconds=1e-6)
    with Engine(models.drawn, EngineConfig(page_tokens=16, prefix_bytes=0)) as engine:
        with client_of(models.app(config, models={"drawn": engine}, adapters={})) as client:
            answer = client.post("/v1/chat/completions", json={**LONG, "n": 16, "stream": streams})
            if streams:
                error = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))["error"]
                assert error["code"] == "deadline_exceeded"
            else:
                refused(answer, 504, "deadline_exceeded")
        while engine.stats().running:
            threading.Event().wait(0.005)
        assert engine.stats().used_pages == 0


def test_a_reader_that_reads_nothing_is_left(models, monkeypatch):
    monkeypatch.setattr(generation_route, "END_SECONDS", 0.05)
    config = ServeConfig(request_seconds=0.05)
    with Engine(models.drawn, EngineConfig(page_tokens=16, prefix_bytes=0)) as engine:
        app = models.app(config, models={"drawn": engine}, adapters={})

        async def stuck(scope, receive, send):
            async def never(message):
                if message["type"] == "http.response.body":
                    await asyncio.Event().wait()
                await send(message)

            await app(scope, receive, never)

        stuck.state = app.state
        assert [part["type"] for part in called(stuck, {**LONG, "stream": True})] == ["http.response.start"]
        while engine.stats().running:
            threading.Event().wait(0.005)
        assert engine.stats().used_pages == 0
        assert app.state.lattice.in_flight == 0


@pytest.mark.slow
def test_a_thousand_idle_connections(models):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4000:
        pytest.skip("this process may not open 4,000 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4000), hard))
    try:
        app = models.app(ServeConfig(header_seconds=60))
        with contextlib.ExitStack() as stack, served_at(app) as (server, address):
            body = {"model": "told", "messages": ASKED, "temperature": 0}
            for _ in range(1000):
                stack.enter_context(connected(address))
            client = stack.enter_context(httpx2.Client(base_url=address, timeout=60))
            for _ in range(20):
                answer = client.post("/v1/chat/completions", json=body)
                assert answer.json()["choices"][0]["message"]["content"] == "Yes, 😀."
            assert len(server.server_state.connections) >= 990
            stack.close()
            while server.server_state.connections:
                threading.Event().wait(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Wide:
    """An encoder whose answers fill the buffers of a socket."""

    dimension = 4096
    max_tokens = 16

    def count_tokens(self, texts):
        return np.ones(len(texts), np.int32)

    def encode(self, texts):
        return SimpleNamespace(vectors=np.full((len(texts), self.dimension), np.pi, np.float32))


@pytest.fixture
def small_buffers(monkeypatch):
    """Answers of 600 kB then wait for their reader."""

    def listening(*arguments, **settings):
        made = listen(*arguments, **settings)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return made

    monkeypatch.setattr(server_module, "listen", listening)


WIDE = json.dumps({"model": "wide", "input": ["a"] * 8}).encode()


def test_a_client_that_reads_no_answer_holds_no_place(monkeypatch, small_buffers):
    monkeypatch.setattr(connection_module, "READ_SECONDS", 0.2)
    app = create_app(embeddings={"wide": Wide()})
    body = WIDE
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with served_at(app) as (server, address), connected(address) as connection:
        connection.sendall((head + body) * 3)  # the second one's answer waits for a reader of the first one's
        connection.recv(1)
        while server.server_state.connections or app.state.lattice.in_flight:
            threading.Event().wait(0.01)


def test_a_slow_reader_gets_all(monkeypatch, small_buffers):
    monkeypatch.setattr(connection_module, "READ_SECONDS", 0.2)
    body = WIDE
    head = f"POST /v1/embeddings HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with served_at(create_app(embeddings={"wide": Wide()})) as (_, address), connected(address) as connection:
        connection.sendall(head + body)
        parts = []
        for _ in range(5):
            time.sleep(0.06)
            parts.append(connection.recv(2**16))
        parts.append(rest(connection))
        answer = json.loads(b"".join(parts).partition(b"\r\n\r\n")[2])
        assert [len(entry["embedding"]) for entry in answer["data"]] == [4096] * 8


class Written(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self):
        super().__init__()
        self.parts = []

    def write(self, data):
        if data:
            self.parts.append(bytes(data))

    def is_closing(self):
        return False

    def pause_reading(self):
        pass

    resume_reading = close = pause_reading


def test_an_answer_of_known_length_is_one_write(models):
    config = server_config(models.app())
    config.load()
    requests = [b"GET /health", b"HEAD /health", b"GET /v1/models/none", b"GET /nothing"]

    async def answers():
        state, written = ServerState(), Written()
        connection = config.http_protocol_class(config=config, server_state=state, app_state={})
        connection.connection_made(written)
        for request in requests:
            connection.data_received(request + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await asyncio.gather(*state.tasks)
        connection.connection_lost(None)
        return written.parts

    parts = asyncio.run(answers())
    assert [part.split()[1] for part in parts] == [b"200", b"200", b"404", b"404"]
    assert [part.endswith(b"}") for part in parts] == [True, False, True, True]


def test_an_offer_of_another_protocol_is_ignored_without_advice(slow, caplog):
    with connected(slow[1]) as connection:
        connection.sendall(
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"
            b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"
        )
        assert rest(connection).startswith(b"HTTP/1.1 200")
    assert not caplog.records


class TestClientWatch:
    """The work is awaited in the request's task, so that it costs no other one."""

    @staticmethod
    def run(work, seconds=60.0, leaves=0.0):
        async def receive():
            await asyncio.sleep(leaves)
            return {"type": "http.disconnect"}

        async def watched():
            try:
                async with ClientWatch(receive, seconds):
                    return await work()
            finally:
                assert asyncio.current_task().cancelling() == 0
                await asyncio.sleep(0)  # nothing comes later

        return asyncio.run(watched())

    def test_a_client_that_leaves_ends_the_work(self):
        ended = []

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        with pytest.raises(ClientDisconnect):
            self.run(work)
        assert ended == [True]
        with pytest.raises(TimeoutError):
            self.run(work, seconds=0.005)
        with pytest.raises(TimeoutError):
            self.run(work, seconds=0.03, leaves=30)

    def test_work_that_has_ended_is_not_cancelled(self):
        async def work():
            await asyncio.sleep(0.03)
            return "done"

        assert self.run(work, leaves=30) == "done"

        async def stubborn():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "done"

        assert self.run(stubborn) == "done"

    def test_another_cancellation_stays_one(self):
        async def work():
            asyncio.current_task().cancel()
            await asyncio.Event().wait()

        async def watched():
            async with ClientWatch(asyncio.Event().wait, 60):
                await work()

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(watched())
