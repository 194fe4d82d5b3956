"""``search`` finds the nearest texts of a file or store; ``compare`` measures how far two models agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from lattice_embed.cli import main
from lattice_embed.cli.compare_command import neighbour_agreement, rank_correlation

Capture = pytest.CaptureFixture[str]
TEXTS = ["a cat sat", "the dog ran", "a cat sat down", "stock prices fell", "prices of stock"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any, capsys: Capture) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("\n".join(TEXTS))
    Path("texts.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in TEXTS))
    assert main(["embed", "--model", "minilm", "--input", "texts.txt", "--output", "x.npy"]) == 0
    capsys.readouterr()
    return tmp_path


def report(capsys: Capture, *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys: Capture, *arguments: str) -> str:
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("given", [["--texts", "texts.txt"], ["--texts", "texts.jsonl", "--column", "body"]])
def test_search_ranks_by_the_cosine(given: list[str], capsys: Capture) -> None:
    found = report(capsys, "search", "x.npy", "the dog ran", *given, "--model", "minilm", "--top", "3")
    vectors = np.load("x.npy")
    scores = vectors @ vectors[1] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[1])
    order = np.argsort(-scores, kind="stable")[:3]
    assert [match["index"] for match in found["matches"]] == order.tolist()
    assert [match["text"] for match in found["matches"]] == [TEXTS[index] for index in order]
    np.testing.assert_allclose([match["score"] for match in found["matches"]], scores[order], atol=2e-6)
    assert (found["model"], found["query"]) == ("all-minilm-l6-v2", "the dog ran")


def test_search_prints_score_row_and_text(capsys: Capture) -> None:
    assert main(["search", "x.npy", "a cat sat", "--texts", "texts.txt", "--model", "minilm", "--top", "1"]) == 0
    assert capsys.readouterr().out == " 1.00000       0  a cat sat\n"


def test_search_of_a_store_is_its_query(capsys: Capture) -> None:
    assert main(["store", "import", "x.db", "--input", "texts.txt", "--model", "minilm"]) == 0
    capsys.readouterr()
    found = report(capsys, "search", "x.db", "the dog ran", "--top", "2")
    assert found == report(capsys, "store", "query", "x.db", "the dog ran", "--top", "2")
    assert found["matches"][0]["text"] == "the dog ran"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.npy", "q"], "--texts FILE is missing"),
        (["x.npy", "q", "--texts", "texts.jsonl"], "texts.jsonl holds rows: name the column"),
        (["x.npy", "q", "--texts", "texts.txt", "--column", "body"], "--column is for rows of a table"),
        (["x.npy", "q", "--texts", "two.txt"], "x.npy holds 5 vectors, two.txt 2 texts"),
        (["x.npy", "q", "--texts", "texts.txt", "--top", "0"], "--top is 0; it must be at least 1"),
        (["narrow.npy", "q", "--texts", "texts.txt"], "narrow.npy holds vectors of 3, the model's have 384"),
        (["flat.npy", "q", "--texts", "texts.txt"], "flat.npy holds float64 of the shape (5,)"),
        (["names.npy", "q", "--texts", "texts.txt"], "names.npy: no .npy file of numbers"),
        (["junk.npy", "q", "--texts", "texts.txt"], "junk.npy: no .npy file of numbers"),
        (["nan.npy", "q", "--texts", "texts.txt"], "nan.npy: row 3 holds NaN or infinity"),
        (["nan.npy", "q", "--texts", "texts.txt", "--json"], "nan.npy: row 3 holds NaN or infinity"),
        (["huge.npy", "q", "--texts", "texts.txt"], "huge.npy holds a magnitude of 1e+300"),
        (["x.db", "q", "--texts", "texts.txt"], "--texts goes with VECTORS.npy"),
        (["x.db", "q", "--retrieval"], "--retrieval goes with VECTORS.npy"),
    ],
)
def test_search_refuses_what_does_not_go_together(arguments: list[str], message: str, capsys: Capture) -> None:
    Path("two.txt").write_text("a\nb\n")
    Path("junk.npy").write_text("no array")
    np.save("narrow.npy", np.ones((5, 3), np.float32))
    np.save("flat.npy", np.ones(5))
    wrong = np.ones((5, 384))
    wrong[3, 7] = np.nan
    np.save("nan.npy", wrong)
    np.save("huge.npy", np.full((5, 384), 1e300))
    np.save("names.npy", np.array([{"a": 1}], object))
    assert message in failure(capsys, "search", *arguments, "--model", "minilm")


def test_a_model_agrees_with_itself(capsys: Capture) -> None:
    found = report(capsys, "compare", "minilm", "minilm", "--input", "texts.jsonl", "--column", "body", "--top", "2")
    assert (found["neighbours"], found["rank_correlation"], found["texts"], found["top"]) == (1.0, 1.0, 5, 2)
    assert [(model["model"], model["dim"], model["vector_bytes"]) for model in found["models"]] == [
        ("all-minilm-l6-v2", 384, 1536)
    ] * 2


def test_two_models_are_compared_on_the_same_texts(capsys: Capture) -> None:
    assert main(["compare", "minilm", "bge-small-en-v1.5", "--input", "texts.txt", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "all-minilm-l6-v2" in out
    assert "bge-small-en-v1.5" in out
    assert "neighbours in common" in out


def test_agreement_is_the_mean_share_of_common_neighbours() -> None:
    first = np.array([[1, 0.9, 0.8, 0.1], [0.9, 1, 0.2, 0.1], [0.8, 0.2, 1, 0.5], [0.1, 0.1, 0.5, 1]], np.float32)
    second = np.array([[1, 0.9, 0.1, 0.8], [0.9, 1, 0.2, 0.1], [0.1, 0.2, 1, 0.5], [0.8, 0.1, 0.5, 1]], np.float32)
    # two nearest: {1,2} {0,2} {0,3} {2,0}; {1,3} {0,2} {3,1} {0,2}
    assert neighbour_agreement(first, second, 2) == pytest.approx((1 + 2 + 1 + 2) / 8)
    assert neighbour_agreement(first, first, 3) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_rank_correlation_is_that_of_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrices = [np.round(rng.random((20, 20)), 1).astype(np.float32) for _ in range(2)]  # with many ties
    pairs = np.triu_indices(20, 1)
    expected = spearmanr(matrices[0][pairs], matrices[1][pairs]).statistic
    assert rank_correlation(*matrices) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "texts.txt"], "5 texts have no 10 neighbours each"),
        (["--input", "texts.txt", "--top", "0"], "--top is 0"),
        (["--input", "texts.jsonl", "--top", "2"], "texts.jsonl holds rows: name the column"),
        (["--input", "texts.txt", "--column", "body"], "--column is for rows of a table"),
    ],
)
def test_compare_refuses_what_does_not_go_together(arguments: list[str], message: str, capsys: Capture) -> None:
    assert message in failure(capsys, "compare", "minilm", "minilm", *arguments)
