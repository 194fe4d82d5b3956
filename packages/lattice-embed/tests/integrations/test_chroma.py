"""The door to Chroma, with the real ``chromadb``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import EmbeddingResult, EmbeddingService, InvalidInputError, NativeEmbeddingService, Role

pytest.importorskip("chromadb")

import chromadb

from lattice_embed.integrations.chroma import LatticeEmbeddingFunction
from lattice_inference import VectorCache

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
TEXTS = ["A cat sleeps all day.", "The power station was closed.", "Stocks fell on Monday."]


@pytest.fixture
def client(tmp_path: Path) -> Any:
    return open_client(tmp_path)


def open_client(folder: Path) -> Any:
    settings = chromadb.Settings(anonymized_telemetry=False)
    return chromadb.PersistentClient(str(folder / "chroma"), settings=settings)


def test_documents_are_passages_and_queries_are_queries(loader: Any) -> None:
    with NativeEmbeddingService("multilingual-e5-small") as service:
        door = LatticeEmbeddingFunction(service)
        assert np.array_equal(door(["a", "b"]), service.embed_passage(["a", "b"]).vectors)
        assert np.array_equal(door.embed_query(["a", "b"]), service.embed_query(["a", "b"]).vectors)
        assert door(["a"])[0].dtype == np.float32


def test_collection_is_opened_again_with_the_function_it_was_made_with(
    loader: Any, client: Any, tmp_path: Path
) -> None:
    made = client.create_collection("house", embedding_function=LatticeEmbeddingFunction("minilm", threads=1))
    made.add(ids=["0", "1", "2"], documents=TEXTS)
    del made
    loaded = len(loader.encoders)
    found = open_client(tmp_path).get_collection("house")  # no function is passed: it is stored
    assert found.query(query_texts=[TEXTS[1]], n_results=1)["ids"] == [["1"]]
    assert len(loader.encoders) == loaded + 1
    assert loader.calls[-1][1]["threads"] == 1


class Counting(EmbeddingService):
    """A service of a user's own."""

    name = "counting"

    def embed(self, texts: Any, model: Any = None, *, role: Any = Role.GENERIC, normalize: bool = True) -> Any:
        return EmbeddingResult([[len(text), text.count("a"), 1] for text in texts])

    def model_config(self, model: Any = None) -> Any:
        raise NotImplementedError

    def supports_model(self, model: Any) -> bool:
        return False


def test_function_over_any_service_is_used_though_not_stored(client: Any) -> None:
    door = LatticeEmbeddingFunction(Counting())
    assert door.is_legacy()
    made = client.create_collection("passed", embedding_function=door, configuration={"hnsw": {"space": "cosine"}})
    made.add(ids=["0", "1", "2"], documents=TEXTS)
    again = client.get_collection("passed", embedding_function=door)
    assert again.query(query_texts=[TEXTS[2]], n_results=1)["ids"] == [["2"]]


def test_function_with_a_cache_object_is_used_though_not_stored(loader: Any, client: Any, tmp_path: Path) -> None:
    function = LatticeEmbeddingFunction("minilm", cache=VectorCache(tmp_path / "cache"))
    assert function.is_legacy()
    made = client.create_collection("cached", embedding_function=function, configuration={"hnsw": {"space": "cosine"}})
    made.add(ids=["0", "1", "2"], documents=TEXTS)
    assert made.query(query_texts=[TEXTS[2]], n_results=1)["ids"] == [["2"]]


def test_configuration_is_plain_and_checked(loader: Any, service: Any) -> None:
    door = LatticeEmbeddingFunction("minilm", threads=2)
    config = door.get_config()
    assert config["model"] == "all-minilm-l6-v2"
    assert config["options"]["threads"] == 2
    json.dumps(config)
    assert LatticeEmbeddingFunction(service).get_config()["options"]["threads"] is None
    door.validate_config(config)
    assert LatticeEmbeddingFunction.build_from_config(config).get_config() == config
    with pytest.raises(InvalidInputError, match="no configuration"):
        door.validate_config({"model": "minilm"})
    with pytest.raises(InvalidInputError, match="make a collection for each"):
        door.validate_config_update(config, {"model": "bge-small-en-v1.5", "options": {}})
    with pytest.raises(InvalidInputError, match="threads given with a service"):
        LatticeEmbeddingFunction(service, threads=1)
    assert door.default_space() == "cosine"


@pytest.mark.model
def test_collection_finds_what_is_near_and_by_how_much(minilm: NativeEmbeddingService, client: Any) -> None:
    collection = client.create_collection("real", embedding_function=LatticeEmbeddingFunction(minilm))
    collection.add(ids=["0", "1", "2"], documents=TEXTS)
    found = collection.query(query_texts=["where do kittens nap?"], n_results=3)
    assert found["ids"][0][0] == "0"
    query = minilm.embed_query("where do kittens nap?").astype(np.float64)
    vectors = minilm.encode(TEXTS, role=Role.PASSAGE).astype(np.float64)
    distances = {str(index): 1 - float(query @ vector) for index, vector in enumerate(vectors)}
    for name, distance in zip(found["ids"][0], found["distances"][0], strict=True):
        assert distance == pytest.approx(distances[name], abs=1e-5)
