"""What the script about stored and shorter vectors concludes, and the sentences that it takes."""

import json
from pathlib import Path

import numpy as np
import pytest

import recall
from harness.record import describe_run


def test_recall_has_limits_for_the_model_that_they_are_known_of() -> None:
    found = {"int8": 0.991, "int8, rescored": 1.0, "int4": 0.9, "int4, rescored": 1.0}
    found |= {"binary": 0.6, "binary, rescored": 0.97}
    record = {
        **describe_run("recall"),
        "source": "all-minilm-l6-v2",
        "count": 9,
        "dims": 4,
        "queries": 2,
        "recall": found,
    }
    assert recall.misses(record) == ["int4: Recall@10 is 0.9000, 0.92 is the limit"]
    assert recall.misses({**record, "source": "mine.npy"}) == []
    assert "| binary | 0.6000 | 0.9700 |" in recall.render(record)


def test_recall_of_given_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors_file = tmp_path / "mine.npy"
    np.save(vectors_file, np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32))
    arguments = ["--vectors", str(vectors_file), "--queries", "20", "--json", str(tmp_path / "record.json")]
    assert recall.main(arguments) == 0
    assert "| float16 | 1.0000 | 1.0000 |" in capsys.readouterr().out
    np.save(vectors_file, np.zeros((300, 64)))
    assert recall.main(arguments) == 1
    assert "float64" in capsys.readouterr().err


def test_rankings_of_shorter_vectors_are_compared_with_those_of_whole_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    spread = np.linspace(1, 0.05, 64, dtype=np.float32)  # as of models that were trained for it
    vectors = np.random.default_rng(0).standard_normal((90, 64)).astype(np.float32) * spread
    np.save(tmp_path / "mine.npy", vectors)
    target = tmp_path / "record.json"
    arguments = ["--vectors", str(tmp_path / "mine.npy"), "--queries", "90", "--json", str(target)]
    assert recall.main([*arguments, "--lengths", "8", "32", "64"]) == 0
    assert "| 64 | 1.0000 | 1.0000 |" in capsys.readouterr().out
    few, half, whole = json.loads(target.read_text(encoding="utf-8"))["lengths"]
    assert whole == {"length": 64, "recall": 1.0, "ranking_cosine": pytest.approx(1)}
    assert 0.1 < few["recall"] < half["recall"] < 1
    units = {size: vectors[:, :size] / np.linalg.norm(vectors[:, :size], axis=1)[:, None] for size in (8, 64)}
    cosines = []
    for query in range(90):
        exact, short = (np.delete(units[size][query] @ units[size].T, query) for size in (64, 8))
        cosines.append(scipy_stats.spearmanr(exact, short).statistic)
    assert few["ranking_cosine"] == pytest.approx(np.mean(cosines), abs=1e-4)
    assert recall.main([*arguments, "--lengths", "65"]) == 1
    assert "64 components, not 65" in capsys.readouterr().err


def test_sentences_are_taken_once_and_clauses_after_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("This is the first sentence.,And this is the second one.,3\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text(
        " = A heading of the text = \nThis is the first sentence. A third one , with a clause behind it. Short.\n",
        encoding="utf-8",
    )
    expected = [
        "This is the first sentence.",
        "And this is the second one.",
        "A third one , with a clause behind it.",
        "with a clause behind it.",
    ]
    assert recall.read_sentences(tmp_path, 4) == expected
    with pytest.raises(ValueError, match="holds 4 sentences; 5 are wanted"):
        recall.read_sentences(tmp_path, 5)
