"""The invariants of the design (DESIGN.md, INV-1 to INV-8), each by name."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lattice_embed import (
    DEFAULT_MAX_BATCH_SIZE,
    DEFAULT_MAX_TEXT_CHARS,
    MIN_MRL_OUTPUT_DIM,
    CachedEmbeddingService,
    EmbeddingCache,
    EmbeddingModel,
    EmbeddingResult,
    EmbeddingService,
    LatticeEmbedError,
    ModelConfig,
    ModelConfigError,
    NativeEmbeddingService,
    Role,
    TextTooLongError,
    TooManyTextsError,
    WrongModelError,
)
from lattice_embed.cached_service import _Space

QWEN = EmbeddingModel.QWEN3_EMBEDDING_0_6B
SERVICES = {"native": lambda service: service, "cached": CachedEmbeddingService}


@pytest.fixture(params=SERVICES)
def any_service(request: pytest.FixtureRequest, loader: Any) -> EmbeddingService:
    service: EmbeddingService = SERVICES[request.param](NativeEmbeddingService("minilm"))
    return service


def test_inv_1_output_dimensions_have_keys_of_their_own(qwen_runs: None) -> None:
    sizes = (None, 32, 64, 512, 1023)
    assert len({ModelConfig(QWEN, size).to_embedding_key() for size in sizes}) == len(sizes)
    assert len({ModelConfig(QWEN, size).to_embedding_key().canonical_bytes for size in sizes}) == len(sizes)
    services = [NativeEmbeddingService(QWEN, output_dim=size) for size in sizes]
    assert len({service.provenance().fingerprint for service in services}) == len(sizes)
    assert len({service.provenance().space for service in services}) == len(sizes)
    cache = EmbeddingCache()
    for service, size in zip(services, sizes, strict=True):
        for _ in range(2):
            assert CachedEmbeddingService(service, cache=cache).embed(["text"]).vectors.shape == (1, size or 1024)
    assert (cache.stats().entries, cache.stats().hits) == (len(sizes), len(sizes))


@pytest.mark.parametrize("model", [model for model in EmbeddingModel if not model.supports_output_dim])
def test_inv_2_only_models_trained_for_it_take_an_output_dimension(
    model: EmbeddingModel, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (MIN_MRL_OUTPUT_DIM, model.native_dimensions):
        with pytest.raises(ModelConfigError, match="not trained for shorter vectors"):
            ModelConfig(model, size)
    if not model.is_remote:
        with pytest.raises(ModelConfigError):
            NativeEmbeddingService(model, output_dim=64)
        monkeypatch.setenv("LATTICE_EMBED_DIM", "64")  # meant for models that take one
        assert NativeEmbeddingService(model).model_config().dimensions == model.native_dimensions


@pytest.mark.parametrize("model", [model for model in EmbeddingModel if model.supports_output_dim])
def test_inv_3_an_output_dimension_is_between_32_and_the_native_one(model: EmbeddingModel, qwen_runs: None) -> None:
    for size in (MIN_MRL_OUTPUT_DIM, model.native_dimensions):
        assert ModelConfig(model, size).dimensions == size
    for size in (-1, 0, MIN_MRL_OUTPUT_DIM - 1, model.native_dimensions + 1):
        with pytest.raises(ModelConfigError, match="outside"):
            ModelConfig(model, size)
        with pytest.raises(ModelConfigError, match="outside"):
            NativeEmbeddingService(model, output_dim=size)


def test_inv_4_a_service_loads_its_model_once(any_service: EmbeddingService, loader: Any) -> None:
    loader.delay = 0.05
    barrier = threading.Barrier(8)

    def work(number: int) -> int:
        barrier.wait()
        return len(any_service.embed([f"text {number}"]))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [1] * 8
    assert len(loader.calls) == 1


def test_inv_5_the_cache_key_holds_the_embedding_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal in all but the canonical bytes of the model's configuration: the keys differ."""
    configs = [ModelConfig(QWEN, size) for size in (None, 64)] + [ModelConfig(EmbeddingModel.ALL_MINILM_L6_V2)]
    spaces = [_Space(config, None, Role.GENERIC, True, b"owner") for config in configs]
    assert len({space.keys.key("text") for space in spaces}) == len(spaces)
    before = spaces[0].keys.key("text")
    monkeypatch.setattr("lattice_embed.embedding_key.EmbeddingKey.canonical_bytes", b"another")
    assert _Space(configs[0], None, Role.GENERIC, True, b"owner").keys.key("text") != before


@pytest.mark.parametrize("returned", [0, 1, 2, 4])
def test_inv_6_another_number_of_vectors_than_of_texts_is_an_error(
    returned: int, service: NativeEmbeddingService
) -> None:
    class Careless(NativeEmbeddingService):
        def embed(self, texts: Sequence[str], *arguments: Any, **options: Any) -> EmbeddingResult:
            result = super().embed(texts, *arguments, **options)
            rows = [row % len(result) for row in range(returned)]
            return EmbeddingResult(result.vectors[rows])

    cached = CachedEmbeddingService(Careless("minilm"))
    for call in (cached.embed, cached.encode):
        with pytest.raises(LatticeEmbedError, match=f"returned {returned} vectors for 3 texts"):
            call(["a", "b", "c"])
    assert cached.stats().entries == 0
    with pytest.raises(LatticeEmbedError, match=f"returned {returned} vectors for 3 texts"):
        CachedEmbeddingService(Careless("minilm"), capacity=0).embed(["a", "b", "c"])


def test_inv_7_calls_and_texts_have_a_longest_length(any_service: EmbeddingService, loader: Any) -> None:
    assert (DEFAULT_MAX_BATCH_SIZE, DEFAULT_MAX_TEXT_CHARS) == (1_000, 32_768)
    with pytest.raises(TooManyTextsError, match="1,000"):
        any_service.embed(["a"] * 1_001)
    for call in (lambda text: any_service.embed([text]), any_service.embed_one):
        with pytest.raises(TextTooLongError, match="32,769 characters; the limit is 32,768"):
            call("x" * 32_769)
    assert loader.calls == []
    assert len(any_service.embed(["a"] * 1_000)) == 1_000
    assert any_service.embed_one("é" * 32_768).shape == (384,)


def test_inv_8_the_model_asked_for_is_the_model_held(any_service: EmbeddingService, loader: Any) -> None:
    any_service.embed(["text"], "all-minilm-l6-v2")
    for wrong in ("bge-small-en-v1.5", EmbeddingModel.MULTILINGUAL_E5_SMALL):
        assert not any_service.supports_model(wrong)
        for call in (any_service.embed, any_service.encode):
            with pytest.raises(WrongModelError, match="all-minilm-l6-v2"):  # for a text that is known, too
                call(["text"], wrong)
        with pytest.raises(WrongModelError):
            any_service.embed_one("text", wrong)
    assert np.array_equal(any_service.embed(["text"], "minilm"), any_service.embed(["text"]))
