"""Students of real sentences on vectors of all-MiniLM-L6-v2; ``benchmarks/distillation.py`` takes all of TREC."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from lattice_inference import Encoder, load_encoder
from lattice_inference.errors import ModelNotFoundError
from lattice_tune import (
    Dataset,
    DistillationConfig,
    DistillationPipeline,
    LabelSet,
    RegularizationConfig,
    TrainingConfig,
)

pytestmark = [pytest.mark.slow, pytest.mark.model]

EXCERPT = Path(__file__).parents[1] / "data" / "subjectivity" / "excerpt.jsonl"
_PLACES = [parent / "shared" / "data" / "text" / "classification" / "qc" for parent in Path(__file__).parents[5:]]
TREC = next((place for place in _PLACES if place.is_dir()), _PLACES[0])


@pytest.fixture(scope="module")
def encoder() -> Iterator[Encoder]:
    try:
        with load_encoder("all-minilm-l6-v2", offline=True) as loaded:
            yield loaded
    except ModelNotFoundError as error:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


def accuracies(encoder: Encoder, train: Dataset, test: Dataset, right: float, folder: Path) -> list[float]:
    """Accuracies of three students of a teacher that is right in part ``right`` of its answers."""
    labels = train.label_set()
    truth = {example.text: example.label for example in train}
    found = []
    for seed in range(3):
        draws = np.random.RandomState(seed)
        answers = {
            text: label if draws.uniform() < right else draws.choice([other for other in labels if other != label])
            for text, label in truth.items()
        }
        config = DistillationConfig(
            training=TrainingConfig(seed=seed, epochs=40, regularization=RegularizationConfig(dropout=0.5))
        )
        pipeline = DistillationPipeline(
            encoder,
            labels,
            lambda texts, answers=answers: [str(answers[text]) for text in texts],
            config=config,
            folder=folder,
        )
        report = pipeline.run(Dataset([{"text": text} for text in train.texts()]), test=test).report
        assert report.test_gold is not None
        found.append(report.test_gold.accuracy)
    return found


def test_students_tell_opinions_from_plots(encoder: Encoder, tmp_path: Path) -> None:
    parts = Dataset.open(EXCERPT).load().split({"train": 0.7, "test": 0.3}, stratify=True)
    assert median(accuracies(encoder, parts["train"], parts["test"], 0.8, tmp_path)) >= 0.8
    assert median(accuracies(encoder, parts["train"], parts["test"], 1.0, tmp_path)) >= 0.83


@pytest.mark.skipif(not TREC.is_dir(), reason="TREC's questions have no licence and lie only where they were measured")
def test_students_tell_kinds_of_questions(encoder: Encoder, tmp_path: Path) -> None:
    """A quarter of the training questions, which a test may take; a student of all of them is better by 0.05 and more."""
    parts = []
    for name, step in (("train.txt", 4), ("test.txt", 1)):
        rows = [line.split(" ", 1) for line in (TREC / name).read_text(encoding="latin-1").splitlines()[::step]]
        parts.append(Dataset([(text, label.partition(":")[0]) for label, text in rows]))
    assert parts[1].count() == 500
    assert len(LabelSet(parts[0].label_set().names)) == 6
    assert median(accuracies(encoder, parts[0], parts[1], 0.8, tmp_path)) >= 0.74
    assert median(accuracies(encoder, parts[0], parts[1], 1.0, tmp_path)) >= 0.83
