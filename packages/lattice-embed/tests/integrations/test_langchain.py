"""The door to LangChain, with the real ``langchain-core``."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from lattice_embed import InvalidInputError, NativeEmbeddingService, Role

pytest.importorskip("langchain_core")

from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from lattice_embed.integrations.langchain import LatticeEmbeddings


def test_it_is_an_embeddings_that_takes_names_and_services(loader: Any, service: NativeEmbeddingService) -> None:
    assert isinstance(LatticeEmbeddings("minilm"), Embeddings)
    assert LatticeEmbeddings(service).service is service
    assert LatticeEmbeddings("minilm", threads=1).embed_query("a") == service.embed_one("a").tolist()
    with pytest.raises(InvalidInputError, match="threads given with a service"):
        LatticeEmbeddings(service, threads=1)


def test_documents_are_passages_and_queries_are_queries(loader: Any) -> None:
    with NativeEmbeddingService("multilingual-e5-small") as service:
        door = LatticeEmbeddings(service)
        assert door.embed_query("cats") == service.embed_query("cats").tolist()
        assert door.embed_documents(["cats"]) == service.embed_passage(["cats"]).vectors.tolist()
        assert door.embed_query("cats") != door.embed_documents(["cats"])[0]
        assert asyncio.run(door.aembed_query("cats")) == door.embed_query("cats")
        assert asyncio.run(door.aembed_documents(["a", "b"])) == door.embed_documents(["a", "b"])


def test_any_number_of_documents(loader: Any) -> None:
    door = LatticeEmbeddings("minilm", max_batch_size=3)
    texts = [f"text {number}" for number in range(8)]
    expected = door.service.encode(texts, role=Role.PASSAGE).tolist()
    assert door.embed_documents(texts) == expected
    assert asyncio.run(door.aembed_documents(texts)) == expected
    assert door.embed_documents([]) == []
    assert asyncio.run(door.aembed_documents([])) == []


@pytest.mark.model
def test_store_of_langchain_finds_what_is_near(minilm: NativeEmbeddingService) -> None:
    store = InMemoryVectorStore(LatticeEmbeddings(minilm))
    store.add_texts(["A cat sleeps all day.", "The power station was closed.", "Stocks fell on Monday."])
    [(found, score)] = store.similarity_search_with_score("where do kittens nap?", k=1)
    assert found.page_content == "A cat sleeps all day."
    vectors = minilm.embed(["where do kittens nap?", "A cat sleeps all day."]).vectors.astype(np.float64)
    assert score == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    [again] = asyncio.run(store.asimilarity_search("where do kittens nap?", k=1))
    assert again.page_content == found.page_content
