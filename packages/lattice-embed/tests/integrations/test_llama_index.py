"""The door to LlamaIndex, with the real ``llama-index-core``."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from lattice_embed import InvalidInputError, NativeEmbeddingService

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode

from lattice_embed.integrations.llama_index import LatticeEmbedding
from lattice_inference import VectorCache


def test_it_is_a_base_embedding_that_takes_names_and_services(loader: Any, service: NativeEmbeddingService) -> None:
    named = LatticeEmbedding("all-minilm-l6-v2", embed_batch_size=7, service_options={"threads": 1})
    assert isinstance(named, BaseEmbedding)
    assert (named.model_name, named.embed_batch_size) == ("all-minilm-l6-v2", 7)
    given = LatticeEmbedding(service=service)
    assert given.service is service
    assert given.model_name == "all-minilm-l6-v2"
    with pytest.raises(InvalidInputError, match="threads given with a service"):
        LatticeEmbedding(service=service, service_options={"threads": 1})


def test_nodes_are_passages_and_queries_are_queries(loader: Any) -> None:
    with NativeEmbeddingService("multilingual-e5-small") as service:
        door = LatticeEmbedding(service=service, embed_batch_size=2)
        texts = ["cats", "dogs", "birds", "fish", "ants"]
        assert door.get_query_embedding("cats") == service.embed_query("cats").tolist()
        assert door.get_text_embedding("cats") == service.embed_passage("cats").tolist()
        assert door.get_text_embedding_batch(texts) == service.embed_passage(texts).vectors.tolist()

        async def the_same() -> None:
            assert await door.aget_query_embedding("cats") == door.get_query_embedding("cats")
            assert await door.aget_text_embedding("cats") == door.get_text_embedding("cats")
            assert await door.aget_text_embedding_batch(texts) == door.get_text_embedding_batch(texts)

        asyncio.run(the_same())


def test_it_is_stored_by_the_models_name(loader: Any) -> None:
    door = LatticeEmbedding("all-minilm-l6-v2", embed_batch_size=7)
    copy = LatticeEmbedding.from_dict(door.to_dict())
    assert (copy.model_name, copy.embed_batch_size) == ("all-minilm-l6-v2", 7)
    assert copy.get_text_embedding("a") == door.get_text_embedding("a")
    again = pickle.loads(pickle.dumps(door))
    assert again.get_text_embedding("a") == door.get_text_embedding("a")
    assert door.class_name() == "LatticeEmbedding"


def test_what_is_stored_has_the_options_that_change_vectors(loader: Any, tmp_path: Path) -> None:
    options: Any = {"max_tokens": 16, "truncate": "error", "cache": VectorCache(tmp_path)}
    made = LatticeEmbedding("all-minilm-l6-v2", service_options=options)
    stored = json.loads(made.to_json())
    assert stored["service_options"] == {"max_tokens": 16, "truncate": "error", "cache": str(tmp_path)}
    copy = LatticeEmbedding.from_dict(stored)
    assert isinstance(copy.service, NativeEmbeddingService)
    assert copy.service.recipe()[1]["max_tokens"] == 16
    assert copy.to_dict() == made.to_dict() != LatticeEmbedding("all-minilm-l6-v2").to_dict()
    assert LatticeEmbedding.from_dict(json.loads(made.to_json()), service=made.service).service is made.service


@pytest.mark.model
def test_index_of_llama_index_finds_what_is_near(minilm: NativeEmbeddingService) -> None:
    texts = ["A cat sleeps all day.", "The power station was closed.", "Stocks fell on Monday."]
    index = VectorStoreIndex([TextNode(text=text) for text in texts], embed_model=LatticeEmbedding(service=minilm))
    [found] = index.as_retriever(similarity_top_k=1).retrieve("where do kittens nap?")
    assert found.node.get_content() == texts[0]
    assert found.score is not None
    assert found.score > 0.3
