"""Numbers that no type holds, in every place of a server's answer, are typed errors or not believed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lattice_embed import InvalidInputError, RemoteServiceError
from lattice_embed.cli import main
from lattice_embed.errors import NonFiniteVectorError
from lattice_embed.remote.retrying import retry_after

HUGE = [2**63, 2**64, 10**30, 10**309, 10**400, 10**4299, -(10**400)]


@pytest.mark.parametrize("number", HUGE, ids=lambda number: f"{number.bit_length()} bits")
def test_vector_with_a_huge_integer(number: int, server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.changed(lambda document: document["data"][0].update(embedding=[number] * server.dimensions))
    service = connect()
    if abs(number) < 10**38:
        assert embed(service, ["a"]).dimensions == server.dimensions
        return
    with pytest.raises((RemoteServiceError, NonFiniteVectorError)):
        embed(service, ["a"])


@pytest.mark.parametrize("number", HUGE, ids=lambda number: f"{number.bit_length()} bits")
def test_index_that_is_huge(number: int, server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.changed(lambda document: document["data"][0].update(index=number))
    with pytest.raises(RemoteServiceError, match="index") as caught:
        embed(connect(), ["a"])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("number", HUGE, ids=lambda number: f"{number.bit_length()} bits")
def test_tokens_that_cannot_be_are_not_believed(number: int, server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.changed(lambda document: document.update(usage={"prompt_tokens": number}))
    service = connect()
    assert embed(service, ["a"]).token_counts.tolist() == [-1]
    assert service.usage.prompt_tokens == 0


def test_largest_count_of_tokens_is_believed(server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.changed(lambda document: document.update(usage={"prompt_tokens": 2**31 - 1}))
    assert embed(connect(), ["a"]).token_counts.tolist() == [2**31 - 1]


def test_number_of_more_digits_than_python_reads(server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.raw(lambda body: body.replace(b'"index": 0', b'"index": ' + b"9" * 5000))
    with pytest.raises(RemoteServiceError, match="no whole JSON"):
        embed(connect(), ["a"])


@pytest.mark.parametrize("length", ["9" * 5000, "9" * 30, "0" * 5000 + "99999999999999"])
def test_length_that_is_announced_with_thousands_of_digits(length: str, connect: Any) -> None:
    from lattice_embed.remote.errors import RemoteResponseError
    from lattice_embed.remote.transport import HttpRequest, _Body

    head: Any = SimpleNamespace(status_code=200, headers={"content-length": length})
    with pytest.raises(RemoteResponseError, match="more than"):
        _Body(head, HttpRequest({}, b"", 1000, 1.0), "server")


@pytest.mark.parametrize(
    "value", ["9" * 5000, "1e999", "Mon, 01 Jan 99999 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:00 +99999999", "\0", "-1"]
)
def test_wait_that_makes_no_sense_is_none(value: str) -> None:
    assert retry_after({"retry-after": value, "retry-after-ms": value}) in (None, 0.0)


@pytest.mark.parametrize("count", [10**400, 2**31, 2**70])
def test_count_of_tokens_by_the_caller(count: int, server: Any, connect: Any, embed: Any) -> None:
    with pytest.raises(InvalidInputError):
        embed(connect(count_tokens=lambda text: count), ["a"])


Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "arguments",
    [
        ["embed", "--model", "minilm", "--output-dim", "64", "a"],
        ["embed", "--model", "qwen3-embedding-0.6b", "--output-dim", "1", "a"],
        ["embed", "--model", "openai", "--output-dim", "99999", "a"],
        ["similarity", "--model", "minilm", "--top", "0", "a", "b"],
        ["store", "query", "s.db", "--top", "0", "a"],
    ],
)
def test_request_that_makes_no_sense_ends_with_status_2(
    arguments: list[str], loader: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("one\n")
    assert main(["store", "import", "s.db", "--model", "minilm", "--input", "texts.txt"]) == 0
    capsys.readouterr()
    loader.calls.clear()
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("lattice-embed: error: ")
    assert loader.calls == []


def test_variable_that_holds_no_dimension_ends_with_status_2(
    loader: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICE_EMBED_DIM", "many")
    assert main(["embed", "--model", "qwen3-embedding-0.6b", "a"]) == 2
