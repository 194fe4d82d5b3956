"""The API key goes to the server that was named, and nowhere else."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from lattice_embed import InvalidInputError, RemoteAuthenticationError, RemoteEmbeddingService, RemoteServiceError

KEY = "sk-THISISSECRET0123456789"


def test_key_is_sent_as_bearer(server: Any, connect: Any, embed: Any) -> None:
    embed(connect(api_key=KEY), ["a"])
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.asked[0].path == "/v1/embeddings"


def test_key_is_read_from_the_variable_that_is_named(
    server: Any, connect: Any, embed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = connect(api_key_variable="HOUSE_KEY")
    monkeypatch.delenv("HOUSE_KEY", raising=False)
    with pytest.raises(RemoteAuthenticationError, match="set HOUSE_KEY"):
        embed(service, ["a"])
    monkeypatch.setenv("HOUSE_KEY", f" {KEY}\n")  # as a file of secrets ends
    embed(service, ["a"])
    assert [asked.headers["authorization"] for asked in server.asked] == [f"Bearer {KEY}"]


def test_openai_key_goes_to_no_other_server(
    server: Any, connect: Any, embed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    embed(connect(), ["a"])
    assert "authorization" not in server.asked[0].headers
    assert KEY not in str(server.asked[0])


def test_headers_of_the_caller_are_sent(server: Any, connect: Any, embed: Any) -> None:
    embed(connect(headers={"api-key": KEY, "X-Project": "house"}), ["a"])
    assert server.asked[0].headers["api-key"] == KEY
    assert server.asked[0].headers["x-project"] == "house"
    assert "authorization" not in server.asked[0].headers


def test_key_appears_in_no_repr(connect: Any) -> None:
    service = connect(api_key=KEY, headers={"api-key": KEY})
    for thing in (service, *vars(service).values()):
        assert KEY not in repr(thing)
    assert KEY not in repr(service._request.__self__.__dict__)


@pytest.mark.parametrize("status", [400, 401, 429, 500, 302, 200])
def test_key_that_the_server_repeats_is_blotted_out(server: Any, connect: Any, embed: Any, status: int) -> None:
    told = {"error": {"message": f"Incorrect API key provided: {KEY}. " + "x" * 235 + KEY}}
    server.usual = server.status(status, told, Location=f"http://elsewhere/{KEY}")
    with pytest.raises(RemoteServiceError) as caught:
        embed(connect(api_key=KEY), ["a"])
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(vars(caught.value))
    assert "sk-THIS" not in shown
    assert KEY.encode() not in pickle.dumps(caught.value)


def test_key_is_in_no_log(server: Any, connect: Any, embed: Any, caplog: pytest.LogCaptureFixture) -> None:
    server.script = [server.status(503), server.reset(0.5)]
    with caplog.at_level(logging.DEBUG):
        embed(connect(api_key=KEY), ["a"])
    assert caplog.text  # the HTTP library does log
    assert KEY not in caplog.text


def test_errors_chain_to_nothing_that_holds_the_key(server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.reset(0)
    with pytest.raises(RemoteServiceError) as caught:
        embed(connect(api_key=KEY), ["a"])
    error: BaseException | None = caught.value
    while error is not None:
        assert not hasattr(error, "request"), type(error)
        error = error.__cause__ or error.__context__


def test_key_does_not_travel_in_pickles(connect: Any, monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    service = connect(api_key=KEY, api_key_variable="HOUSE_KEY")
    stored = pickle.dumps(service)
    assert KEY.encode() not in stored
    monkeypatch.delenv("HOUSE_KEY", raising=False)
    with pickle.loads(stored) as made, pytest.raises(RemoteAuthenticationError, match="HOUSE_KEY"):
        made.embed(["a"])
    with pytest.raises(TypeError, match="custom headers"):
        pickle.dumps(connect(headers={"api-key": KEY}))
    with pytest.raises(TypeError, match="not pickled"):
        copy.copy(service._credentials)


@pytest.mark.parametrize("key", ["", " ", "two words", "line\nbreak", "ключ", 5])
def test_key_that_http_cannot_carry_is_refused_unseen(key: Any) -> None:
    with pytest.raises(InvalidInputError, match="api_key holds no API key") as caught:
        RemoteEmbeddingService("m", base_url="http://localhost/v1", api_key=key)
    assert not str(key).strip() or str(key) not in str(caught.value)


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"a": "secret\r\nb: c"}, {"a": ""}, {"a": "ключ"}, {"": "c"}])
def test_header_that_http_cannot_carry_is_refused_unseen(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="headers") as caught:
        RemoteEmbeddingService("m", base_url="http://localhost/v1", headers=headers)
    assert "secret" not in str(caught.value)


def test_password_in_the_address_is_refused_unseen() -> None:
    with pytest.raises(InvalidInputError, match="user name or password") as caught:
        RemoteEmbeddingService("m", base_url="https://user:hunter2@host/v1")
    assert "hunter2" not in str(caught.value)


def test_proxy_of_the_environment_is_used(connect: Any, embed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            body = b'{"data": [{"index": 0, "embedding": [3.0, 4.0]}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        try:
            result = embed(connect(base_url="http://embeddings.example/v1"), ["a"])
        finally:
            proxy.shutdown()
            thread.join()
    assert result.vectors.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]
    assert seen == ["http://embeddings.example/v1/embeddings"]


def test_key_goes_into_the_header_that_a_protocol_names() -> None:
    from lattice_embed.remote import Credentials

    assert Credentials(KEY, None, None, key_header="X-Api-Key").headers("server") == {"x-api-key": KEY}
    assert Credentials(KEY, None, None).headers("server") == {"authorization": f"Bearer {KEY}"}
    given = Credentials(None, "UNSET_VARIABLE", {"X-Api-Key": KEY}, key_header="x-api-key")
    assert given.headers("server") == {"x-api-key": KEY}
    with pytest.raises(InvalidInputError, match="no name of a header"):
        Credentials(KEY, None, None, key_header="x api key")


def test_parts_of_the_service_speak_any_protocol_over_http(server: Any) -> None:
    from lattice_embed.remote import HttpRequest, HttpTransport, ServerAddress, failure_of, http_library

    server.script = [server.status(418, {"error": "teapot"})]
    address = ServerAddress.parse(server.url, http_library())
    transport = HttpTransport(f"{address.url}/other", address.server)
    try:
        request = HttpRequest(headers={}, body=b'{"input": []}', limit=1000, seconds=10.0)
        answer = transport.post(request)
    finally:
        transport.close()
    assert server.asked[0].path == "/v1/other"
    assert "teapot" in str(failure_of(answer, address.server, "api_key"))
