"""NativeEmbeddingService over a stand-in encoder: loading, roles, limits, options (test_real_model.py: the real)."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lattice_inference
from lattice_embed import (
    EmbeddingModel,
    InvalidInputError,
    ModelConfig,
    ModelConfigError,
    NativeEmbeddingService,
    NonFiniteVectorError,
    Role,
    ServiceClosedError,
    TextTooLongError,
    TooManyTextsError,
    UnknownModelError,
    UnsupportedModelError,
    WrongModelError,
)
from lattice_embed.native_service import missing_feature
from lattice_inference.capabilities import runs_model_type

MINILM = EmbeddingModel.ALL_MINILM_L6_V2
QWEN = EmbeddingModel.QWEN3_EMBEDDING_0_6B


@pytest.fixture
def bge(loader: Any) -> NativeEmbeddingService:
    return NativeEmbeddingService(EmbeddingModel.BGE_SMALL_EN_V1_5)


# Loading


def test_model_is_loaded_by_the_first_call_with_its_own_facts(loader: Any) -> None:
    service = NativeEmbeddingService(MINILM)
    loaded = [service.is_loaded]
    assert service.model_config() == ModelConfig(MINILM)
    assert loader.calls == []
    service.embed(["a"])
    service.embed(["b"])
    assert [*loaded, service.is_loaded] == [False, True]
    assert loader.calls == [
        (
            "sentence-transformers/all-MiniLM-L6-v2",
            {
                "precision": "float32",
                "pooling": "mean",
                "normalize": True,
                "max_tokens": 256,
                "threads": None,
                "cache": None,
            },
        )
    ]


def test_many_threads_load_once(loader: Any) -> None:
    loader.delay = 0.05
    service = NativeEmbeddingService(MINILM)
    barrier = threading.Barrier(8)

    def work(number: int) -> bytes:
        barrier.wait()
        return service.embed_one("same text").tobytes()

    with ThreadPoolExecutor(8) as pool:
        results = set(pool.map(work, range(8)))
    assert len(results) == 1
    assert len(loader.calls) == 1


def test_failed_load_can_be_tried_again(loader: Any) -> None:
    loader.failures = [lattice_inference.errors.ModelNotFoundError("not here")]
    service = NativeEmbeddingService(MINILM)
    with pytest.raises(lattice_inference.errors.ModelNotFoundError, match="not here"):
        service.embed(["a"])
    assert not service.is_loaded
    assert len(service.embed(["a"])) == 1
    assert len(loader.calls) == 2


def test_wrong_input_costs_no_load(loader: Any) -> None:
    service = NativeEmbeddingService(MINILM)
    for texts in ([], ["\ud800"], "text", [1]):
        with pytest.raises(InvalidInputError):
            service.embed(texts)  # type: ignore[arg-type]
    assert loader.calls == []


def test_load_and_close(loader: Any) -> None:
    with NativeEmbeddingService(MINILM).load() as service:
        assert service.is_loaded
        assert "loaded" in repr(service)
    assert loader.encoders[0].closed
    service.close()
    for call in (lambda: service.embed(["a"]), service.load, lambda: service.count_tokens(["a"])):
        with pytest.raises(ServiceClosedError, match="make a new service"):
            call()


def test_files_of_another_model_are_refused(loader: Any) -> None:
    loader.sizes[MINILM.model_id] = 768
    with pytest.raises(ModelConfigError, match="768 dimensions"):
        NativeEmbeddingService(MINILM).load()
    assert loader.encoders[0].closed


def test_number_of_threads_reaches_the_encoder(loader: Any) -> None:
    NativeEmbeddingService(MINILM, threads=2).load()
    assert loader.calls[0][1]["threads"] == 2


def test_service_works_in_a_forked_child_whose_parent_was_loading(loader: Any) -> None:
    loader.delay = 0.3
    service = NativeEmbeddingService(MINILM)
    thread = threading.Thread(target=service.load)
    thread.start()
    loader.started.wait()
    child = os.fork()
    if child == 0:  # the lock was held at the fork; nobody in this process would ever release it
        os._exit(0 if len(service.embed(["a"])) == 1 else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_pickling_keeps_the_reference_not_the_weights(loader: Any, tmp_path: Path) -> None:
    service = NativeEmbeddingService(MINILM, truncate="error", max_batch_size=7, max_text_chars=9)
    before = service.embed(["a"])
    copy = pickle.loads(pickle.dumps(service))
    assert not copy.is_loaded
    assert (copy.name, copy.max_batch_size, copy.max_text_chars) == (service.name, 7, 9)
    assert np.array_equal(copy.embed(["a"]), before)
    own = pickle.loads(pickle.dumps(NativeEmbeddingService(tmp_path)))
    assert own.name == f"native:{tmp_path.name}"


# Which model


def test_no_model_means_the_default(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NativeEmbeddingService().model_config().model is EmbeddingModel.BGE_SMALL_EN_V1_5
    monkeypatch.setenv("LATTICE_EMBED_MODEL", "all-minilm-l6-v2")
    assert NativeEmbeddingService().model_config().model is MINILM
    monkeypatch.setenv("LATTICE_EMBED_MODEL", "no-such-model")
    with pytest.raises(UnknownModelError):
        NativeEmbeddingService()


def test_call_for_another_model_is_refused(service: NativeEmbeddingService) -> None:
    for same in (MINILM, "minilm", MINILM.model_id):
        assert len(service.embed(["a"], same)) == 1
        assert service.supports_model(same)
    for other in (EmbeddingModel.BGE_SMALL_EN_V1_5, "bge-small-en-v1.5"):
        assert not service.supports_model(other)
        with pytest.raises(WrongModelError, match=r"holds all-minilm-l6-v2, the call asks for bge-small-en-v1\.5"):
            service.embed(["a"], other)
        with pytest.raises(WrongModelError):
            service.model_config(other)
    assert not service.supports_model("no-such-model")


def test_remote_model_is_refused(loader: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"text-embedding-3-small.*provider"):
        NativeEmbeddingService("openai")


def test_model_that_cannot_run_is_refused_before_its_files_are_sought(
    loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice_inference.capabilities.runs_model_type", lambda kind: kind != "qwen3")
    with pytest.raises(UnsupportedModelError, match=rf"{QWEN.slug} cannot be run here: its architecture \(qwen3\)"):
        NativeEmbeddingService(QWEN).embed(["a"])
    assert loader.calls == []


def test_what_runs_follows_from_what_lattice_inference_can_do(monkeypatch: pytest.MonkeyPatch, loader: Any) -> None:
    e5 = EmbeddingModel.MULTILINGUAL_E5_BASE
    monkeypatch.setattr("lattice_inference.capabilities.runs_tokenizer_model", lambda kind: kind == "Unigram")
    assert missing_feature(e5.description) is None
    with pytest.raises(UnsupportedModelError, match=r"its kind of tokenizer \(wordpiece\) is not built"):
        NativeEmbeddingService(MINILM).embed(["a"])
    monkeypatch.setattr("lattice_inference.capabilities.runs_model_type", lambda kind: kind == "bert")
    assert missing_feature(e5.description) == "its architecture (xlm-roberta) is not built in this version"
    assert missing_feature(EmbeddingModel.TEXT_EMBEDDING_3_SMALL.description).startswith("it runs at its provider")
    assert loader.calls == []


def test_every_encoder_of_the_catalogue_has_an_architecture_that_is_built() -> None:
    for model in EmbeddingModel:
        assert model.is_remote or runs_model_type(model.description.architecture)


def test_unsupported_files_name_the_model(loader: Any, tmp_path: Path) -> None:
    loader.failures = [lattice_inference.errors.UnsupportedError("modules.json asks for a Dense layer")]
    with pytest.raises(UnsupportedModelError, match=f"{tmp_path.name} cannot be run here: .*Dense"):
        NativeEmbeddingService(tmp_path).load()


def test_directory_brings_its_own_facts(loader: Any, tmp_path: Path) -> None:
    loader.sizes[str(tmp_path)] = 48
    service = NativeEmbeddingService(tmp_path)
    result = service.embed_query(["a"])
    (call,) = loader.calls
    assert call[0] == str(tmp_path)
    assert {name for name, value in call[1].items() if value is not None} == {"precision"}  # the files say the rest
    config = service.model_config()
    assert config.dimensions == 48
    assert config.description.max_tokens == 256
    assert result.prompt == "find: "
    assert service.embed_passage(["a"]).prompt == "doc: "
    assert service.embed(["a"]).prompt == ""
    assert service.encode([]).shape == (0, 48)


# Roles and results


def test_role_puts_the_prompt_before_the_text(bge: NativeEmbeddingService, loader: Any) -> None:
    query = bge.embed(["cats"], role=Role.QUERY)
    passage = bge.embed(["cats"], role=Role.PASSAGE)
    generic = bge.embed(["cats"])
    prompt = "Represent this sentence for searching relevant passages: "
    assert loader.encoders[0].seen == [f"{prompt}cats", "cats", "cats"]
    assert (query.prompt, passage.prompt, generic.prompt) == (prompt, "", "")
    assert not np.array_equal(query, passage)
    assert np.array_equal(passage, generic)
    assert np.array_equal(bge.embed_query("cats"), query[0])
    assert np.array_equal(bge.embed(["cats"], role="query"), query)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompts", "before"),
    [
        ({"query": "q: ", "passage": "p: ", "document": "d: "}, "p: "),
        ({"document": "d: ", "query": "q: "}, "d: "),
        ({"query": "q: "}, ""),
    ],
)
def test_a_folders_prompt_of_passages_comes_before_that_of_documents(
    loader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: dict[str, str], before: str
) -> None:
    def load(source: str, **options: Any) -> Any:
        encoder = loader(source, **options)
        encoder.prompts = prompts
        return encoder

    monkeypatch.setitem(vars(lattice_inference), "load_encoder", load)
    folder = NativeEmbeddingService(tmp_path)
    assert folder.embed(["cats"], role=Role.PASSAGE).prompt == before
    folder.embed(["cats"], role=Role.QUERY)
    assert loader.encoders[0].seen == [f"{before}cats", "q: cats"]


def test_model_without_prompts_reads_roles_alike(service: NativeEmbeddingService) -> None:
    assert np.array_equal(service.embed_query("cats"), service.embed_passage("cats"))


def test_result_tells_what_was_really_read(service: NativeEmbeddingService) -> None:
    result = service.embed(["one two three", "word " * 500])
    assert result.token_counts.tolist() == [5, 256]
    assert result.truncated.tolist() == [False, True]
    assert result.total_tokens == 261
    assert result.model == "all-minilm-l6-v2"
    assert service.count_tokens(["one two three", "word " * 500]).tolist() == [5, 502]


def test_prompt_tokens_are_counted(bge: NativeEmbeddingService) -> None:
    assert bge.count_tokens(["cats"], role=Role.QUERY)[0] - bge.count_tokens(["cats"])[0] == 7
    assert bge.embed_query(["cats"]).token_counts[0] == bge.count_tokens(["cats"], role=Role.QUERY)[0]


def test_fingerprint_tells_spaces_apart(bge: NativeEmbeddingService, service: NativeEmbeddingService) -> None:
    seen = {
        service.embed(["a"]).fingerprint,
        bge.embed(["a"]).fingerprint,
        bge.embed_query(["a"]).fingerprint,
        bge.embed(["a"], normalize=False).fingerprint,
    }
    assert len(seen) == 4
    assert bge.embed(["b"]).fingerprint == bge.embed(["a"]).fingerprint


def test_vectors_have_length_one_unless_asked_otherwise(service: NativeEmbeddingService) -> None:
    assert np.linalg.norm(service.embed_one("a")) == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(service.embed_one("a", normalize=False)) > 2


def test_not_a_number_is_an_error_that_names_the_text(service: NativeEmbeddingService, loader: Any) -> None:
    service.load()
    loader.encoders[0].poison = "bad"
    with pytest.raises(NonFiniteVectorError, match="text 1") as caught:
        service.embed(["good", "bad", "good"])
    assert caught.value.index == 1
    with pytest.raises(NonFiniteVectorError) as caught:
        list(service.embed_iter(["good"] * 5 + ["bad"], batch_size=2))
    assert caught.value.index == 5
    assert len(service.embed(["good"])) == 1


# Limits


def test_limits_hold_for_the_text_without_its_prompt(loader: Any) -> None:
    service = NativeEmbeddingService(EmbeddingModel.BGE_SMALL_EN_V1_5, max_text_chars=10, max_batch_size=3)
    assert len(service.embed(["x" * 10] * 3, role=Role.QUERY)) == 3
    with pytest.raises(TextTooLongError, match="11 characters; the limit is 10"):
        service.embed(["x" * 11], role=Role.QUERY)
    with pytest.raises(TooManyTextsError, match="more than 3"):
        service.embed(["x"] * 4)
    assert service.encode(["x"] * 4).shape == (4, 384)


def test_default_limits(service: NativeEmbeddingService) -> None:
    assert len(service.embed(["x" * 32_768] * 2)) == 2
    with pytest.raises(TextTooLongError, match=r"32,769 characters; the limit is 32,768"):
        service.embed(["x" * 32_769])
    assert len(service.embed(["x"] * 1_000)) == 1_000
    with pytest.raises(TooManyTextsError, match=r"more than 1,000"):
        service.embed(["x"] * 1_001)


def test_text_over_the_token_limit_is_an_error_on_request(loader: Any) -> None:
    service = NativeEmbeddingService(MINILM, truncate="error")
    with pytest.raises(TextTooLongError, match="text 1 has 302 tokens; the limit is 256") as caught:
        service.embed(["short", "word " * 300])
    assert (caught.value.index, caught.value.length, caught.value.limit, caught.value.unit) == (1, 302, 256, "tokens")
    assert len(service.embed(["word " * 254])) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "int7"},
        {"truncate": "left"},
        {"threads": 0},
        {"threads": -1},
        {"threads": 257},
        {"threads": 1.5},
        {"threads": "x"},
        {"threads": True},
        {"threads": 10**400},
        {"threads": 10**5000},
        {"max_batch_size": 0},
        {"max_text_chars": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], loader: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"{next(iter(options))} is"):
        NativeEmbeddingService(MINILM, **options)  # type: ignore[arg-type]


# Shorter vectors


def test_shorter_vectors_are_cut_and_scaled_again(qwen_runs: None) -> None:
    whole = NativeEmbeddingService(QWEN).embed(["a", "b"], normalize=False).vectors
    service = NativeEmbeddingService(QWEN, output_dim=64)
    result = service.embed(["a", "b"])
    assert result.vectors.shape == (2, 64)
    assert service.model_config().dimensions == 64
    expected = whole[:, :64] / np.linalg.norm(whole[:, :64], axis=1, keepdims=True)
    np.testing.assert_allclose(result.vectors, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1, atol=1e-6)
    assert np.array_equal(service.embed(["a"], normalize=False).vectors, whole[:1, :64])
    assert service.encode([]).shape == (0, 64)
    assert result.fingerprint != NativeEmbeddingService(QWEN, output_dim=65).embed(["a"]).fingerprint


def test_dimension_from_the_environment_is_for_models_that_allow_one(
    loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICE_EMBED_DIM", "64")
    assert NativeEmbeddingService(QWEN).model_config().dimensions == 64
    assert NativeEmbeddingService(QWEN, output_dim=128).model_config().dimensions == 128
    assert NativeEmbeddingService(MINILM).model_config().dimensions == 384
    monkeypatch.setenv("LATTICE_EMBED_DIM", "  ")
    assert NativeEmbeddingService(QWEN).model_config().dimensions == 1024
    for wrong in ("many", "31", "1025", "64.0"):
        monkeypatch.setenv("LATTICE_EMBED_DIM", wrong)
        with pytest.raises(ModelConfigError):
            NativeEmbeddingService(QWEN)


def test_dimension_is_refused_where_it_makes_no_sense(loader: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="not trained for shorter vectors"):
        NativeEmbeddingService(MINILM, output_dim=64)
    with pytest.raises(ModelConfigError, match="only models that are known to be trained"):
        NativeEmbeddingService(tmp_path, output_dim=64)
    with pytest.raises(ModelConfigError, match="outside"):
        NativeEmbeddingService(QWEN, output_dim=8)


# Asyncio


def test_cancelled_waiter_does_not_harm_the_load(loader: Any) -> None:
    loader.delay = 0.1

    async def scenario() -> None:
        service = NativeEmbeddingService(MINILM)
        waiter = asyncio.create_task(service.aembed(["a"]))
        while not loader.started.is_set() and not waiter.done():
            await asyncio.sleep(0.001)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert len(await service.aembed(["a"])) == 1
        assert (await service.aembed_query("a")).shape == (384,)

    asyncio.run(scenario())
    assert len(loader.calls) == 1


def test_event_loop_stays_free_while_the_model_is_loaded(loader: Any) -> None:
    loader.may_go_on.clear()

    async def scenario() -> None:
        load = asyncio.create_task(NativeEmbeddingService(MINILM).aload())
        while not loader.started.is_set() and not load.done():
            await asyncio.sleep(0.001)
        loader.may_go_on.set()  # said from the loop: were it not free, the load would wait in vain
        assert (await load).is_loaded

    asyncio.run(scenario())
