"""Datasets: orders, splits, duplicates, labels, statistics."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lattice_tune import (
    ConfigError,
    Dataset,
    DatasetConfig,
    DatasetError,
    IntentLabels,
    InvalidInputError,
    LabelSet,
    SplitRule,
    TrainingExample,
)

PARTS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def rows(count: int, start: int = 0) -> list[TrainingExample]:
    return [
        TrainingExample(text=f"text {i}", label="odd" if i % 4 == 1 else "even", metadata={"user": i // 5})
        for i in range(start, start + count)
    ]


def parts_of(data: Dataset, **options: object) -> dict[str | None, str]:
    found = data.split(PARTS, **options)  # type: ignore[arg-type]
    return {example.text: name for name, part in found.items() for example in part}


@pytest.mark.parametrize("options", [{}, {"stratify": True}, {"group": "user"}, {"seed": 7}])
def test_a_split_does_not_depend_on_order_or_shards(tmp_path: Path, options: dict[str, object]) -> None:
    examples = rows(500)
    whole = parts_of(Dataset(examples), **options)
    assert set(whole.values()) == set(PARTS)
    assert len(whole) == 500
    shuffled = [examples[i] for i in np.random.RandomState(0).permutation(500)]
    assert parts_of(Dataset(shuffled), **options) == whole
    for size in (90, 250):
        shards = []
        for start in range(0, 500, size):
            shards.append(tmp_path / f"{size}-{start}.jsonl")
            Dataset(shuffled[start : start + size]).write_jsonl(shards[-1])
        assert parts_of(Dataset.open(shards), **options) == whole


@pytest.mark.parametrize("options", [{}, {"group": "user"}])
def test_a_new_row_moves_no_old_one(options: dict[str, object]) -> None:
    before = parts_of(Dataset(rows(400)), **options)
    after = parts_of(Dataset(rows(800, start=0)), **options)
    assert all(after[text] == part for text, part in before.items())


def test_a_split_has_its_shares_and_another_seed_gives_another() -> None:
    first, second = (parts_of(Dataset(rows(4000)), seed=seed) for seed in (0, 1))
    counts = Counter(first.values())
    assert counts["train"] == pytest.approx(3200, abs=5 * (4000 * 0.8 * 0.2) ** 0.5)
    assert sum(first[text] != second[text] for text in first) > 800


def test_a_stratified_split_deals_each_label_exactly() -> None:
    data = Dataset(rows(403))
    labels = Counter(example.label for example in data)
    for name, part in data.split(PARTS, stratify=True).items():
        counts = Counter(example.label for example in part)
        for label, total in labels.items():
            assert abs(counts[label] - PARTS[name] * total) <= 1, (name, label)


def test_equal_texts_and_groups_stay_together() -> None:
    data = Dataset(rows(300) + rows(300))
    for part in data.split(PARTS).values():
        assert all(count == 2 for count in Counter(e.text for e in part).values())
    users = [{e.metadata["user"] for e in part} for part in Dataset(rows(300)).split(PARTS, group="user").values()]
    assert sum(map(len, users)) == len(set.union(*users))
    with pytest.raises(DatasetError, match="team"):
        list(Dataset(rows(3)).split(PARTS, group="team")["train"])
    with pytest.raises(InvalidInputError, match="not both"):
        Dataset(rows(3)).split(PARTS, group="user", stratify=True)


@pytest.mark.parametrize(
    "parts", [{}, {"a": 1.0}, {"a": 0.5, "b": 0.4}, {"a": 1.5, "b": -0.5}, {"a": float("nan"), "b": 0.5}, None, "ab"]
)
def test_parts_that_are_none_are_refused(parts: object) -> None:
    with pytest.raises(InvalidInputError):
        SplitRule(parts)  # type: ignore[arg-type]


def test_each_epoch_has_another_order_and_always_the_same() -> None:
    data = Dataset(rows(100), config=DatasetConfig(seed=3, batch_size=32))
    orders = [[e.text for e in data.epoch(number)] for number in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(e.text for e in data)
    assert [len(batch) for batch in data.batches()] == [32, 32, 32, 4]
    assert [e.text for batch in data.batches(1) for e in batch] == orders[1]
    last = Dataset(rows(100), config=DatasetConfig(shuffle=False, batch_size=32, drop_last=True))
    assert [e.text for batch in last.batches() for e in batch] == [f"text {i}" for i in range(96)]


def test_a_streamed_epoch_is_shuffled_within_its_buffer() -> None:
    data = Dataset(lambda: iter(rows(500)), config=DatasetConfig(shuffle_buffer=50))
    orders = [[e.text for e in data.epoch(number)] for number in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(e.text for e in data)
    assert data.count() == 500
    assert Dataset(lambda: iter(rows(500)), config=DatasetConfig(max_examples=7)).count() == 7


def test_streaming_holds_a_row_at_a_time() -> None:
    def many() -> Iterator[TrainingExample]:
        return (TrainingExample(text=f"a text of a row {i}", label="x") for i in range(6_000))

    tracemalloc.start()
    try:
        train = Dataset(many).split({"train": 0.5, "test": 0.5})["train"]
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        assert 2_700 < train.count() < 3_300
        assert tracemalloc.get_traced_memory()[1] - before < 100_000  # 6,000 rows in memory take over 1 MB
    finally:
        tracemalloc.stop()


def test_a_label_set_keeps_its_order_and_refuses_strangers() -> None:
    labels = LabelSet(["b", "a"])
    assert list(labels) == ["b", "a"]
    assert labels.index("a") == 1
    assert "b" in labels
    assert "c" not in labels
    assert labels != LabelSet(["a", "b"])
    assert labels == LabelSet(("b", "a"))
    with pytest.raises(InvalidInputError, match="'c' is not one of b, a"):
        labels.row({"c": 1.0})
    for wrong in ([], ["a", "a"], [""], ["a", 1], "ab", None):
        with pytest.raises(InvalidInputError):
            LabelSet(wrong)  # type: ignore[arg-type]
    assert IntentLabels().names[1] == "topic_shift"
    assert len(IntentLabels()) == 6


def test_targets_are_probabilities_and_gold_is_the_label() -> None:
    data = Dataset([{"text": "a", "label": "y", "labels": {"x": 0.7, "y": 0.3}}, ("b", "x"), {"text": "c"}])
    labels = data.label_set()
    assert labels.names == ("x", "y")
    np.testing.assert_allclose(data.targets(labels), [[0.7, 0.3], [1, 0], [np.nan, np.nan]], rtol=1e-6)
    np.testing.assert_array_equal(data.gold(labels), [[0, 1], [1, 0], [np.nan, np.nan]])
    with pytest.raises(InvalidInputError, match="example 0"):
        data.targets(LabelSet(["x"]))
    with pytest.raises(DatasetError):
        Dataset([{"text": "c"}]).label_set()


def test_class_weights_make_labels_count_alike() -> None:
    weights = Dataset(rows(400)).class_weights()
    assert weights == {"even": pytest.approx(400 / (2 * 300)), "odd": pytest.approx(400 / (2 * 100))}


def test_stats_count_labels_lengths_duplicates_and_conflicts() -> None:
    data = Dataset([("a", "x"), ("a", "x"), ("a", "y"), ("bb", "y"), ("bb", "y"), {"text": "cccc"}, {"vector": [1, 2]}])
    stats = data.stats()
    assert (stats.count, stats.labels, stats.unlabelled) == (7, {"y": 3, "x": 2}, 2)
    assert (stats.duplicates, stats.conflicts, stats.dimension) == (3, 1, 2)
    assert stats.characters == {"least": 1, "median": 1.5, "mean": pytest.approx(11 / 6), "most": 4}
    assert Dataset([]).stats().count == 0


def test_near_duplicates_are_found_and_others_are_not() -> None:
    base = "The quick brown fox jumps over the lazy dog near the old river bank at noon."
    texts = [base, base.upper(), base.replace("noon", "nine"), "A text about another thing entirely.", base]
    data = Dataset([(text, "x" if i < 2 else "y") for i, text in enumerate(texts)])
    assert [(d.index, d.original, d.conflicting) for d in data.duplicates()] == [(4, 0, True)]
    near = data.duplicates(near=0.8)
    assert [(d.index, d.original) for d in near] == [(1, 0), (2, 0), (4, 0)]
    assert near[0].similarity == 1.0
    assert 0.8 <= near[1].similarity < 1.0
    assert near[1].conflicting
    assert [e.text for e in data.without_duplicates(near=0.8)] == [texts[0], texts[3]]
    overlap = Dataset(texts[3:4] and [(texts[3], "x")]).overlap(data, near=0.8)
    assert [(d.index, d.original) for d in overlap] == [(3, 0)]


def test_similarity_is_that_of_character_5_grams() -> None:
    def grams(text: str) -> set[str]:
        return {text[i : i + 5] for i in range(len(text) - 4)}

    draws = np.random.RandomState(0)
    words = ["".join(draws.choice(list("abcdefgh"), 5)) for _ in range(40)]
    for changes in (1, 3, 6):
        other = list(words)
        for place in draws.choice(40, changes, replace=False):
            other[place] = "zzzzz"
        first, second = " ".join(words), " ".join(other)
        expected = len(grams(first) & grams(second)) / len(grams(first) | grams(second))
        found = Dataset([(first, "x"), (second, "x")]).duplicates(near=0.6)
        if expected >= 0.6:
            assert found[0].similarity == pytest.approx(expected)
        else:
            assert found == []


def test_configurations_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"batch_size": 0},
        {"batch_size": 1.0},
        {"seed": -1},
        {"on_error": "ignore"},
        {"max_line_bytes": 1},
        {"text_field": "label"},
        {"shuffle": 1},
        {"max_examples": -1},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong)).replace("text_field", "differ")):
            DatasetConfig(**wrong)  # type: ignore[arg-type]


def test_examples_that_are_none_are_refused() -> None:
    for wrong in ([1], [("a",)], [{"txt": "a"}], "text", None, 3, {"text": "a"}):
        with pytest.raises(InvalidInputError):
            Dataset(wrong)  # type: ignore[arg-type]
