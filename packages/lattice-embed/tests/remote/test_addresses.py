"""Which servers are asked offline, and which are given a key without encryption: this machine as written, and no other."""

from __future__ import annotations

import asyncio
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest

from lattice_embed import (
    InvalidInputError,
    RemoteConnectionError,
    RemoteEmbeddingService,
    RemoteOfflineError,
    RemoteResponseError,
    RemoteServiceError,
)
from lattice_embed.cli import main
from lattice_embed.remote.address import is_loopback

Capture = pytest.CaptureFixture[str]

KEY = "sk-THISISSECRET0123456789"

THIS_MACHINE = ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", "127.255.255.254", "[::1]", "[0:0:0:0:0:0:0:1]"]
ELSEWHERE = [
    "api.openai.com",
    "localhost.evil.com",
    "127.0.0.1.evil.com",
    "evil-localhost",
    "localhost.localdomain",
    "localhost.",
    "127.0.0.1.",
    "my.localhost",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "127.1",
    "0.0.0.0",
    "128.0.0.1",
    "126.255.255.255",
    "[::]",
    "[::2]",
    "[::1%25eth0]",
    "[::ffff:127.0.0.1]",
    "[fe80::1]",
    "192.168.0.1",
]
NO_ADDRESS = [
    "http://127.0.0.1@evil.com/v1",
    "http://localhost:80@evil.com/v1",
    "http://127.0.0.1\\@evil.com/v1",
    "http://localhost\t.evil.com/v1",
    "http://127。0。0。1/v1",
    "http://ⓛocalhost/v1",
    "http://0177.0.0.1/v1",
    "http://127.0.0.01/v1",
    "http://[::1/v1",
    "http://127.0.0.1:80:90/v1",
    "http:///v1",
    "//localhost/v1",
    "",
]


@pytest.fixture
def offline(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, and every try to reach another machine fails the test."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"a name was looked up: {arguments}")

    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.parametrize("host", ELSEWHERE)
def test_other_machines_are_not_asked_offline(host: str, offline: None, connect: Any, embed: Any) -> None:
    for scheme in ("http", "https"):
        with pytest.raises(RemoteOfflineError, match="LATTICE_OFFLINE is set: no connection to") as caught:
            embed(connect(base_url=f"{scheme}://{host}:8080/v1"), ["a"])
        assert not caught.value.retryable


@pytest.mark.parametrize("host", THIS_MACHINE)
def test_this_machine_is_asked_offline(host: str, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    connect(base_url=f"http://{host}/v1")._address.check_online()
    assert is_loopback(host.lower().strip("[]"))


@pytest.mark.parametrize("url", NO_ADDRESS)
def test_addresses_that_two_readers_read_in_two_ways_are_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="base_url"):
        RemoteEmbeddingService("m", base_url=url)


@pytest.mark.parametrize("value", ["", "0", "false", "No", "off"])
def test_values_that_count_as_not_set(value: str, server: Any, connect: Any, embed: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("LATTICE_OFFLINE", value)
    connect(base_url="https://api.example/v1")._address.check_online()


def test_server_on_this_machine_is_asked_offline_past_any_proxy(
    server: Any, connect: Any, embed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://proxy.example:3128")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    embed(connect(), ["a"])
    assert len(server.asked) == 1


def test_going_offline_counts_at_the_next_call(server: Any, connect: Any, embed: Any, monkeypatch: Any) -> None:
    service = connect()
    embed(service, ["a"])
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    embed(service, ["b"])
    assert len(server.asked) == 2


def test_redirect_away_from_this_machine_is_not_followed_offline(
    server: Any, connect: Any, embed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    server.usual = server.status(307, b"", Location="http://evil.example/v1/embeddings")
    with pytest.raises(RemoteResponseError, match=r"redirects to http://evil\.example"):
        embed(connect(), ["a"])


def test_command_is_refused_offline(offline: None, capsys: Capture) -> None:
    assert main(["embed", "--base-url", "http://embeddings.example/v1", "--model", "m", "a"]) == 1
    assert "LATTICE_OFFLINE is set" in capsys.readouterr().err


# Keys without encryption

SECRETS: list[dict[str, Any]] = [
    {"api_key": KEY},
    {"api_key_variable": "SOME_KEY"},
    {"headers": {"api-key": KEY}},
    {"headers": {"Authorization": f"Bearer {KEY}"}},
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("host", ["host", "10.0.0.1", "localhost.evil.com", "2130706433", "[::ffff:127.0.0.1]"])
def test_key_is_not_sent_unencrypted_to_another_machine(secret: dict[str, Any], host: str) -> None:
    with pytest.raises(InvalidInputError, match=r"unencrypted.*allow_plain_http=True") as caught:
        RemoteEmbeddingService("m", base_url=f"http://{host}/v1", **secret)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("secret", SECRETS)
def test_key_is_sent_where_that_is_safe_or_allowed(secret: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("https://host/v1", "http://localhost:1/v1", "http://127.0.0.9/v1", "http://[::1]:8080/v1"):
        RemoteEmbeddingService("m", base_url=url, **secret).close()
    RemoteEmbeddingService("m", base_url="http://host/v1", allow_plain_http=True, **secret).close()
    monkeypatch.setenv("LATTICE_ALLOW_PLAIN_HTTP", "1")
    RemoteEmbeddingService("m", base_url="http://host/v1", **secret).close()
    with pytest.raises(InvalidInputError, match="unencrypted"):
        RemoteEmbeddingService("m", base_url="http://host/v1", allow_plain_http=False, **secret)
    monkeypatch.setenv("LATTICE_ALLOW_PLAIN_HTTP", "0")
    with pytest.raises(InvalidInputError, match="unencrypted"):
        RemoteEmbeddingService("m", base_url="http://host/v1", **secret)


def test_server_without_a_key_needs_no_permission() -> None:
    RemoteEmbeddingService("m", base_url="http://host/v1").close()
    with pytest.raises(InvalidInputError, match="allow_plain_http is 'yes'"):
        RemoteEmbeddingService("m", base_url="http://host/v1", allow_plain_http="yes")  # type: ignore[arg-type]


def test_permission_survives_pickling() -> None:
    service = RemoteEmbeddingService("m", base_url="http://host/v1", api_key_variable="K", allow_plain_http=True)
    with pickle.loads(pickle.dumps(service)) as copy:
        assert copy.base_url == "http://host/v1"


def test_key_for_this_machine_passes_a_proxy_elsewhere_by(
    server: Any, connect: Any, embed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    embed(connect(api_key=KEY), ["a"])
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


def test_both_clients_of_a_loop_are_closed(server: Any, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with connect() as service:
            await service.aembed(["a"])
            monkeypatch.setenv("LATTICE_OFFLINE", "1")
            await service.aembed(["b"])
            assert len(service._transport._keepers) == 2
        assert service._transport._keepers == {}

    asyncio.run(run())


def test_command_needs_the_permission_by_name(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    monkeypatch.setenv("SOME_KEY", KEY)
    arguments = [
        "embed",
        "--base-url",
        "http://embeddings.example/v1",
        "--api-key-variable",
        "SOME_KEY",
        "--model",
        "m",
        "a",
    ]
    assert main(arguments) == 2
    assert "--allow-plain-http" in capsys.readouterr().err
    assert main([*arguments, "--allow-plain-http"]) == 1  # past this check, and offline
    assert "LATTICE_OFFLINE" in capsys.readouterr().err
    assert main(["embed", "--model", "minilm", "--allow-plain-http", "a"]) == 2
    assert "--allow-plain-http goes with --base-url" in capsys.readouterr().err


# What messages name


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_dead_proxy_is_named_and_not_the_server(scheme: str, connect: Any, embed: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv(f"{scheme}_proxy", "http://me:hunter2@127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    words = r"no connection through the environment's proxy 127\.0\.0\.1:9"
    with pytest.raises(RemoteConnectionError, match=words) as caught:
        embed(connect(base_url=f"{scheme}://embeddings.example/v1"), ["a"])
    assert "embeddings.example" in str(caught.value)
    assert "NO_PROXY" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["gopher://proxy:1", "http://[::1", "http://proxy:port"])
def test_proxy_that_is_no_address_is_a_typed_error(proxy: str, connect: Any, embed: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(RemoteServiceError, match="environment's proxy"):
        embed(connect(base_url="http://embeddings.example/v1"), ["a"])


def test_server_past_the_proxy_is_named_itself(connect: Any, embed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(RemoteConnectionError, match=r"no answer from 127\.0\.0\.1:10: ") as caught:
        embed(connect(base_url="http://127.0.0.1:10/v1"), ["a"])
    assert "proxy" not in str(caught.value)


@pytest.mark.parametrize("status", [404, 405])
def test_not_found_names_the_whole_address(status: int, server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.status(status, b"no such page")
    with pytest.raises(RemoteServiceError) as caught:
        embed(connect(), ["a"])
    assert f"the address asked is {server.url}/embeddings" in str(caught.value)
