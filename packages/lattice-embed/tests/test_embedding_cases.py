"""Failures that users of embedding libraries reported, by kind: with and without caches they must not come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import (
    CachedEmbeddingService,
    EmbeddingModel,
    EmbeddingService,
    NativeEmbeddingService,
    NonFiniteVectorError,
    Role,
    TextTooLongError,
)
from lattice_inference import VectorCache

DATA = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "tiny_bert"
TEXTS = ["the cat sat on the mat", "a", "", "   ", "\u200b", "the zebra again and again", "a b c d e f g " * 30]

Make = Callable[..., EmbeddingService]


@pytest.fixture(params=["plain", "memory", "disk", "both"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Make a service over the tiny model, or over another, with none, one or both of the caches."""
    made: list[NativeEmbeddingService] = []
    disk = VectorCache(tmp_path / "vectors")

    def make(model: Any = DATA, **options: Any) -> EmbeddingService:
        if request.param in ("disk", "both"):
            options["cache"] = disk
        service = NativeEmbeddingService(model, **options)
        made.append(service)
        return CachedEmbeddingService(service) if request.param in ("memory", "both") else service

    yield make
    for service in made:
        service.close()
    disk.close()


def test_kind_company_a_vector_is_the_same_bits_in_any_batch_hit_or_miss(make: Make) -> None:
    """E5, E6, E8: sentence-transformers 2312, 3197, 1453, 2569; text-embeddings-inference 617."""
    with NativeEmbeddingService(DATA) as plain:
        alone = [plain.embed_one(text).tobytes() for text in TEXTS]
    service = make()
    generator = np.random.default_rng(5)
    for size in (1, 2, 7, 64, 200):
        order = generator.integers(0, len(TEXTS), size)
        result = service.embed([TEXTS[place] for place in order])
        assert [vector.tobytes() for vector in result] == [alone[place] for place in order]
    assert len({vector.tobytes() for vector in service.embed(["test test"] * 100)}) == 1


def test_kind_shorter_vectors_have_length_one_and_are_never_mixed(qwen_runs: None) -> None:
    """E9: infinity 538; a cached vector of another length (reference: the disk cache ignored the dimension)."""
    long = CachedEmbeddingService(NativeEmbeddingService(EmbeddingModel.QWEN3_EMBEDDING_0_6B))
    short = CachedEmbeddingService(
        NativeEmbeddingService(EmbeddingModel.QWEN3_EMBEDDING_0_6B, output_dim=256), cache=long.cache
    )
    for _ in range(2):
        whole, cut = long.embed(["text"]).vectors[0], short.embed(["text"]).vectors[0]
        assert (len(whole), len(cut)) == (1024, 256)
        assert abs(np.linalg.norm(cut) - 1) <= 1e-6
        np.testing.assert_allclose(cut, whole[:256] / np.linalg.norm(whole[:256]), atol=1e-6)


def test_kind_nan_is_an_error_with_the_texts_place_and_never_in_a_cache(make: Make, tmp_path: Path) -> None:
    """E11: ollama 9639, 14657: NaN became an error 500, or stayed in the index."""
    import shutil

    from safetensors.numpy import load_file, save_file

    directory = Path(shutil.copytree(DATA, tmp_path / "damaged"))
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    weights = load_file(directory / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name][vocabulary["zebra"]] = 3e38  # finite, and too large for what follows
    save_file(weights, directory / "model.safetensors")
    service = make(directory)
    for _ in range(2):
        with pytest.raises(NonFiniteVectorError, match="text 2") as caught:
            service.embed(["a", "the cat", "the zebra", "a"])
        assert caught.value.index == 2
        assert np.isfinite(service.embed(["a", "the cat", "a"]).vectors).all()
    if isinstance(service, CachedEmbeddingService):
        assert service.stats().entries == 2


def test_kind_empty_and_blank_texts_have_a_finite_vector(make: Make) -> None:
    """E12: whatlies 312: an empty text gave NaN."""
    service = make()
    for _ in range(2):
        result = service.embed(["", "   ", "\u200b", "\n"])
        assert np.isfinite(result.vectors).all()
        np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1, atol=1e-6)
        assert result.token_counts[0] == 2


def test_kind_the_token_limit_is_the_models_and_counts_are_of_what_was_read(make: Make) -> None:
    """E13, E14, E16: omlx 1687: usage counted text that was cut; two texts that differ after the limit only."""
    service = make()
    limit = service.model_config().description.max_tokens
    first, second = "a " * (limit - 2) + "b", "a " * (limit - 2) + "c"
    for _ in range(2):
        result = service.embed([first, second, "a " * (limit - 2), "a"])
        assert result.token_counts.tolist() == [limit, limit, limit, 3]
        assert result.truncated.tolist() == [True, True, False, False]
        assert result[0].tobytes() == result[1].tobytes() == result[2].tobytes()
        assert service.embed(["b " + first])[0].tobytes() != service.embed(["c " + first])[0].tobytes()


def test_kind_a_long_text_is_cut_by_tokens_where_characters_are_allowed(make: Make) -> None:
    """E16: text-embeddings-inference 218: a limit of characters fired before the cut by tokens."""
    service = make(max_text_chars=100_000)
    for _ in range(2):
        assert service.embed(["a" + " a" * 33_668]).truncated.tolist() == [True]


def test_kind_roles_give_vectors_of_their_own_also_from_caches(make: Make, tmp_path: Path) -> None:
    """E17: a query was embedded without its instruction, or answered with the passage's vector."""
    import shutil

    directory = Path(shutil.copytree(DATA, tmp_path / "model"))
    prompts = {"query": "query : ", "passage": "passage : "}
    (directory / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    service = make(directory)
    text = "the cat"
    with NativeEmbeddingService(directory) as plain:
        want = {role: plain.embed([text], role=role)[0].tobytes() for role in Role}
        typed = plain.embed([prompts["query"] + text])[0].tobytes()
    assert len(set(want.values())) == 3
    for _ in range(2):
        for role in Role:
            assert service.embed([text], role=role)[0].tobytes() == want[role]
        assert service.embed_query(text).tobytes() == want[Role.QUERY] == typed
        assert service.embed_passage([text])[0].tobytes() == want[Role.PASSAGE]


def test_kind_limits_hold_for_the_callers_text_and_name_their_unit(make: Make) -> None:
    """E17, E18: the prompt was charged to the caller; a limit of characters counted bytes."""
    service = make(max_text_chars=10)
    for role in Role:
        assert len(service.embed(["é" * 10], role=role)) == 1
        with pytest.raises(TextTooLongError, match="11 characters; the limit is 10") as caught:
            service.embed(["a", "é" * 11], role=role)
        assert (caught.value.index, caught.value.length, caught.value.limit) == (1, 11, 10)
        assert caught.value.unit == "characters"


def test_kind_what_was_put_before_a_text_can_be_seen(loader: Any) -> None:
    """E20: omlx 1817: a hidden template changed vectors."""
    bge = EmbeddingModel.BGE_SMALL_EN_V1_5
    for service in (NativeEmbeddingService(bge), CachedEmbeddingService(NativeEmbeddingService(bge))):
        for _ in range(2):
            query = service.embed(["a"], role=Role.QUERY)
            assert (query.prompt, service.embed(["a"]).prompt) == (bge.query_prompt, "")
            assert query.provenance is not None
            assert query.provenance.prompt == bge.query_prompt
