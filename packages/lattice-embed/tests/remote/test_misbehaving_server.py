"""The remote service and a server that misbehaves in every way: right order, right count, nothing paid twice."""

from __future__ import annotations

import asyncio
import gzip
import json
import pickle
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest

from lattice_embed import (
    LatticeEmbedError,
    NonFiniteVectorError,
    RemoteAuthenticationError,
    RemoteConnectionError,
    RemoteEmbeddingService,
    RemoteRateLimitError,
    RemoteRequestError,
    RemoteResponseError,
    RemoteServiceError,
    RemoteTimeoutError,
    RetryPolicy,
)
from lattice_embed.remote.protocol import read_vectors
from lattice_embed.remote.retrying import retry_after

TEXTS = [f"text {number}" for number in range(6)]


def check(server: Any, result: Any) -> None:
    np.testing.assert_allclose(result.vectors, [server.unit(text) for text in TEXTS], atol=1e-6)


# What passes is waited out

PASSING: dict[str, Callable[[Any], Any]] = {
    "429": lambda server: server.status(429),
    "429 with seconds": lambda server: server.status(429, Retry_After="0.05"),
    "429 with milliseconds": lambda server: server.status(429, retry_after_ms="50"),
    "429 with nonsense": lambda server: server.status(429, Retry_After="soon"),
    "408": lambda server: server.status(408),
    "500": lambda server: server.status(500, b"<html>oops"),
    "502": lambda server: server.status(502),
    "503": lambda server: server.status(503, Retry_After="0"),
    "529": lambda server: server.status(529, {"error": {"message": "overloaded"}}),
    "reset before the answer": lambda server: server.reset(0),
    "reset in the middle": lambda server: server.reset(0.5),
    "slow": lambda server: server.slow(1),
}


@pytest.mark.parametrize("kind", PASSING)
def test_what_passes_is_waited_out(server: Any, connect: Any, kind: str) -> None:
    waited_out(server, connect, kind, lambda service, texts: service.embed(texts))


@pytest.mark.parametrize("kind", ["429 with seconds", "reset before the answer", "reset in the middle", "slow"])
def test_what_a_library_tells_in_its_own_way_is_waited_out(server: Any, connect: Any, embed: Any, kind: str) -> None:
    waited_out(server, connect, kind, embed)


def waited_out(server: Any, connect: Any, kind: str, embed: Any) -> None:
    server.script = [PASSING[kind](server)] * 2
    service = connect(timeout=0.5 if kind == "slow" else 30)
    check(server, embed(service, TEXTS))
    assert [asked.texts for asked in server.asked] == [TEXTS] * 3
    assert (service.usage.requests, service.usage.retries, service.usage.texts) == (3, 2, 6)


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        ("429", RemoteRateLimitError, 429),
        ("500", RemoteServiceError, 500),
        ("reset in the middle", RemoteConnectionError, None),
        ("slow", RemoteTimeoutError, None),
    ],
)
def test_what_does_not_pass_ends_after_the_retries(
    server: Any, connect: Any, embed: Any, kind: str, error: type[RemoteServiceError], status: int | None
) -> None:
    server.usual = PASSING[kind](server)
    with pytest.raises(error) as caught:
        embed(connect(timeout=0.1 if kind == "slow" else 30), TEXTS)
    assert caught.value.status == status
    assert caught.value.attempts == len(server.asked) == 4
    assert "asked 4 times" in str(caught.value)


def test_nobody_there(server: Any, connect: Any, embed: Any) -> None:
    service = connect(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(RemoteConnectionError, match=r"127\.0\.0\.1:9.*asked 4 times") as caught:
        embed(service, TEXTS)
    assert isinstance(caught.value, ConnectionError)


def test_retry_after_is_waited_for_by_every_call_of_the_service(server: Any, connect: Any, library: str) -> None:
    """The second call begins while the first one waits, and its only request comes when that may go on."""
    refuse, answered = server.status(429, Retry_After="0.6"), threading.Event()

    def refuse_one(handler: Any, asked: Any) -> None:
        refuse(handler, asked)
        answered.set()

    server.script = [refuse_one]
    service = connect()

    async def two() -> None:
        first = asyncio.create_task(service.aembed(["first"]))
        while not answered.is_set():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)  # for the answer to arrive
        assert not first.done()
        await asyncio.gather(first, service.aembed(["second"]))

    asyncio.run(two())
    assert sorted(asked.texts for asked in server.asked) == [["first"], ["first"], ["second"]]
    assert all(asked.time - server.asked[0].time >= 0.59 for asked in server.asked[1:])


def test_retry_after_longer_than_allowed_ends_the_call(server: Any, connect: Any, embed: Any) -> None:
    server.script = [server.status(429, {"error": {"message": "slow down"}}, Retry_After="7")]
    with pytest.raises(RemoteRateLimitError, match="slow down") as caught:
        embed(connect(), TEXTS)
    assert caught.value.retry_after == 7
    assert len(server.asked) == 1


def test_used_up_quota_is_not_asked_again(server: Any, connect: Any, embed: Any) -> None:
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    server.script = [server.status(429, body)]
    with pytest.raises(RemoteRateLimitError, match="quota"):
        embed(connect(), TEXTS)
    assert len(server.asked) == 1


def test_retry_after_is_read_in_every_form() -> None:
    in_ten = format_datetime(datetime.now(UTC) + timedelta(seconds=10), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=10), usegmt=True)
    assert retry_after({"retry-after": "3"}) == 3
    assert retry_after({"retry-after": " 1.5 ", "retry-after-ms": "250"}) == 0.25
    assert 8 < (retry_after({"retry-after": in_ten}) or 0) <= 10
    assert retry_after({"retry-after": past}) == 0
    skewed = {"date": "Wed, 01 Jan 2020 00:00:00 GMT", "retry-after": "Wed, 01 Jan 2020 00:00:07 GMT"}
    assert retry_after(skewed) == 7  # by the server's clock, whatever this machine's says
    assert retry_after(skewed | {"date": "nonsense"}) == 0
    for nonsense in ("", "soon", "-1", "nan", "inf", "1e400", "Wed, 99 Foo"):
        assert retry_after({"retry-after": nonsense}) is None, nonsense
    assert retry_after({}) is None


def test_delays_grow_to_a_limit_and_differ() -> None:
    random.seed(5)
    policy = RetryPolicy(initial_delay=1, max_delay=8)
    for retry, longest in enumerate([1, 2, 4, 8, 8, 8]):
        drawn = [policy.delay(retry) for _ in range(50)]
        assert longest / 2 <= min(drawn) < max(drawn) <= longest
        assert len(set(drawn)) > 40
    assert policy.delay(10_000) <= 8


# Time


def test_deadline_ends_a_call_whatever_the_retries(server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.status(503)
    retry = RetryPolicy(max_retries=1_000, initial_delay=0.05, max_delay=0.05)
    with pytest.raises(RemoteServiceError):
        embed(connect(deadline=1, retry=retry), TEXTS)
    assert 2 < len(server.asked) < 100


@pytest.mark.parametrize("options", [{"timeout": 0.3}, {"deadline": 0.3}])
def test_answer_that_drips_is_cut_off(server: Any, connect: Any, embed: Any, options: dict[str, float]) -> None:
    server.usual = server.drip(0.05)
    with pytest.raises(RemoteTimeoutError) as caught:
        embed(connect(**options, retry=RetryPolicy(max_retries=0)), TEXTS)
    assert isinstance(caught.value, TimeoutError)
    assert server.dripped < 100


@pytest.mark.parametrize("options", [{"deadline": 0.3}, {"timeout": 0.3, "retry": RetryPolicy(max_retries=0)}])
def test_head_that_drips_is_cut_off(server: Any, connect: Any, embed: Any, options: dict[str, Any]) -> None:
    sent = 0

    def drip(handler: Any, asked: Any) -> None:
        nonlocal sent
        for _ in range(200):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nServer: slow" if sent == 0 else b"w")
            handler.wfile.flush()
            sent += 1
            time.sleep(0.02)

    server.usual = drip
    with pytest.raises(RemoteTimeoutError):
        embed(connect(**options), TEXTS)
    assert sent < 100


def test_kept_connection_that_the_server_closes_costs_no_retry(server: Any, connect: Any, library: str) -> None:
    def close(handler: Any, asked: Any) -> None:
        handler.close_connection = True

    usual = server.usual
    for behaviour in (close, server.reset(0)):
        server.script = [usual, behaviour]
        service = connect(retry=RetryPolicy(max_retries=0))
        check(server, service.embed(TEXTS))
        check(server, service.embed(TEXTS))
        assert service.usage.requests == 3
        assert service.usage.retries == 1

        async def twice(service: Any) -> None:
            check(server, await service.aembed(TEXTS))
            check(server, await service.aembed(TEXTS))

        server.script = [usual, behaviour]
        asyncio.run(twice(connect(retry=RetryPolicy(max_retries=0))))
    server.script = [close]  # of a new connection: the server fails
    with pytest.raises(RemoteConnectionError):
        connect(retry=RetryPolicy(max_retries=0)).embed(TEXTS)


def test_deadline_holds_for_all_requests_together(server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.slow(0.15)
    server.usual, slow = (lambda handler, asked: handler.reply(server.document(asked))), server.usual
    server.script = [slow] * 9
    with pytest.raises(RemoteTimeoutError, match=r"deadline|within"):
        embed(connect(deadline=0.4, max_texts_per_request=1), TEXTS)
    assert len(server.asked) < 5


def test_cancelled_call_breaks_off_its_request(server: Any, connect: Any, library: str) -> None:
    service = connect(max_texts_per_request=2)
    server.script = [server.usual, server.drip(0.05)]

    async def cancel() -> int:
        waiting = asyncio.create_task(service.aembed(TEXTS))
        while server.dripped < 2 and not waiting.done():
            await asyncio.sleep(0.01)
        before: int = server.dripped
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return server.dripped - before

    assert asyncio.run(cancel()) < 20  # the answer has more than a hundred
    assert len(server.asked) == 2
    check(server, service.embed(TEXTS))
    assert server.all_texts()[4:] == TEXTS[2:]  # the first two were paid for


# Nothing is paid twice


def test_request_that_succeeded_is_not_made_again(server: Any, connect: Any, embed: Any) -> None:
    server.script = [server.usual, server.status(500), server.reset(0.5), server.usual, server.status(429)]
    service = connect(max_texts_per_request=2)
    check(server, embed(service, TEXTS))
    first, second, third = TEXTS[:2], TEXTS[2:4], TEXTS[4:]
    assert [asked.texts for asked in server.asked] == [first, second, second, second, third, third]
    assert service.usage.texts == 6


def test_call_made_again_asks_for_the_rest_only(server: Any, connect: Any, embed: Any) -> None:
    server.script = [server.usual, server.usual, server.status(400)]
    service = connect(max_texts_per_request=2)
    with pytest.raises(RemoteRequestError):
        embed(service, TEXTS)
    check(server, embed(service, TEXTS))
    assert [asked.texts for asked in server.asked[3:]] == [TEXTS[4:]]
    embed(service, TEXTS)  # this one is a new call: it pays for all
    assert len(server.all_texts()) == 6 + 2 + 6


def test_vectors_of_failed_calls_are_kept_up_to_a_limit(server: Any, connect: Any) -> None:
    from lattice_embed.remote.paid_vectors import PaidVectors

    kept = PaidVectors(3)
    kept.put({text: server.vector(text) for text in "abcd"})
    kept.put({"b": server.vector("b"), "e": server.vector("e")})
    assert set(kept.take("abcde")) == {"d", "b", "e"}
    assert kept.take("abcde") == {}


def test_body_that_is_too_large_is_cut_in_two(server: Any, connect: Any, embed: Any) -> None:
    def at_most_two(handler: Any, asked: Any) -> None:
        if len(asked.texts) > 2:
            handler.reply({"error": {"message": "too large"}}, 413)
        else:
            handler.reply(server.document(asked))

    server.usual = at_most_two
    service = connect()
    check(server, embed(service, TEXTS))
    assert [len(asked.texts) for asked in server.asked] == [6, 3, 1, 2, 3, 1, 2]
    assert service.usage.texts == 6
    server.usual = server.status(413, {"error": {"message": "too large"}})
    with pytest.raises(RemoteRequestError, match="413: too large"):
        embed(service, ["another"])


# Refusals


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (400, {"error": {"message": "input is\nempty", "type": "invalid"}}, RemoteRequestError, "400: input is empty"),
        (
            401,
            {"error": {"message": "Incorrect API key"}},
            RemoteAuthenticationError,
            "Incorrect API key .*check api_key",
        ),
        (403, {}, RemoteAuthenticationError, "403"),
        (404, {"error": "model not found"}, RemoteRequestError, "404: model not found"),
        (422, {"detail": [{"loc": ["input"]}]}, RemoteRequestError, "422: .*input"),
        (418, b"\xff\xfe\x00 teapot", RemoteRequestError, "418: .*teapot"),
        (404, b"x" * 1_000_000, RemoteRequestError, "404: x+\\.\\.\\."),
    ],
)
def test_refusal_is_told_in_the_servers_words_and_not_repeated(
    server: Any, connect: Any, status: int, body: object, error: type[Exception], message: str
) -> None:
    server.usual = server.status(status, body)
    with pytest.raises(error, match=message) as caught:
        connect().embed(TEXTS)
    assert len(server.asked) == 1
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_refusals_look_alike_in_every_library(server: Any, connect: Any, embed: Any) -> None:
    server.script = [server.status(204, b"", Content_Length="0"), server.status(404, b"x" * 1_000_000)]
    with pytest.raises(RemoteResponseError, match="no whole JSON"):
        embed(connect(), TEXTS)
    with pytest.raises(RemoteRequestError, match=r"404: x+\.\.\."):
        embed(connect(), TEXTS)
    assert len(server.asked) == 2


def test_redirect_is_not_followed(server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.status(307, b"", Location="http://127.0.0.1:9/elsewhere")
    with pytest.raises(RemoteResponseError, match=r"redirects to http://127\.0\.0\.1:9/elsewhere.*set base_url"):
        embed(connect(api_key="sk-secret"), TEXTS)
    assert len(server.asked) == 1


# Answers that cannot be right are refused, and not asked for again: they were paid


def _item(document: dict[str, Any], **changes: object) -> None:
    document["data"][3].update(changes)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "one too few": (lambda document: document["data"].pop() and None, "5 vectors for 6 texts"),
    "one too many": (lambda document: document["data"].append(document["data"][0]), "7 vectors for 6 texts"),
    "none": (lambda document: {**document, "data": []}, "0 vectors for 6 texts"),
    "an index twice": (lambda document: _item(document, index=2), "two vectors for text 2"),
    "an index too high": (lambda document: _item(document, index=6), "index 6"),
    "an index below zero": (lambda document: _item(document, index=-1), "index -1"),
    "an index as text": (lambda document: _item(document, index="3"), "index '3'"),
    "an index as bool": (lambda document: _item(document, index=True), "index True"),
    "no index": (lambda document: document["data"][3].pop("index") and None, "index None"),
    "item is no object": (lambda document: document["data"].__setitem__(3, [1.0]), "index None"),
    "another length": (lambda document: _item(document, embedding=[0.5] * 7), "7 dimensions for text 3"),
    "no numbers": (lambda document: _item(document, embedding=[]), "neither a list"),
    "null": (lambda document: _item(document, embedding=None), "neither a list"),
    "text inside": (lambda document: _item(document, embedding=["1"] * 8), "else than numbers"),
    "null inside": (lambda document: _item(document, embedding=[None] * 8), "else than numbers"),
    "bool inside": (lambda document: _item(document, embedding=[True] * 8), "else than numbers"),
    "list inside": (lambda document: _item(document, embedding=[[1.0]] * 8), "else than numbers"),
    "a huge number": (lambda document: _item(document, embedding=[10**400] * 8), "too large"),
    "bad base64": (lambda document: _item(document, embedding="!!!!"), "no base64"),
    "base64 of half a number": (lambda document: _item(document, embedding="AAAAAAA="), "not a positive multiple of 4"),
    "no data": (lambda document: {"object": "list"}, "without vectors"),
    "error with status 200": (lambda document: {"error": {"message": "oops"}}, "without vectors: .*oops"),
    "a list": (lambda document: [document], "a JSON list"),
    "null document": (lambda document: b"null", "a JSON NoneType"),
}


def read(document: object) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_vectors(body, range(len(TEXTS)), None, "the server")


@pytest.mark.parametrize("kind", WRONG)
def test_answer_that_cannot_be_right_is_refused(kind: str) -> None:
    change, message = WRONG[kind]
    document = {"data": [{"index": index, "embedding": [0.5] * 8} for index in range(len(TEXTS))]}
    assert read(document).vectors.shape == (6, 8)
    replaced = change(document)
    with pytest.raises(RemoteResponseError, match=message):
        read(document if replaced is None else replaced)


@pytest.mark.parametrize("kind", ["one too few", "bad base64", "error with status 200"])
def test_answer_that_was_refused_is_not_asked_for_again(server: Any, connect: Any, embed: Any, kind: str) -> None:
    change, message = WRONG[kind]
    server.usual = server.changed(change)
    with pytest.raises(RemoteResponseError, match=message):
        embed(connect(), TEXTS)
    assert len(server.asked) == 1


def test_vectors_of_no_bytes_are_none(server: Any, connect: Any) -> None:
    """Of a model whose length is not known, and which is not to be scaled: else another check would find them."""
    server.usual = server.changed(lambda document: [item.update(embedding="") for item in document["data"]] and None)
    with pytest.raises(RemoteResponseError, match="has 0 bytes"):
        connect().embed(TEXTS, normalize=False)


@pytest.mark.parametrize(
    "edit",
    [
        lambda body: body[: len(body) // 2],
        lambda body: b"",
        lambda body: b"[" * 100_000,
        lambda body: b"<html><body>It works!</body></html>",
        lambda body: b"\xff" + body,
        lambda body: b'{"data": ' + b"9" * 10_000 + b"}",
    ],
    ids=["truncated", "empty", "nested", "html", "not utf-8", "long number"],
)
def test_answer_that_is_no_json_is_refused(edit: Callable[[bytes], bytes]) -> None:
    document = {"data": [{"index": index, "embedding": [0.5] * 8} for index in range(len(TEXTS))]}
    with pytest.raises(RemoteResponseError, match="no whole JSON"):
        read(edit(json.dumps(document).encode()))


def _with_length(server: Any, edit: Callable[[bytes], bytes]) -> Callable[[Any, Any], None]:
    return lambda handler, asked: handler.reply(edit(json.dumps(server.document(asked)).encode()))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_nan_is_never_a_vector(server: Any, connect: Any, embed: Any, number: str) -> None:
    """E11: JSON's forbidden constants, base64 of NaN, and numbers that float32 cannot hold."""

    def written_as_constant(body: bytes) -> bytes:
        return body.replace(b'"index": 3, "embedding": [', b'"index": 3, "embedding": [%s, ' % number.encode())

    server.usual = _with_length(server, written_as_constant)
    with pytest.raises(RemoteResponseError, match=f"{number} is no JSON"):
        embed(connect(encoding_format="float"), TEXTS)

    def in_base64(document: dict[str, Any]) -> None:
        import base64

        vector = np.full(8, float(number), "<f4")
        _item(document, embedding=base64.b64encode(vector.tobytes()).decode())

    server.usual = server.changed(in_base64)
    with pytest.raises(NonFiniteVectorError) as caught:
        embed(connect(), ["another", *TEXTS[:2], "another", *TEXTS[2:]])
    assert caught.value.index == 4  # the caller's count, in which a text stands twice
    server.usual = server.changed(lambda document: document["data"][0].update(embedding=[1e39] * 8))
    with pytest.raises(NonFiniteVectorError) as caught:
        embed(connect(), ["a", "b", "a"])
    assert caught.value.index == 0  # the first of the two
    server.usual = server.changed(lambda document: _item(document, embedding=[1e39] * 8))
    with pytest.raises(NonFiniteVectorError):
        embed(connect(), TEXTS)


def test_zeros_cannot_be_scaled(server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.changed(lambda document: _item(document, embedding=[0.0] * 8))
    service = connect()
    with pytest.raises(RemoteResponseError, match=r"zeros for text 3.*normalize=False"):
        embed(service, TEXTS)
    assert not embed(service, TEXTS, normalize=False).vectors[3].any()


def test_dimension_may_not_change_between_requests(server: Any, connect: Any, embed: Any) -> None:
    service = connect()
    embed(service, TEXTS)
    server.dimensions = 9
    with pytest.raises(RemoteResponseError, match=r"9 dimensions.*8 are expected"):
        embed(service, ["another"])
    shorter = connect("m", native_dimensions=64, output_dim=32)
    server.dimensions = 64

    def ignores_the_option(handler: Any, asked: Any) -> None:
        asked.body.pop("dimensions")
        handler.reply(server.document(asked))

    server.usual = ignores_the_option
    with pytest.raises(RemoteResponseError, match=r"64 dimensions for text 0; 32 are expected.*`dimensions`"):
        embed(shorter, TEXTS)


@pytest.mark.parametrize("seed", range(3))
def test_order_is_restored(server: Any, connect: Any, embed: Any, seed: int) -> None:
    drawn = random.Random(seed)
    server.usual = server.changed(lambda document: drawn.shuffle(document["data"]))
    check(server, embed(connect(max_texts_per_request=4), TEXTS))


@pytest.mark.slow
def test_body_beyond_all_measure_is_not_read(server: Any, connect: Any, embed: Any) -> None:
    server.usual = server.endless()
    with pytest.raises(RemoteResponseError, match=r"more than [0-9,]+ bytes"):
        embed(connect(native_dimensions=8), TEXTS)
    server.usual = lambda handler, asked: handler.reply(b"{}", headers={"Content-Length": str(10**12)})
    with pytest.raises(RemoteResponseError, match="more than"):
        embed(connect(native_dimensions=8), TEXTS)
    bomb = gzip.compress(b" " * (64 << 20))
    server.usual = lambda handler, asked: handler.reply(bomb, headers={"Content-Encoding": "gzip"})
    with pytest.raises(RemoteResponseError, match="more than"):
        embed(connect(native_dimensions=8), TEXTS)
    server.usual = lambda handler, asked: handler.reply(b"no gzip at all", headers={"Content-Encoding": "gzip"})
    with pytest.raises(RemoteResponseError, match="cannot be unpacked"):
        embed(connect(native_dimensions=8), TEXTS)


def test_compressed_answer_is_unpacked(server: Any, connect: Any, embed: Any) -> None:
    def compressed(handler: Any, asked: Any) -> None:
        body = gzip.compress(json.dumps(server.document(asked)).encode())
        handler.reply(body, headers={"Content-Encoding": "gzip"})

    server.usual = compressed
    check(server, embed(connect(), TEXTS))


def test_every_misbehaviour_in_turn_ends_in_right_vectors(server: Any, connect: Any, embed: Any) -> None:
    server.script = [PASSING[kind](server) for kind in PASSING if kind != "slow"]
    service = connect(max_texts_per_request=1, retry=RetryPolicy(max_retries=12, initial_delay=0.01, max_delay=0.01))
    check(server, embed(service, TEXTS))
    assert service.usage.texts == len(TEXTS)
    assert service.usage.requests == len(server.asked) == len(TEXTS) + len(PASSING) - 1


def test_errors_cross_processes() -> None:
    error = RemoteRateLimitError("slow down", status=429, attempts=3, retry_after=2.0, retryable=True)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is RemoteRateLimitError
    assert str(copy) == str(error) == "slow down (asked 3 times)"
    assert (copy.status, copy.attempts, copy.retry_after, copy.retryable) == (429, 3, 2.0, True)
    assert isinstance(error, LatticeEmbedError)
    assert isinstance(error, OSError)


def test_server_that_ignores_the_model_is_not_believed(server: Any, connect: Any) -> None:
    service: RemoteEmbeddingService = connect("text-embedding-3-small")  # 1,536 dimensions; the server has 8
    with pytest.raises(RemoteResponseError, match="8 dimensions for text 0; 1,536 are expected"):
        service.embed(["a"])


@pytest.mark.parametrize("line", [b"no header" * 1_000, b"\xef\xbb\xbf" * 5_000 + b": x", b"content-encoding: gzip"])
def test_head_that_is_none_is_told_in_few_words(server: Any, connect: Any, embed: Any, line: bytes) -> None:
    def behave(handler: Any, asked: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + line + b"\r\nContent-Length: 2\r\n\r\n{}")
        handler.close_connection = True

    server.usual = behave
    with pytest.raises(RemoteServiceError) as caught:
        embed(connect(), TEXTS)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("form", ["length", "chunks"])
@pytest.mark.parametrize("way", ["threads", "asyncio"])
def test_answer_that_comes_twice_is_not_taken_for_the_next(
    server: Any, connect: Any, library: str, way: str, form: str
) -> None:
    def twice(handler: Any, asked: Any) -> None:
        body = json.dumps(server.document(asked)).encode()
        head = b"Content-Length: %d\r\n\r\n" % len(body)
        if form == "chunks":
            head, body = b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        handler.wfile.write((b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + head + body) * 2)

    server.script = [server.usual, twice]
    service: RemoteEmbeddingService = connect()
    texts = ["one", "another", "a third", "the last"]

    async def together() -> list[Any]:
        return [await service.aembed([text]) for text in texts]

    results = [service.embed([text]) for text in texts] if way == "threads" else asyncio.run(together())
    for text, result in zip(texts, results, strict=True):
        np.testing.assert_allclose(result.vectors, [server.unit(text)], atol=1e-6)
    first, second, third, fourth = (asked.client for asked in server.asked)
    assert first == second != third == fourth  # connections are kept, but for that one
