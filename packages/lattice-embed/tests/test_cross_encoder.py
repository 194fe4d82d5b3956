"""The cross-encoder as users call it: scores, ranking, limits, loading; on models with drawn weights."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lattice_inference
from drawn_checkpoints import write_directory
from lattice_embed import (
    CrossEncoder,
    InvalidInputError,
    InvalidTextError,
    NonFiniteVectorError,
    RankedDocument,
    ServiceClosedError,
    TextTooLongError,
    UnknownModelError,
    UnsupportedModelError,
)

DATA = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "architectures"
CASES: dict[str, Any] = json.loads((DATA / "cases.json").read_text())["cases"]
DOCUMENTS = ["the cat sat on the mat", "", "dogs and cats are not the same animal", "a zebra", "the cat sat on the mat"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("models") / "ranker", CASES["cross-encoder-xlm-roberta"])


@pytest.fixture(scope="module")
def scorer(directory: Path) -> Iterator[CrossEncoder]:
    with CrossEncoder(directory) as made:
        yield made


def test_scores_are_those_of_sentence_transformers(scorer: CrossEncoder) -> None:
    pairs = [(first, second) for first, second in CASES["cross-encoder-xlm-roberta"]["pairs"]]
    with np.load(DATA / "outputs.npz") as stored:
        want = stored["cross-encoder-xlm-roberta/output"]
    got = scorer.score_pairs(pairs)
    assert (got.dtype, got.shape) == (np.float32, want.shape)
    assert np.abs(got - want).max() <= 1e-6


def test_a_score_has_the_same_bits_alone_and_among_others(scorer: CrossEncoder) -> None:
    scores = scorer.score("the cat", DOCUMENTS)
    for document, score in zip(DOCUMENTS, scores, strict=True):
        assert scorer.score("the cat", [document])[0] == score
    assert scorer.score("the cat", []).shape == (0,)


def test_ranking_is_by_score_and_keeps_the_order_of_equals(scorer: CrossEncoder) -> None:
    scores = scorer.score("the cat", DOCUMENTS)
    ranked = scorer.rank("the cat", DOCUMENTS)
    assert sorted(entry.index for entry in ranked) == list(range(5))
    assert [entry.score for entry in ranked] == sorted(scores.tolist(), reverse=True)
    places = [entry.index for entry in ranked]
    assert places.index(0) == places.index(4) - 1  # the same text twice
    assert scorer.rank("the cat", DOCUMENTS, top_k=2) == ranked[:2]
    assert isinstance(ranked[0], RankedDocument)
    assert scorer.rank("the cat", []) == []


def test_a_classifier_scores_but_does_not_rank(tmp_path: Path) -> None:
    with CrossEncoder(write_directory(tmp_path, CASES["cross-encoder-bert-three-labels"])) as classifier:
        assert classifier.label_count == 3
        assert classifier.score("the cat", DOCUMENTS).shape == (5, 3)
        with pytest.raises(UnsupportedModelError, match="3 scores a pair"):
            classifier.rank("the cat", DOCUMENTS)


def test_bad_input_is_refused_by_name(scorer: CrossEncoder) -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: scorer.score("q", "a string"), InvalidInputError, "letter by letter"),
        (lambda: scorer.score(3, ["d"]), InvalidInputError, "query is a int"),  # type: ignore[arg-type]
        (lambda: scorer.score("\ud800", ["d"]), InvalidInputError, "query holds a lone surrogate"),
        (lambda: scorer.score("x" * 40_000, ["d"]), InvalidInputError, "query has 40,000 characters"),
        (lambda: scorer.score("q", ["d", None]), InvalidTextError, "text 1 is a NoneType"),  # type: ignore[list-item]
        (lambda: scorer.score("q", ["d", "\ud800"]), InvalidTextError, "text 1 holds a lone surrogate"),
        (lambda: scorer.score("q", ["x" * 40_000]), TextTooLongError, "text 0 has 40,000 characters"),
        (lambda: scorer.score_pairs([("a", "b", "c")]), InvalidInputError, "pair 0"),  # type: ignore[list-item]
        (lambda: scorer.score_pairs(["ab"]), InvalidInputError, "pair 0 is a str"),  # type: ignore[list-item]
        (lambda: scorer.rank("q", ["d"], top_k=0), InvalidInputError, "top_k"),
        (lambda: CrossEncoder("a/b", truncate="right"), InvalidInputError, "'right'"),  # type: ignore[arg-type]
        (
            lambda: CrossEncoder("a/b", threads=0),
            InvalidInputError,
            "threads is 0; it must be an integer from 1 to 256",
        ),
        (lambda: CrossEncoder("a/b", threads=-1), InvalidInputError, "threads is -1; it"),
        (lambda: CrossEncoder("a/b", threads=257), InvalidInputError, "threads is 257; it"),
        (lambda: CrossEncoder("a/b", threads="x"), InvalidInputError, "threads is 'x'; it"),  # type: ignore[arg-type]
        (lambda: CrossEncoder("a/b", threads=1.0), InvalidInputError, "threads is 1.0; it"),  # type: ignore[arg-type]
        (lambda: CrossEncoder("no-such-model"), UnknownModelError, "no-such-model"),
        (lambda: CrossEncoder("minilm"), InvalidInputError, "a model of embeddings"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()


def test_a_pair_over_the_token_limit_is_cut_or_refused(scorer: CrossEncoder, directory: Path) -> None:
    long = "cat " * 100
    assert scorer.max_tokens == 40
    assert scorer.score("the dog", [long])[0] == scorer.score("the dog", ["cat " * 34])[0]
    with (
        CrossEncoder(directory, truncate="error") as strict,
        pytest.raises(TextTooLongError, match="text 1 has 106 tokens; the limit is 40") as caught,
    ):
        strict.score("the dog", ["short", long])
    assert (caught.value.index, caught.value.length, caught.value.limit) == (1, 106, 40)


def test_the_model_is_loaded_once_by_the_first_call(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    load = lattice_inference.load_cross_encoder

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setitem(vars(lattice_inference), "load_cross_encoder", counted)
    scorer = CrossEncoder(directory)
    assert not scorer.is_loaded
    threads = [threading.Thread(target=scorer.score, args=("q", ["d"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scorer.is_loaded
    assert calls == [(str(directory),)]
    scorer.close()
    scorer.close()
    with pytest.raises(ServiceClosedError, match="was closed"):
        scorer.score("q", ["d"])


def test_a_failed_load_is_tried_again(directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    scorer = CrossEncoder(target)
    with pytest.raises(lattice_inference.ModelNotFoundError):
        scorer.load()
    write_directory(target, CASES["cross-encoder-bert-logits"])
    assert scorer.load().is_loaded


def test_a_model_without_a_classification_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no classification head"):
        CrossEncoder(write_directory(tmp_path, CASES["bge-small-en-v1.5"])).load()


def test_damaged_weights_name_the_document(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    model = write_directory(tmp_path / "model", CASES["cross-encoder-bert-logits"])
    tensors = load_file(model / "model.safetensors")
    tensors["classifier.weight"][:] = 3e38
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(NonFiniteVectorError, match="text 0") as caught:
        CrossEncoder(model).score("the cat", DOCUMENTS)
    assert caught.value.index == 0


def test_pickling_keeps_the_name_and_the_options(directory: Path) -> None:
    copy = pickle.loads(pickle.dumps(CrossEncoder(directory, truncate="error", threads=1)))
    assert not copy.is_loaded
    with pytest.raises(TextTooLongError):
        copy.score("q", ["cat " * 100])


def test_what_it_is_can_be_asked(scorer: CrossEncoder) -> None:
    assert scorer.name == "native:ranker"
    assert "loaded" in repr(scorer)
    assert scorer.fingerprint == lattice_inference.load_cross_encoder(scorer._source.location).fingerprint
