"""The remote service and a server that behaves."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import lattice_embed
from lattice_embed import (
    CachedEmbeddingService,
    EmbeddingModel,
    EmptyInputError,
    InvalidInputError,
    InvalidTextError,
    ModelConfigError,
    ModelDescription,
    ProvenanceMismatchError,
    RemoteAuthenticationError,
    RemoteEmbeddingService,
    RetryPolicy,
    Role,
    ServiceClosedError,
    TextTooLongError,
    TooManyTextsError,
    VectorProvenance,
    WrongModelError,
)
from lattice_embed.remote import transport
from lattice_embed.remote.batching import most_tokens, split_requests

MINE = ModelDescription(
    slug="mine",
    model_id="me/mine",
    native_dimensions=8,
    max_tokens=5,
    pooling=None,
    query_prompt="find: ",
    passage_prompt="text: ",
    supports_output_dim=False,
)


def test_vectors_come_in_order_and_of_length_one(server: Any, connect: Any, embed: Any) -> None:
    texts = [f"text {number}" for number in range(20)]
    result = embed(connect(), texts)
    np.testing.assert_allclose(result.vectors, [server.unit(text) for text in texts], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1.0, atol=1e-6)
    assert result.vectors.dtype == np.float32
    assert result.vectors.flags.c_contiguous
    assert result.model == "house-model"
    assert not result.truncated.any()


@pytest.mark.parametrize("encoding", ["base64", "float"])
def test_both_encodings_give_the_bits_that_the_server_has(server: Any, connect: Any, embed: Any, encoding: str) -> None:
    result = embed(connect(encoding_format=encoding), ["one", "two"], normalize=False)
    assert result.vectors.tobytes() == np.stack([server.vector("one"), server.vector("two")]).tobytes()
    assert server.asked[0].body["encoding_format"] == encoding


@pytest.mark.parametrize("encoding", ["base64", "float"])
def test_encoding_that_was_not_asked_for_is_understood(server: Any, connect: Any, encoding: str) -> None:
    def other_way(handler: Any, asked: Any) -> None:
        asked.body["encoding_format"] = {"base64": "float", "float": "base64"}[encoding]
        handler.reply(server.document(asked))

    server.script = [other_way]
    np.testing.assert_allclose(connect(encoding_format=encoding).embed_one("one"), server.unit("one"), atol=1e-6)


def test_requests_are_cut_by_count_and_by_tokens(server: Any, connect: Any, embed: Any) -> None:
    texts = [f"text {number}" for number in range(10)]  # 6 bytes, at most 8 tokens each
    result = embed(connect(max_texts_per_request=4), texts)
    assert [len(asked.texts) for asked in server.asked] == [4, 4, 2]
    np.testing.assert_allclose(result.vectors, [server.unit(text) for text in texts], atol=1e-6)
    server.asked.clear()
    embed(connect(max_tokens_per_request=25), texts)
    assert [len(asked.texts) for asked in server.asked] == [3, 3, 3, 1]
    server.asked.clear()
    embed(connect(max_tokens_per_request=25, count_tokens=lambda text: 2), texts)
    assert [len(asked.texts) for asked in server.asked] == [10]


def test_text_over_the_budget_goes_alone() -> None:
    runs = list(split_requests(["a", "bbbbbb", "c", "d"], max_texts=9, max_tokens=3, count=len))
    assert runs == [["a"], ["bbbbbb"], ["c", "d"]]
    exact = list(split_requests(["aaa", "bbb", "c"], max_texts=9, max_tokens=6, count=len))
    assert exact == [["aaa", "bbb"], ["c"]]
    assert list(split_requests([], max_texts=9, max_tokens=3, count=len)) == []


def test_no_tokenizer_finds_more_tokens_than_are_reckoned_with() -> None:
    for text in ("", "a", "naïve café", "日本語", "👩‍👩‍👧"):
        assert most_tokens(text) >= len(text.encode())


def test_text_that_stands_twice_is_paid_once(server: Any, connect: Any, embed: Any) -> None:
    result = embed(connect(), ["a", "b", "a", "a"])
    assert server.all_texts() == ["a", "b"]
    assert (result.vectors[0] == result.vectors[2]).all()
    np.testing.assert_allclose(result.vectors[3], server.unit("a"), atol=1e-6)


def test_shorter_vectors_are_asked_of_the_server(server: Any, connect: Any, embed: Any) -> None:
    service = connect("text-embedding-3-small", output_dim=256)
    result = embed(service, ["a"])
    assert server.asked[0].body["dimensions"] == 256
    assert result.vectors.shape == (1, 256)
    assert service.model_config().dimensions == 256
    with pytest.raises(ModelConfigError, match="outside"):
        connect("text-embedding-3-small", output_dim=3_000)
    with pytest.raises(ModelConfigError, match="native_dimensions"):
        connect("unknown-model", output_dim=4)


def test_default_is_openai_and_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with RemoteEmbeddingService() as service:
        assert service.base_url == "https://api.openai.com/v1"
        assert service.model_config().model is EmbeddingModel.TEXT_EMBEDDING_3_SMALL
        assert service.encode([]).shape == (0, 1_536)
        assert service.supports_model("openai")
        with pytest.raises(RemoteAuthenticationError, match="set OPENAI_API_KEY"):
            service.embed(["a"])


def test_prompts_of_the_catalogue_and_of_a_description_are_sent_and_shown(server: Any, connect: Any) -> None:
    service = connect(MINE)
    result = service.embed_query(["cat"])
    assert server.asked[-1].texts == ["find: cat"]
    assert result.prompt == "find: "
    assert result.role is Role.QUERY
    assert not np.array_equal(service.embed_query("cat"), service.embed_passage("cat"))
    server.dimensions = 384
    connect("bge-small-en-v1.5").embed(["cat"], role="query")
    assert server.asked[-1].texts == ["Represent this sentence for searching relevant passages: cat"]
    assert server.asked[-1].body["model"] == "bge-small-en-v1.5"  # as the caller's server calls it


def test_limits_are_those_of_every_service(server: Any, connect: Any, embed: Any) -> None:
    service = connect(max_batch_size=3, max_text_chars=10)
    for texts, error in (
        ([], EmptyInputError),
        (["a"] * 4, TooManyTextsError),
        (["a", "b" * 11], TextTooLongError),
        (["a", "\ud800"], InvalidTextError),
        (["a", 5], InvalidTextError),
        ("abc", InvalidInputError),
    ):
        with pytest.raises(error):
            embed(service, texts)
    assert server.asked == []


def test_text_over_the_token_limit_is_refused_before_anything_is_paid(server: Any, connect: Any, embed: Any) -> None:
    service = connect(MINE, count_tokens=lambda text: len(text.split()))
    with pytest.raises(TextTooLongError) as caught:
        embed(service, ["short", "one two three four five", "1 2 3 4 5 6"])
    assert (caught.value.index, caught.value.length, caught.value.limit, caught.value.unit) == (2, 6, 5, "tokens")
    assert server.asked == []
    assert embed(service, ["one two", "three"]).token_counts.tolist() == [2, 1]
    with pytest.raises(InvalidInputError, match="count_tokens returned 'many'"):
        embed(connect(count_tokens=lambda text: "many"), ["a"])


def test_tokens_are_reported_where_they_are_known(connect: Any, embed: Any) -> None:
    service = connect()
    assert embed(service, ["one two three"]).token_counts.tolist() == [3]
    several = embed(service, ["one two", "three"])
    assert several.token_counts.tolist() == [-1, -1]
    assert several.total_tokens is None
    assert service.usage.prompt_tokens == 6
    assert (service.usage.requests, service.usage.retries, service.usage.texts) == (2, 0, 3)


def test_model_asked_for_is_the_model_held(connect: Any) -> None:
    service = connect("text-embedding-3-small")
    assert service.supports_model(EmbeddingModel.TEXT_EMBEDDING_3_SMALL)
    for other in ("bge-small-en-v1.5", "something-else"):
        assert not service.supports_model(other)
        with pytest.raises(WrongModelError):
            service.embed(["a"], other)


def test_dimension_of_an_unknown_model_is_learned(server: Any, connect: Any) -> None:
    service = connect("nobody-knows")
    with pytest.raises(ModelConfigError, match="native_dimensions"):
        service.model_config()
    service.embed(["a"])
    assert service.model_config().dimensions == 8
    assert connect("nobody-knows", native_dimensions=8).encode([]).shape == (0, 8)
    with pytest.raises(ModelConfigError, match="1536"):
        connect("text-embedding-3-small", native_dimensions=8)


def test_fingerprint_tells_spaces_apart(server: Any, connect: Any) -> None:
    def fingerprint(service: RemoteEmbeddingService, **options: Any) -> str:
        return service.embed(["a"], **options).fingerprint

    service = connect(MINE)
    prints = [
        fingerprint(service),
        fingerprint(service, normalize=False),
        fingerprint(service, role=Role.QUERY),
        fingerprint(connect("another")),
        fingerprint(connect("text-embedding-3-small", output_dim=64)),
        fingerprint(connect("text-embedding-3-small", output_dim=128)),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint(connect(MINE)) == prints[0]


def test_provenance_says_what_is_known(server: Any, connect: Any) -> None:
    service = connect("text-embedding-3-small", output_dim=64)
    provenance = service.provenance(role=Role.QUERY, normalize=False)
    result = service.embed(["a"], role=Role.QUERY, normalize=False)
    assert result.provenance == provenance
    assert result.fingerprint == provenance.fingerprint
    assert (provenance.dimensions, provenance.normalized, provenance.weights) == (64, False, "")
    assert provenance.model == f"text-embedding-3-small at {service.base_url}"
    assert VectorProvenance.from_json(provenance.to_json()) == provenance
    with pytest.raises(WrongModelError):
        service.provenance("minilm")


def test_provenance_of_an_unknown_model_waits_for_its_dimension(server: Any, connect: Any) -> None:
    service = connect("nobody-knows")
    assert service.provenance() is None
    assert service.embed(["a"]).provenance.dimensions == 8
    assert service.provenance().dimensions == 8


def test_an_unknown_model_is_cached_from_its_first_answer_on(server: Any, connect: Any, embed: Any) -> None:
    for first in (["a"], ["a", "b", "a"], (text for text in "ab")):
        before = len(server.asked)
        cached = CachedEmbeddingService(connect())
        embed(cached, first)  # the dimension is not known before
        for _ in range(2):
            got = embed(cached, ["c", "d"])
            np.testing.assert_allclose(got.vectors, [server.unit("c"), server.unit("d")], atol=1e-6)
        assert len(server.asked) == before + 2
    cached = CachedEmbeddingService(connect())
    np.testing.assert_allclose(cached.embed_one("c"), server.unit("c"), atol=1e-6)
    with pytest.raises(InvalidInputError):
        CachedEmbeddingService(connect()).embed([3])  # type: ignore[list-item]


def test_provenance_tells_two_servers_apart(server: Any, connect: Any) -> None:
    here = connect(MINE).embed(["a"]).provenance
    there = RemoteEmbeddingService(MINE, base_url="http://localhost:1/v1").provenance()
    with pytest.raises(ProvenanceMismatchError):
        here.check_comparable(there)


def test_any_number_of_texts(server: Any, connect: Any) -> None:
    texts = [f"text {number}" for number in range(2_100)]
    vectors = connect().encode(iter(texts))
    np.testing.assert_allclose(vectors[2_099], server.unit(texts[2_099]), atol=1e-6)
    assert len(server.asked) == 3


def test_connection_is_used_again(server: Any, connect: Any, library: str) -> None:
    service = connect()
    for _ in range(3):
        service.embed(["a"])

    async def three_times() -> None:
        for _ in range(3):
            await service.aembed(["a"])

    asyncio.run(three_times())
    clients = [asked.client for asked in server.asked]
    assert len(set(clients[:3])) == 1
    assert len(set(clients[3:])) == 1


def test_each_event_loop_has_its_own_connections(server: Any, connect: Any, library: str) -> None:
    service = connect()
    for number in range(3):  # a connection of a loop that is gone must not be used
        assert asyncio.run(service.aembed_one(f"{number}")).shape == (8,)
    assert service._transport._keepers == {}


def test_async_calls_run_side_by_side_on_one_loop(server: Any, connect: Any, library: str) -> None:
    together = threading.Barrier(8, timeout=10)

    def when_all_are_there(handler: Any, asked: Any) -> None:
        together.wait()
        handler.reply(server.document(asked))

    server.script = [when_all_are_there] * 8
    before = set(threading.enumerate())  # other tests' event loops may still have theirs

    async def eight() -> list[Any]:
        async with connect() as service:
            vectors = await asyncio.gather(*(service.aembed_one(f"{number}") for number in range(8)))
            added = set(threading.enumerate()) - before
            assert not [thread for thread in added if thread.name.startswith("asyncio")]
            return vectors

    for number, vector in enumerate(asyncio.run(eight())):
        np.testing.assert_allclose(vector, server.unit(f"{number}"), atol=1e-6)


def test_threads_may_share_a_service(server: Any, connect: Any, library: str) -> None:
    service = connect()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            if not np.allclose(service.embed_one(f"{number}"), server.unit(f"{number}"), atol=1e-6):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert len(server.asked) == 40


def test_closed_service_says_so(server: Any, connect: Any, embed: Any) -> None:
    service = connect()
    embed(service, ["a"])
    service.close()
    service.close()
    with pytest.raises(ServiceClosedError, match="make a new"):
        embed(service, ["a"])


def test_closing_wakes_a_call_that_waits_for_a_retry(server: Any, connect: Any, library: str) -> None:
    server.script = [server.status(503)] * 9
    service = connect(retry=RetryPolicy(initial_delay=30, max_delay=30))
    timer = threading.Timer(0.2, service.close)
    timer.start()
    with pytest.raises(ServiceClosedError):
        service.embed(["a"])
    timer.join()


@pytest.mark.parametrize("close", ["close", "aclose", "another thread"])
def test_closing_wakes_a_task_that_waits_for_a_retry(server: Any, connect: Any, library: str, close: str) -> None:
    server.usual = server.status(429, Retry_After="50")
    service = connect(retry=RetryPolicy(max_retry_after=60))

    async def wait() -> None:
        waiting = asyncio.create_task(service.aembed(["a"]))
        while not service._sleepers:
            await asyncio.sleep(0.01)
        if close == "aclose":
            await service.aclose()
        elif close == "close":
            service.close()
        else:
            await asyncio.to_thread(service.close)
        with pytest.raises(ServiceClosedError):
            await asyncio.wait_for(waiting, 20)

    asyncio.run(wait())
    assert not service._sleepers


def test_service_works_in_a_forked_child(server: Any, connect: Any, library: str) -> None:
    service = connect()
    service.embed(["a"])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if np.allclose(service.embed_one("b"), server.unit("b"), atol=1e-6) else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_allclose(service.embed_one("c"), server.unit("c"), atol=1e-6)
    assert server.asked[0].client == server.asked[2].client  # the parent's connection is as it was
    assert server.asked[0].client != server.asked[1].client


def test_pickled_service_is_an_equal_one(server: Any, connect: Any) -> None:
    service = connect(MINE, max_texts_per_request=1, retry=RetryPolicy(max_retries=1))
    with pickle.loads(pickle.dumps(service)) as copy:
        assert np.array_equal(copy.embed(["a", "b"]).vectors, service.embed(["a", "b"]).vectors)
    assert len(server.asked) == 4
    assert repr(copy) == repr(service)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:80/v1"}, "like https://host/v1"),
        ({"base_url": "ftp://host"}, "like https://host/v1"),
        ({"base_url": "http://"}, "like https://host/v1"),
        ({"base_url": "http://host:99999"}, "no address"),
        ({"base_url": "http://host/v1?x=1"}, "query"),
        ({"base_url": 5}, "not a str"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"deadline": -1}, "deadline"),
        ({"deadline": True}, "deadline"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"max_texts_per_request": 0}, "max_texts_per_request"),
        ({"max_tokens_per_request": 1.5}, "max_tokens_per_request"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"count_tokens": 5}, "count_tokens"),
        ({"native_dimensions": 0}, "native_dimensions"),
        ({"model": " "}, "name that the server knows"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        RemoteEmbeddingService(**{"model": "m", **options})


@pytest.mark.parametrize(
    "options", [{"max_retries": -1}, {"initial_delay": 0}, {"max_delay": float("inf")}, {"max_retry_after": "1"}]
)
def test_wrong_retry_policy_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        RetryPolicy(**options)


def test_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LIBRARIES", ("no_such_http_library",))
    with pytest.raises(transport.MissingHttpLibraryError, match=r"pip install 'lattice-embed\[remote\]'"):
        RemoteEmbeddingService("m", base_url="http://localhost/v1")


def test_import_loads_no_http_library() -> None:
    code = (
        "import sys, lattice_embed; lattice_embed.NativeEmbeddingService; lattice_embed.RemoteEmbeddingService\n"
        "print(sorted({'httpx', 'httpx2', 'httpcore', 'httpcore2', 'anyio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_public_names() -> None:
    assert lattice_embed.RemoteEmbeddingService is RemoteEmbeddingService


def test_closing_ends_a_request_under_way(server: Any, connect: Any, library: str) -> None:
    server.script = [server.drip(0.1)]
    service = connect()
    timer = threading.Timer(0.3, service.close)
    timer.start()
    with pytest.raises(ServiceClosedError, match="make a new"):
        service.embed(["a"])
    timer.join()


def test_closing_within_a_loop_closes_its_connections(server: Any, connect: Any, library: str) -> None:
    async def close_while_running() -> None:
        service = connect()
        await service.aembed(["a"])
        assert len(service._transport._keepers) == 1
        service.close()
        end = time.monotonic() + 30
        while service._transport._keepers and time.monotonic() < end:
            await asyncio.sleep(0.005)
        assert service._transport._keepers == {}
        with pytest.raises(ServiceClosedError):
            await service.aembed(["a"])

    asyncio.run(close_while_running())
