"""What users of other libraries hit (section E of the collected cases), at a server: each row stands for its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lattice_embed import CachedEmbeddingService, ModelDescription, NonFiniteVectorError, TextTooLongError

RETRIEVAL = ModelDescription(
    slug="retrieval",
    model_id="retrieval",
    native_dimensions=64,
    max_tokens=16,
    pooling=None,
    query_prompt="Represent this sentence for searching relevant passages: ",
)


def test_e9_shorter_vectors_have_length_one(server: Any, connect: Any, embed: Any) -> None:
    """A server that cuts vectors and does not scale them again."""

    def cut(document: dict[str, Any]) -> None:
        for item in document["data"]:
            item["embedding"] = server.vector("long", 1024)[:256].tolist()

    server.usual = server.changed(cut)
    result = embed(connect("m", native_dimensions=1024, output_dim=256), ["a", "b"])
    np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("spoiled", range(3))
def test_e11_nan_names_the_input_in_every_request(server: Any, connect: Any, embed: Any, spoiled: int) -> None:
    def spoil(document: dict[str, Any]) -> None:
        if document["data"][0]["index"] == 0 and len(server.asked) == spoiled + 1:
            document["data"][0]["embedding"] = [1e39] * 8

    server.usual = server.changed(spoil)
    with pytest.raises(NonFiniteVectorError, match=f"text {2 * spoiled}") as caught:
        embed(connect(max_texts_per_request=2), ["a", "b", "c", "d", "e", "f"])
    assert caught.value.index == 2 * spoiled


@pytest.mark.parametrize("text", ["", "   ", "\u200b"])
def test_e12_blank_text_is_a_text(server: Any, connect: Any, embed: Any, text: str) -> None:
    result = embed(connect(), [text, "word"])
    assert server.asked[0].texts == [text, "word"]
    np.testing.assert_allclose(result.vectors[0], server.unit(text), atol=1e-6)


def test_e14_usage_is_what_the_server_read(server: Any, connect: Any, embed: Any) -> None:
    """Not a count of what was sent: the server is the one that cuts and bills."""
    server.usual = server.changed(lambda document: document["usage"].update(prompt_tokens=512))
    service = connect()
    assert embed(service, ["word " * 5_000]).token_counts.tolist() == [512]
    assert service.usage.prompt_tokens == 512


def test_e16_e18_limits_name_their_unit_and_both_numbers(server: Any, connect: Any, embed: Any) -> None:
    exact = "é" * 32_768  # 65,536 bytes: the limit counts characters
    assert embed(connect(), [exact]).vectors.shape == (1, 8)
    with pytest.raises(
        TextTooLongError, match=r"67,337 characters; the limit is 32,768.*raise max_text_chars"
    ) as caught:
        embed(connect(), ["a" * 67_337])
    assert (caught.value.length, caught.value.limit, caught.value.unit) == (67_337, 32_768, "characters")
    assert embed(connect(max_text_chars=100_000), ["a" * 67_337]).vectors.shape == (1, 8)


def test_a_cache_in_front_of_a_server_has_the_limits_of_its_service(server: Any, connect: Any, embed: Any) -> None:
    service = connect(max_batch_size=2, max_text_chars=100_000)
    embed(service, ["a"])  # whose answer says the dimension
    cached = CachedEmbeddingService(service)
    assert (
        (cached.max_batch_size, cached.max_text_chars)
        == (service.max_batch_size, service.max_text_chars)
        == (2, 100_000)
    )
    assert cached.embed(["a" * 67_337]).vectors.shape == (1, 8)


def test_e17_the_prompt_is_not_charged_to_the_caller(server: Any, connect: Any, embed: Any) -> None:
    server.dimensions = 64
    service = connect(RETRIEVAL, max_text_chars=10)
    query, passage = (embed(service, ["x" * 10], role=role).vectors for role in ("query", "passage"))
    assert not np.array_equal(query, passage)
    assert len(server.asked[0].texts[0]) > 10
    with pytest.raises(TextTooLongError):
        embed(service, ["x" * 11], role="query")


def test_e20_prompt_that_was_sent_is_in_the_result(server: Any, connect: Any, embed: Any) -> None:
    server.dimensions = 64
    service = connect(RETRIEVAL)
    for role in ("query", "passage", "generic"):
        result = embed(service, ["text"], role=role)
        assert server.asked[-1].texts == [result.prompt + "text"]
    assert embed(service, ["text"]).prompt == ""
