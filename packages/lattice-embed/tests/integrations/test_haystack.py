"""Components of Haystack, with the real ``haystack-ai``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_embed import CachedEmbeddingService, CrossEncoder, InvalidInputError, NativeEmbeddingService

pytest.importorskip("haystack")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore

from lattice_embed.integrations.haystack import LatticeDocumentEmbedder, LatticeRanker, LatticeTextEmbedder

DATA = Path(__file__).parents[3] / "lattice-inference" / "tests" / "data" / "architectures"
CASES = json.loads((DATA / "cases.json").read_text())["cases"]


def test_queries_and_passages_have_their_prompts(loader: Any) -> None:
    with NativeEmbeddingService("multilingual-e5-small") as service:
        queries, passages = LatticeTextEmbedder(service), LatticeDocumentEmbedder(service)
        assert queries.run("cats")["embedding"] == service.embed_query("cats").tolist()
        documents = [Document(content="cats", meta={"a": 1}), Document(content=None), Document(content="dogs")]
        made = passages.run(documents)["documents"]
        want = service.embed_passage(["cats", "", "dogs"]).vectors.tolist()
        assert [document.embedding for document in made] == want
        assert [document.id for document in made] == [document.id for document in documents]
        assert documents[0].embedding is None
        assert passages.run([]) == {"documents": []}
        assert asyncio.run(queries.run_async("cats")) == queries.run("cats")
        assert asyncio.run(passages.run_async(documents)) == passages.run(documents)


def test_fields_of_meta_stand_before_the_content(loader: Any) -> None:
    passages = LatticeDocumentEmbedder("minilm", meta_fields_to_embed=["title", "none"], embedding_separator=" | ")
    [made] = passages.run([Document(content="cats", meta={"title": "Animals", "none": None})])["documents"]
    assert made.embedding == passages.service.embed_one("Animals | cats").tolist()


def test_wrong_documents_and_options_are_refused(loader: Any, service: NativeEmbeddingService) -> None:
    passages = LatticeDocumentEmbedder(service)
    with pytest.raises(InvalidInputError, match="document 1 is a str"):
        passages.run([Document(content="a"), "b"])  # type: ignore[list-item]
    with pytest.raises(InvalidInputError, match="documents"):
        passages.run(Document(content="a"))
    with pytest.raises(InvalidInputError, match="threads given with a service"):
        LatticeTextEmbedder(service, threads=1)
    with pytest.raises(InvalidInputError, match="cannot be stored in a pipeline's file"):
        LatticeTextEmbedder(CachedEmbeddingService(service)).to_dict()


@pytest.mark.model
def test_a_pipeline_finds_what_is_near_and_is_written_and_read() -> None:
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    texts = ["A cat sleeps all day.", "The power station was closed.", "Stocks fell on Monday."]
    indexing = Pipeline()
    indexing.add_component("embedder", LatticeDocumentEmbedder("minilm", threads=1))
    indexing.add_component("writer", DocumentWriter(store))
    indexing.connect("embedder", "writer")
    indexing = Pipeline.loads(indexing.dumps(), allowed_modules=["lattice_embed.integrations.haystack"])
    indexing.get_component("writer").document_store = store
    indexing.run({"embedder": {"documents": [Document(content=text) for text in texts]}})
    searching = Pipeline()
    searching.add_component("embedder", LatticeTextEmbedder("minilm"))
    searching.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=1))
    searching.connect("embedder.embedding", "retriever.query_embedding")
    [found] = searching.run({"embedder": {"text": "where do kittens nap?"}})["retriever"]["documents"]
    assert found.content == texts[0]
    with NativeEmbeddingService("minilm") as service:
        vectors = service.embed(["where do kittens nap?", texts[0]]).vectors.astype(np.float64)
    assert found.score == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    again = LatticeTextEmbedder.from_dict(LatticeTextEmbedder("minilm", precision="bfloat16").to_dict())
    assert again.service.recipe() == NativeEmbeddingService("minilm", precision="bfloat16").recipe()


def test_the_ranker_orders_as_the_cross_encoder(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, CASES["cross-encoder-bert"])
    texts = ["the cat sat", "dogs", "a zebra", "on the mat"]
    with CrossEncoder(directory) as scorer:
        want = scorer.rank("the cat", texts)
    ranker = LatticeRanker(str(directory), threads=1)
    ranker.warm_up()
    documents = [Document(content=text) for text in texts]
    made = ranker.run("the cat", documents)["documents"]
    assert [(document.content, document.score) for document in made] == [(texts[at.index], at.score) for at in want]
    assert ranker.run("the cat", documents, top_k=2)["documents"] == made[:2]
    assert asyncio.run(ranker.run_async("the cat", documents)) == {"documents": made}
    assert ranker.run("the cat", []) == {"documents": []}
    again = LatticeRanker.from_dict(LatticeRanker(str(directory), top_k=1).to_dict())
    assert again.run("the cat", documents)["documents"] == made[:1]
    with pytest.raises(InvalidInputError, match="top_k"):
        LatticeRanker(str(directory), top_k=0)
