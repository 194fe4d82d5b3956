"""Training of encoders and cross-encoders: objectives, batches in two passes, heads."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import InvalidInputError as InferenceInputError
from lattice_inference import load_cross_encoder, load_encoder
from lattice_tune import (
    CheckpointError,
    ClassificationHead,
    DatasetError,
    EncoderTeacher,
    InvalidInputError,
    LabelingTask,
    LoraConfig,
    LoraTrainer,
    LoraTrainingConfig,
    OptimizerConfig,
    compute_lora_gradients,
    load_head,
)
from lattice_tune.lora.head import HEAD_FILE
from lattice_tune.lora.losses import cosent_loss

INFERENCE_DATA = Path(__file__).parents[3] / "lattice-inference" / "tests" / "data"
PAIRS = [
    ("the cat sat", "a cat sat"),
    ("the dog", "dogs are animals"),
    ("he said what", "she said that"),
    ("water", "you"),
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "ranking": [{"anchor": a, "positive": b} for a, b in PAIRS],
    "triplet": [{"anchor": a, "positive": b, "negative": "zebra mat"} for a, b in PAIRS],
    "cosent": [{"sentence1": a, "sentence2": b, "score": n / 4} for n, (a, b) in enumerate(PAIRS)],
    "cosine": [{"sentence1": a, "sentence2": b, "score": n / 4} for n, (a, b) in enumerate(PAIRS)],
    "classification": [{"text": text, "label": "ab"[n % 2]} for n, (text, _) in enumerate(PAIRS)],
    "bce": [{"sentence1": a, "sentence2": b, "score": float(n % 2)} for n, (a, b) in enumerate(PAIRS)],
    "ce": [{"sentence1": a, "sentence2": b, "label": n % 3} for n, (a, b) in enumerate(PAIRS)],
}
RATE = OptimizerConfig(learning_rate=5e-3, weight_decay=0.0)
SHORT = LoraTrainingConfig(
    epochs=8, batch_size=4, micro_batch_tokens=256, max_tokens=16, optimizer=RATE, schedule="constant"
)


@pytest.fixture(scope="module")
def models(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    cases = json.loads((INFERENCE_DATA / "architectures" / "cases.json").read_text())["cases"]
    folder = tmp_path_factory.mktemp("cross")
    found = dict.fromkeys(ROWS, tiny_encoder)
    found["bce"] = write_directory(folder / "one", cases["cross-encoder-bert"])
    found["ce"] = write_directory(folder / "three", cases["cross-encoder-bert-three-labels"])
    return found


def trainer(model: Path, objective: str, training: LoraTrainingConfig = SHORT, **config: Any) -> LoraTrainer:
    adapter = LoraConfig(**{"rank": 4} | config)
    return LoraTrainer(model, adapter, training, objective=objective)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ROWS)
def test_every_objective_is_learned(models: dict[str, Path], objective: str) -> None:
    with trainer(models[objective], objective) as made:
        result = made.train(ROWS[objective], validation=ROWS[objective])
        found = made.evaluate(ROWS[objective])
    assert result.losses[-1] < 0.8 * result.losses[0]
    assert found.weight == 4
    if objective in ("cosent", "cosine", "bce"):
        assert found.accuracy is None
        assert found.correlation is not None
        assert objective == "cosine" or found.correlation > 0.5
    else:
        assert found.correlation is None
        assert found.accuracy is not None
        assert found.accuracy >= 0.75
    assert result.metrics.history[-1].val_accuracy == pytest.approx(found.quality)


def test_the_pooling_of_a_model_whose_files_state_none_is_named(tiny_encoder: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(tiny_encoder, tmp_path / "plain"))
    (plain / "modules.json").unlink()
    with trainer(plain, "cosent") as made, pytest.raises(DatasetError, match="pass pooling='cls', 'mean' or 'last'"):
        made.train(ROWS["cosent"])
    losses = {}
    for pooling in ("cls", "mean"):
        with LoraTrainer(plain, LoraConfig(rank=4), SHORT, objective="cosent", pooling=pooling) as made:
            losses[pooling] = made.train(ROWS["cosent"], folder=tmp_path / "work").losses
            made.save(tmp_path / pooling)
            found = made.evaluate(ROWS["cosent"])
        with load_encoder(plain, pooling=pooling) as encoder:
            encoder.load_adapter(tmp_path / pooling, "a")
            first, second = (encoder.encode(texts, adapter="a").vectors for texts in zip(*PAIRS, strict=True))
        assert cosent_loss(first, second, np.arange(4) / 4, 20.0)[0] == pytest.approx(found.loss, rel=1e-4)
        shutil.rmtree(tmp_path / "work")
    assert (losses["cls"] != losses["mean"]).any()
    with pytest.raises(InferenceInputError, match="pooling"):
        LoraTrainer(plain, objective="cosent", pooling="max")  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ["ranking", "cosent", "classification", "ce"])
def test_a_batch_in_parts_has_the_gradient_of_the_whole(models: dict[str, Path], objective: str) -> None:
    """The loss compares texts of different parts."""
    found = []
    for most in (256, 16):
        with trainer(models[objective], objective, replace(SHORT, epochs=1, micro_batch_tokens=256)) as made:
            made.train(ROWS[objective])
            made.training = replace(SHORT, micro_batch_tokens=most)
            found.append(compute_lora_gradients(made, ROWS[objective]))
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-9)
    for site, pair in found[0].sites.items():
        for whole, parts in zip(pair, found[1].sites[site], strict=True):
            np.testing.assert_allclose(parts, whole, atol=1e-5 * found[0].norm)


def test_the_adapter_gives_the_trainers_scores(models: dict[str, Path], tmp_path: Path) -> None:
    with trainer(models["cosine"], "cosine") as made:
        made.train(ROWS["cosine"])
        made.save(tmp_path / "adapter")
        loss = made.evaluate(ROWS["cosine"]).loss
    with load_encoder(models["cosine"]) as encoder:
        encoder.load_adapter(tmp_path / "adapter", "trained")
        first, second = (
            encoder.encode([row[name] for row in ROWS["cosine"]], adapter="trained", normalize=True).vectors
            for name in ("sentence1", "sentence2")
        )
    scores = np.array([row["score"] for row in ROWS["cosine"]])
    assert np.square((first * second).sum(axis=1) - scores).mean() == pytest.approx(loss, abs=1e-4)
    with trainer(models["bce"], "bce") as made, load_cross_encoder(models["bce"]) as ranker:
        made.train(ROWS["bce"])
        ranker.attach_adapter(made, "live")
        pairs = [(row["sentence1"], row["sentence2"]) for row in ROWS["bce"]]
        shares = ranker.score_pairs(pairs, activation="sigmoid", adapter="live").astype(np.float64)
        targets = np.array([row["score"] for row in ROWS["bce"]])
        expected = -(targets * np.log(shares) + (1 - targets) * np.log(1 - shares)).mean()
        assert made.evaluate(ROWS["bce"]).loss == pytest.approx(expected, abs=1e-4)


def test_a_head_is_stored_beside_its_adapter_and_is_a_teacher(models: dict[str, Path], tmp_path: Path) -> None:
    rows = ROWS["classification"]
    with trainer(models["classification"], "classification") as made:
        result = made.train(rows, folder=tmp_path / "work")
        made.save(tmp_path / "adapter")
        assert result.head is not None
        measured = made.evaluate(rows)
    head = load_head(tmp_path / "adapter")
    assert head.labels.names == ("a", "b")
    with load_encoder(models["classification"]) as encoder:
        encoder.load_adapter(tmp_path / "adapter", "trained")
        texts = [row["text"] for row in rows]
        vectors = encoder.encode(texts, adapter="trained").vectors
        told = head.probabilities(vectors)
        right = [told[place, "ab".index(row["label"])] for place, row in enumerate(rows)]
        assert -np.log(right).mean() == pytest.approx(measured.loss, abs=1e-4)
        assert head.predict(vectors) == [row["label"] for row in rows]
        teacher = EncoderTeacher(encoder, adapter="trained", head=head)
        answers = list(teacher.answers(texts, LabelingTask(["b", "a"], kind="soft")))
        for answer, expected in zip(answers, told, strict=True):
            assert answer.probabilities == pytest.approx(expected[::-1].tolist(), abs=1e-5)
    with trainer(models["classification"], "classification") as made:
        made.load(result.adapter, head)
        assert made.evaluate(rows).loss == pytest.approx(measured.loss, rel=1e-6)
        further = made.train(rows[:1])  # of one label: those of the head stay
        assert further.head is not None
        assert further.head.labels.names == ("a", "b")
        assert further.losses[0] < result.losses[0] / 2
        with pytest.raises(InvalidInputError, match="vectors of 3"):
            made.load(result.adapter, ClassificationHead(["a", "b"], np.ones((2, 3)), np.zeros(2)))
    with trainer(models["classification"], "cosine") as made, pytest.raises(InvalidInputError, match="has no head"):
        made.load(result.adapter, head)
    with trainer(models["classification"], "classification") as made:
        resumed = made.train(rows, folder=tmp_path / "work")
    assert resumed.head is not None
    assert np.array_equal(resumed.head.weight, result.head.weight)


def test_heads_that_are_none_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    head = ClassificationHead(["a", "b"], np.ones((2, 3)), np.zeros(2))
    with pytest.raises(InvalidInputError, match="3 rows of weight"):
        ClassificationHead(["a", "b"], np.ones((3, 3)), np.zeros(2))
    with pytest.raises(InvalidInputError, match="vectors have 4 numbers"):
        head.predict(np.ones((1, 4)))
    with pytest.raises(CheckpointError, match="No such file"):
        load_head(tmp_path)
    for content in (b"", b"{}", b"\x00" * 20):
        (tmp_path / HEAD_FILE).write_bytes(content)
        with pytest.raises(CheckpointError, match="no head"):
            load_head(tmp_path)
    with trainer(models["classification"], "classification") as made:
        with pytest.raises(InvalidInputError, match="no head yet"):
            made.evaluate(ROWS["classification"])
        made.train(ROWS["classification"])
        with pytest.raises(DatasetError, match="row 1: the label 'c' is none of the training's"):
            made.evaluate([{"text": "a", "label": "c"}])


@pytest.mark.parametrize(
    ("objective", "row", "message"),
    [
        ("ranking", {"anchor": "a"}, "row 1: the example has no 'positive'"),
        ("triplet", {"anchor": "a", "positive": "b"}, "no 'negative'"),
        ("cosine", {"sentence1": "a", "sentence2": "b", "score": 2}, "from -1 to 1"),
        ("bce", {"sentence1": "a", "sentence2": "b", "score": float("nan")}, "from 0 to 1"),
        ("cosent", {"sentence1": "a", "sentence2": "b"}, "'score' is None"),
        ("classification", {"text": "a"}, "no label"),
        ("classification", {"text": "a", "label": "x"}, "all examples have the label 'x'"),
        ("ce", {"sentence1": "a", "sentence2": "b", "label": 3}, "the model's outputs are 0 to 2"),
        ("ce", {"sentence1": "a", "sentence2": "b", "label": "maybe"}, "1 labels.*3 outputs"),
    ],
)
def test_rows_that_are_no_examples_are_refused(
    models: dict[str, Path], objective: str, row: dict[str, Any], message: str
) -> None:
    with trainer(models[objective], objective) as made, pytest.raises(DatasetError, match=message):
        made.train([row])


def test_a_negative_of_some_rows_is_used(models: dict[str, Path]) -> None:
    rows = [*ROWS["ranking"][:2], ROWS["ranking"][2] | {"negative": "zebra"}]
    with trainer(models["ranking"], "ranking") as made:
        losses = [compute_lora_gradients(made, found).loss for found in (ROWS["ranking"][:3], rows)]
    assert losses[1] > losses[0]
