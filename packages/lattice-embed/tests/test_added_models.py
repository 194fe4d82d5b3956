"""Models of the user's: descriptions, the names they get, static models, and lists shared out among processes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lattice_embed import (
    EmbeddingModel,
    InvalidInputError,
    InvalidModelConfigError,
    InvalidTextError,
    ModelConfigError,
    ModelDescription,
    NativeEmbeddingService,
    Role,
    ServiceClosedError,
    UnknownModelError,
    add_model,
    added_models,
    list_models,
)
from lattice_embed.encoding_pool import EncodingPool
from lattice_inference import ModelNotFoundError, get_num_threads, set_num_threads
from static_models import TEXTS, WIDTH, write_static

VECTORS = np.load(Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "static" / "vectors.npz")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_added", "_by_name"):
        monkeypatch.setattr(added_models, name, {})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_static(tmp_path / "model", "plain")


@pytest.fixture
def described(directory: Path) -> ModelDescription:
    return ModelDescription(
        slug="my-words",
        model_id=str(directory),
        native_dimensions=WIDTH,
        max_tokens=512,
        pooling="mean",
        query_prompt="cat ",
        supports_output_dim=False,
        license="MIT",
        architecture="model2vec",
        tokenizer="wordpiece",
    )


def test_an_added_model_is_taken_by_its_names(described: ModelDescription) -> None:
    assert add_model(described, aliases=["words"]) == described
    assert add_model(described) == described
    assert list_models() == (*(model.description for model in EmbeddingModel), described)
    for name in ("my-words", "My_Words", "words", described):
        with NativeEmbeddingService(name) as service:
            assert service.model_config().description == described
            assert service.name == "native:my-words"
            assert np.array_equal(service.embed(TEXTS[1:2]).vectors, VECTORS["plain"][1:2])
            assert np.array_equal(service.embed_query("dogs"), service.embed_one("cat dogs"))
    with pickle.loads(pickle.dumps(NativeEmbeddingService("words"))) as copy:
        assert copy.model_config().description == described


def test_a_path_is_kept_as_an_absolute_one(
    described: ModelDescription, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    monkeypatch.chdir(directory.parent)
    assert add_model(replace(described, model_id=directory.name)).model_id == str(directory)
    hub = add_model(replace(described, slug="hub", model_id="org/model"), aliases=["org/model"])
    monkeypatch.chdir("/")
    assert NativeEmbeddingService("my-words").embed_one("dogs").shape == (WIDTH,)
    assert NativeEmbeddingService("ORG/model").recipe()[0] == hub


def test_facts_that_the_files_contradict_are_an_error(described: ModelDescription) -> None:
    from dataclasses import replace

    wrong = replace(described, native_dimensions=7)
    with pytest.raises(ModelConfigError, match="gives vectors of 32 dimensions, my-words has 7"):
        NativeEmbeddingService(wrong).load()
    with pytest.raises(InvalidModelConfigError, match="output_dim"):
        NativeEmbeddingService(described, output_dim=32)
    with pytest.raises(UnknownModelError, match="model_id of my-words is 'no such place'"):
        NativeEmbeddingService(replace(described, model_id="no such place"))


@pytest.mark.parametrize(
    ("change", "aliases", "message"),
    [
        ({"slug": "minilm"}, [], "'minilm' belongs to the catalogue"),
        ({}, ["BAAI/bge-small-en-v1.5"], "belongs to the catalogue"),
        ({"slug": "other"}, ["My.Words"], "'My.Words' belongs to my-words"),
        ({"license": "other"}, [], "belongs to my-words"),
        ({"slug": " "}, [], "is empty"),
        ({"slug": "other"}, [""], "is empty"),
        ({"slug": "other"}, "words", "aliases is one str"),
        ({"slug": "other", "model_id": ""}, [], "model_id of other is empty"),
        ({"slug": "other", "is_remote": True}, [], "RemoteEmbeddingService"),
    ],
)
def test_names_that_are_none_or_taken_are_refused(
    described: ModelDescription, change: dict[str, str], aliases: list[str], message: str
) -> None:
    from dataclasses import replace

    add_model(described)
    with pytest.raises(InvalidInputError, match=message):
        add_model(replace(described, **change), aliases=aliases)  # type: ignore[arg-type]
    assert list_models()[-1] == described
    assert len(list_models()) == len(EmbeddingModel) + 1


@pytest.fixture
def service(described: ModelDescription) -> Iterator[NativeEmbeddingService]:
    with NativeEmbeddingService(described) as service:
        yield service


def test_one_process_or_one_chunk_needs_no_others(service: NativeEmbeddingService) -> None:
    texts = ["the cat", "dogs"]
    want = service.encode(texts, role=Role.QUERY)
    for processes, chunk_size in ((1, None), (4, 10), (10**6, 2)):
        got = service.embed_parallel(iter(texts), processes=processes, role=Role.QUERY, chunk_size=chunk_size)
        assert got.tobytes() == want.tobytes()
    assert service.embed_parallel([], processes=2).shape == (0, WIDTH)
    for wrong in ({"processes": 0}, {"processes": 2, "chunk_size": 0}, {"processes": True}):
        with pytest.raises(InvalidInputError):
            service.embed_parallel(texts, **wrong)  # type: ignore[arg-type]
    service.close()
    with pytest.raises(ServiceClosedError):
        service.embed_parallel(texts, processes=2)


def test_processes_share_the_threads_that_this_one_may_use(
    service: NativeEmbeddingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1024)  # of the machine, where a container may use a few
    before = get_num_threads()
    try:
        for threads, processes, want in ((5, 2, 2), (3, 4, 1)):
            set_num_threads(threads)
            with EncodingPool(service, processes) as pool:
                assert pool._executor._initargs[1]["threads"] == want  # type: ignore[attr-defined]
    finally:
        set_num_threads(before)


@pytest.mark.slow
def test_processes_give_the_same_bits_in_order(service: NativeEmbeddingService) -> None:
    texts = [f"the cat sat {'on the mat ' * (number % 7)}{'and dogs' * (number % 2)}" for number in range(40)]
    got = service.embed_parallel(texts, processes=2, role=Role.QUERY, normalize=False, chunk_size=7)
    assert got.tobytes() == service.encode(texts, role=Role.QUERY, normalize=False).tobytes()
    texts[23] = "\udc80"
    with pytest.raises(InvalidTextError) as refused:
        service.embed_parallel(texts, processes=2, chunk_size=7)
    assert refused.value.index == 23


@pytest.mark.model
def test_a_model_that_is_not_here_names_those_that_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    for variable in ("HOME", "HF_HOME", "HF_HUB_CACHE", "LATTICE_MODEL_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.delenv("LATTICE_EMBED_MODEL", raising=False)
    with pytest.raises(ModelNotFoundError) as refused:
        NativeEmbeddingService().load()
    last = str(refused.value).splitlines()[-1]
    assert last.startswith("On this machine is all-minilm-l6-v2: pass that as the model. ")
    assert "`lattice-embed download bge-small-en-v1.5`" in last
