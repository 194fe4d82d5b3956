"""The real all-MiniLM-L6-v2 through the service: the original's vectors, and the same bits in any company."""

from __future__ import annotations

import asyncio
import csv
import gc
import json
import math
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from lattice_embed import EmbeddingModel, NativeEmbeddingService, TextTooLongError
from lattice_embed import vectors as ops
from lattice_embed.cli import main

pytestmark = pytest.mark.model

GOLDENS = Path(__file__).parent / "data" / "embed_parity_v1"
STSB = Path(__file__).parents[4] / "shared" / "data" / "text" / "stsb" / "stsb-en-test.csv"
ODD_TEXTS = ["", " ", "\n\t", "\u200b", "\x00\x07", "a", "日本語のテキスト", "\U0001f600" * 40, "é" * 300, "x" * 32_768]


def golden(name: str) -> Any:
    return json.loads((GOLDENS / f"{name}.json").read_text())


def test_lower_limit_of_tokens_cuts_texts_and_makes_another_space(minilm: NativeEmbeddingService) -> None:
    with NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2, max_tokens=5) as short:
        result = short.embed(["one two three four", "one"])
        assert result.vectors.tobytes() == minilm.embed(["one two three", "one"]).vectors.tobytes()
        assert result.truncated.tolist() == [True, False]
        assert result.token_counts.tolist() == [5, 3]
        assert (short.max_tokens, short.token_room()) == (5, 3)
        assert pickle.loads(pickle.dumps(short)).max_tokens == 5
        assert result.fingerprint != minilm.embed(["one"]).fingerprint
    with NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2, max_tokens=256) as same:
        assert same.embed(["one"]).fingerprint == minilm.embed(["one"]).fingerprint
    strict = NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2, max_tokens=5, truncate="error")
    with strict, pytest.raises(TextTooLongError, match="text 0 has 6 tokens; the limit is 5"):
        strict.embed(["one two three four"])
    with pytest.raises(ValueError, match="max_tokens is 257 and all-minilm-l6-v2 takes 256 tokens"):
        NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2, max_tokens=257).load()
    for wrong in (2, 0, -1, 2.5, True, "5", 2**70):
        with pytest.raises(ValueError, match="max_tokens is"):
            NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2, max_tokens=wrong)  # type: ignore[arg-type]


def test_one_text_of_a_warm_service_takes_few_calls_of_our_functions(minilm: NativeEmbeddingService) -> None:
    """A count, which no busy machine changes: what Python does around the kernels for a text."""
    minilm.embed(["a text"])
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        file = frame.f_code.co_filename
        calls += event == "call" and ("/lattice_embed/" in file or "/lattice_inference/" in file)

    gc.disable()  # it would run our finalizers of what other tests left
    sys.setprofile(note)
    try:
        minilm.embed(["another text"])
    finally:
        sys.setprofile(None)
        gc.enable()
    assert 20 < calls <= 56  # 50, and 54 where the memory of a step is allocated anew


def test_goldens_are_met(minilm: NativeEmbeddingService) -> None:
    cases = golden("all_minilm_l6_v2")
    result = minilm.embed([case["input"] for case in cases])
    expected = np.array([case["embedding"] for case in cases])
    assert np.abs(result.vectors - expected).max() <= 1e-6
    assert result.token_counts.tolist() == [len(case["input_ids"]) for case in cases]
    assert not result.truncated.any()


@pytest.mark.slow
def test_text_over_the_limit_is_cut_and_reported(minilm: NativeEmbeddingService) -> None:
    text = golden("long_input_case")["input"]
    assert minilm.count_tokens([text]).tolist() == [429]
    result = minilm.embed([text, "short"])
    assert result.token_counts[0] == 256
    assert result.truncated.tolist() == [True, False]
    with (
        NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2, truncate="error") as strict,
        pytest.raises(TextTooLongError, match="text 1 has 429 tokens; the limit is 256"),
    ):
        strict.embed(["short", text])


@pytest.mark.slow
def test_what_stands_before_the_limit_counts_and_what_stands_behind_does_not(minilm: NativeEmbeddingService) -> None:
    words = "word " * 254
    assert np.array_equal(minilm.embed_one(words + "one ending"), minilm.embed_one(words + "another end"))
    assert not np.array_equal(minilm.embed_one("one " + words), minilm.embed_one("another " + words))


@pytest.mark.slow
def test_vector_is_the_same_in_any_company(minilm: NativeEmbeddingService) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["cat", "dog", "run", "blue", "seven"], size)) for size in rng.integers(1, 90, 40)]
    alone = np.stack([minilm.embed_one(text) for text in texts])
    assert minilm.embed(texts).vectors.tobytes() == alone.tobytes()
    order = rng.permutation(len(texts))
    assert minilm.embed([texts[place] for place in order]).vectors.tobytes() == alone[order].tobytes()
    assert np.stack(list(minilm.embed_iter(texts, batch_size=7))).tobytes() == alone.tobytes()
    minilm.trim()
    assert minilm.encode(texts).tobytes() == alone.tobytes()
    assert len({vector.tobytes() for vector in minilm.embed(["test test"] * 100)}) == 1


def test_odd_texts_have_vectors_of_length_one(minilm: NativeEmbeddingService) -> None:
    result = minilm.embed(ODD_TEXTS)
    assert np.isfinite(result.vectors).all()
    np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1, atol=1e-6)
    assert result.token_counts[0] == 2  # the special tokens alone


def test_threads_and_tasks_share_one_model(minilm: NativeEmbeddingService) -> None:
    texts = [f"text number {number}" for number in range(16)]
    expected = [vector.tobytes() for vector in minilm.embed(texts)]
    with ThreadPoolExecutor(8) as pool:
        assert [vector.tobytes() for vector in pool.map(minilm.embed_one, texts)] == expected

    async def gather() -> list[bytes]:
        return [vector.tobytes() for vector in await asyncio.gather(*map(minilm.aembed_one, texts))]

    assert asyncio.run(gather()) == expected


def test_works_in_a_forked_child(minilm: NativeEmbeddingService) -> None:
    expected = minilm.embed_one("before and after").tobytes()
    child = os.fork()
    if child == 0:
        os._exit(0 if minilm.embed_one("before and after").tobytes() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_copy_by_pickle_gives_the_same_bits(minilm: NativeEmbeddingService) -> None:
    with pickle.loads(pickle.dumps(minilm)) as copy:
        assert copy.embed_one("a text").tobytes() == minilm.embed_one("a text").tobytes()
        assert copy.embed(["a"]).fingerprint == minilm.embed(["a"]).fingerprint


def test_directory_gives_the_vectors_of_the_name(minilm: NativeEmbeddingService) -> None:
    directory = minilm.load()._load().encoder.directory
    with NativeEmbeddingService(directory) as own:
        assert own.embed_one("a text").tobytes() == minilm.embed_one("a text").tobytes()
        assert own.model_config().dimensions == 384
        assert own.model_config().description.max_tokens == 256


@pytest.mark.slow
@pytest.mark.skipif(not STSB.exists(), reason=f"{STSB} is not here; its licence does not let us ship it")
def test_similarity_ranks_sentences_as_people_do(minilm: NativeEmbeddingService) -> None:
    with STSB.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    first, second = minilm.encode(row[0] for row in rows), minilm.encode(row[1] for row in rows)
    similarity = ops.batch_cosine_similarity(first, second)
    correlation = spearmanr(similarity, [float(row[2]) for row in rows]).statistic
    assert math.isclose(correlation, 0.8203, abs_tol=0.0002)


@pytest.mark.slow
def test_int8_costs_little_of_the_direction(minilm: NativeEmbeddingService, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [text for text in ODD_TEXTS if len(text) < 400] + ["A sentence of everyday words.", "Another one, longer."]
    with NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2, precision="int8") as small:
        result = small.embed(texts)
        assert result.fingerprint != minilm.embed(texts).fingerprint
        cosines = (result.vectors.astype(np.float64) * minilm.embed(texts).vectors).sum(axis=1)
        assert cosines.min() >= 0.99
        assert main(["embed", "--model", "all-minilm-l6-v2", "--precision", "int8", "--json", texts[-1]]) == 0
        (entry,) = json.loads(capsys.readouterr().out)["embeddings"]
        assert np.array_equal(np.array(entry["embedding"], np.float32), result.vectors[-1])


@pytest.mark.slow
@pytest.mark.skipif(not STSB.exists(), reason=f"{STSB} is not here; its licence does not let us ship it")
def test_int8_ranks_sentences_nearly_as_float32_does() -> None:
    with STSB.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    with NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2, precision="int8") as small:
        first, second = (small.encode(row[column] for row in rows) for column in (0, 1))
    correlation = spearmanr(ops.batch_cosine_similarity(first, second), [float(row[2]) for row in rows]).statistic
    assert math.isclose(correlation, 0.8203, abs_tol=0.003)
