"""Training of a student: what it learns, and that a training resumed is the one that was never interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from word_encoder import LABELS, WordEncoder, questions

from lattice_fann import Activation, BackpropTrainer, NetworkBuilder, mixed_targets
from lattice_tune import (
    Checkpoint,
    CheckpointError,
    EarlyStopping,
    EpochMetrics,
    InvalidInputError,
    LabelSet,
    LRSchedule,
    Optimizer,
    OptimizerConfig,
    RegularizationConfig,
    StudentTrainer,
    TrainingCallback,
    TrainingConfig,
    TrainingError,
    TrainingMetrics,
)

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    data = questions(240)
    return WordEncoder().encode(data.texts()).vectors, data.gold(LabelSet(LABELS))


class Recorder(TrainingCallback):
    def __init__(self, end_at: int | None = None) -> None:
        self.examples, self.epochs, self.ended, self.end_at = 0, [], None, end_at
        self.checkpoints: list[Checkpoint] = []

    def on_train_start(self, examples: int) -> None:
        self.examples = examples

    def on_epoch_end(self, metrics: EpochMetrics) -> bool:
        self.epochs.append(metrics.epoch)
        return metrics.epoch == self.end_at

    def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.checkpoints.append(checkpoint)

    def on_train_end(self, metrics: TrainingMetrics) -> None:
        self.ended = metrics


def test_a_student_learns_its_teacher(arrays: Arrays) -> None:
    made = StudentTrainer(TrainingConfig(epochs=40, seed=1)).train(*arrays)
    out = made.held_out
    assert 5 < out.sum() < 60
    right = made.network.forward_batch(arrays[0]).argmax(axis=1) == arrays[1].argmax(axis=1)
    assert right[~out].mean() > 0.95
    assert right[out].mean() > 0.85
    assert made.metrics.history[-1].train_loss < made.metrics.history[0].train_loss


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_each_optimizer_learns(arrays: Arrays, optimizer: Optimizer) -> None:
    rate = 0.1 if optimizer in (Optimizer.SGD, Optimizer.SGD_MOMENTUM) else 0.003
    config = TrainingConfig(epochs=15, optimizer=OptimizerConfig(optimizer=optimizer, learning_rate=rate))
    history = StudentTrainer(config).train(*arrays).metrics.history
    assert history[-1].train_loss < 0.8 * history[0].train_loss


def test_equal_seeds_give_equal_bits_and_others_do_not(arrays: Arrays) -> None:
    made = [StudentTrainer(TrainingConfig(epochs=3, seed=seed)).train(*arrays).network for seed in (1, 1, 2)]
    assert (made[0].parameter_vector() == made[1].parameter_vector()).all()
    assert (made[0].parameter_vector() != made[2].parameter_vector()).any()


def test_each_part_of_the_configuration_counts(arrays: Arrays) -> None:
    def trained(hard_share: float = 0.5, temperature: float = 2.0, **options: object) -> npt.NDArray[np.float32]:
        options = {"epochs": 3, "regularization": RegularizationConfig.none()} | options
        trainer = StudentTrainer(TrainingConfig(**options), hard_share=hard_share, temperature=temperature)  # type: ignore[arg-type]
        return trainer.train(*arrays).network.parameter_vector()

    base = trained()
    for changed in (
        trained(hard_share=0.6),
        trained(temperature=3.0),
        trained(regularization=RegularizationConfig(dropout=0.1, label_smoothing=0, gradient_clip=None)),
        trained(regularization=RegularizationConfig(dropout=0, label_smoothing=0.1, gradient_clip=None)),
        trained(regularization=RegularizationConfig(dropout=0, label_smoothing=0, gradient_clip=0.01)),
        trained(schedule=LRSchedule.linear_warmup(50)),
        trained(schedule=LRSchedule.exponential_decay(0.5)),
        trained(optimizer=OptimizerConfig(weight_decay=0.5)),
        trained(optimizer=OptimizerConfig(learning_rate=0.002)),
        trained(batch_size=16),
    ):
        assert np.abs(changed - base).max() > 1e-5


def test_the_rate_of_each_update_is_the_schedules(arrays: Arrays) -> None:
    config = TrainingConfig(epochs=4, schedule=LRSchedule.one_cycle(0.01, 0.5, 20), early_stopping=None)
    made = StudentTrainer(config).train(*arrays)
    batches = -(-int((~made.held_out).sum()) // 32)
    for entry in made.metrics.history:
        last = (entry.epoch + 1) * batches - 1
        assert entry.learning_rate == pytest.approx(config.schedule.get_lr(0.001, last, entry.epoch))


@pytest.mark.parametrize("monitor", ["val_loss", "val_accuracy"])
def test_the_best_epochs_weights_are_restored(arrays: Arrays, monitor: str) -> None:
    config = TrainingConfig(
        epochs=60,
        optimizer=OptimizerConfig(learning_rate=0.01),
        early_stopping=EarlyStopping(monitor=monitor, patience=3),
    )
    made = StudentTrainer(config).train(*arrays)
    restored = made.metrics.restored_epoch
    assert made.metrics.stopped_early
    assert restored == len(made.metrics.history) - 4
    again = StudentTrainer(
        TrainingConfig(epochs=restored + 1, optimizer=OptimizerConfig(learning_rate=0.01), early_stopping=None)
    ).train(*arrays)
    assert (again.network.parameter_vector() == made.network.parameter_vector()).all()


def test_callbacks_are_told_and_may_end_the_training(arrays: Arrays) -> None:
    recorder = Recorder(end_at=2)
    made = StudentTrainer(TrainingConfig(epochs=10, early_stopping=None)).train(*arrays, callbacks=[recorder])
    assert recorder.epochs == [0, 1, 2]
    assert recorder.examples == int((~made.held_out).sum())
    assert recorder.ended == made.metrics
    assert made.metrics.stopped_early


def test_a_resumed_training_has_the_bits_of_one_that_was_never_interrupted(arrays: Arrays, tmp_path: Path) -> None:
    """Weights, moments, order and dropout, early stopping and history: all of it goes on."""
    config = TrainingConfig(epochs=9, checkpoint_interval=3, schedule=LRSchedule.cosine_annealing_warmup(10, 1e-5, 9))
    recorder = Recorder()
    whole = StudentTrainer(config).train(*arrays, callbacks=[recorder])
    assert [checkpoint.epoch for checkpoint in recorder.checkpoints] == [3, 6, 9]
    unbroken = StudentTrainer(TrainingConfig(epochs=9, schedule=config.schedule)).train(*arrays)
    assert (whole.network.parameter_vector() == unbroken.network.parameter_vector()).all()
    recorder.checkpoints[0].save(tmp_path / "three.npz")
    strip = [(entry.epoch, entry.train_loss, entry.val_loss) for entry in whole.metrics.history]
    for interval in (3, 4, None):  # it may be another one than before
        trainer = StudentTrainer(replace(config, checkpoint_interval=interval))
        resumed = trainer.train(*arrays, resume_from=Checkpoint.load(tmp_path / "three.npz"))
        assert (resumed.network.parameter_vector() == whole.network.parameter_vector()).all()
        assert [(entry.epoch, entry.train_loss, entry.val_loss) for entry in resumed.metrics.history] == strip
        assert resumed.metrics.restored_epoch == whole.metrics.restored_epoch


def test_a_checkpoint_of_another_training_is_refused(arrays: Arrays, tmp_path: Path) -> None:
    recorder = Recorder()
    config = TrainingConfig(epochs=2, checkpoint_interval=1)
    StudentTrainer(config).train(*arrays, callbacks=[recorder])
    with pytest.raises(CheckpointError, match="other examples"):
        StudentTrainer(config).train(arrays[0] * 2, arrays[1], resume_from=recorder.checkpoints[0])
    with pytest.raises(CheckpointError, match="other examples"):
        StudentTrainer(config, hidden=(8,)).train(*arrays, resume_from=recorder.checkpoints[0])
    path = tmp_path / "c.npz"
    recorder.checkpoints[0].save(path)
    content = path.read_bytes()
    newer = content.replace(b'"version": 1', b'"version": 9')
    assert newer != content
    for damaged in (b"", content[: len(content) // 2], b"PK" + bytes(100), newer):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"c\.npz"):
            Checkpoint.load(path)
    with pytest.raises(CheckpointError):
        Checkpoint.load(tmp_path / "nothing.npz")
    recorder.checkpoints[0].save(path)
    with np.load(path) as file:
        arrays_of_file = dict(file)
    for name, value in (("history", [{}]), ("history", [3]), ("history", 3), ("stopping", {"best": "low"})):
        record = json.loads(arrays_of_file["record"].tobytes()) | {name: value}
        np.savez(path, **arrays_of_file | {"record": np.frombuffer(json.dumps(record).encode(), np.uint8)})
        with pytest.raises(CheckpointError, match=r"c\.npz: no checkpoint"):
            Checkpoint.load(path)


def test_sample_weights_count(arrays: Arrays) -> None:
    weights = np.where(arrays[1].argmax(axis=1) == 0, 0.0, 1.0)
    made = StudentTrainer(TrainingConfig(epochs=20, early_stopping=None)).train(*arrays, sample_weight=weights)
    assert (made.network.forward_batch(arrays[0]).argmax(axis=1) != 0).mean() > 0.95


def test_too_high_a_rate_is_an_error(arrays: Arrays) -> None:
    config = TrainingConfig(
        epochs=50,
        optimizer=OptimizerConfig(optimizer=Optimizer.SGD, learning_rate=1e38),
        regularization=RegularizationConfig.none(),
    )
    with pytest.raises(TrainingError, match="not finite"):
        StudentTrainer(config).train(*arrays)


def test_wrong_arguments_are_refused(arrays: Arrays) -> None:
    vectors, soft = arrays
    trainer = StudentTrainer(TrainingConfig(epochs=1))
    for wrong in (
        {"vectors": vectors[:10]},
        {"vectors": np.full_like(vectors, np.nan)},
        {"soft": soft[:, :1]},
        {"soft": soft * 2},
        {"soft": -soft},
        {"hard": [5] * len(vectors)},
        {"hard": np.zeros(3, int)},
        {"sample_weight": [1.0]},
        {"sample_weight": -np.ones(len(vectors))},
        {"keys": [b"same"] * len(vectors)},
        {"keys": ["text"] * len(vectors)},
        {"callbacks": [print]},
        {"resume_from": "x"},
    ):
        with pytest.raises(InvalidInputError):
            trainer.train(**({"vectors": vectors, "soft": soft} | wrong))  # type: ignore[arg-type]
    for options in ({"hidden": (0,)}, {"hidden": "ab"}, {"temperature": 0}, {"hard_share": 1.1}, {"config": 3}):
        with pytest.raises(InvalidInputError):
            StudentTrainer(**options)  # type: ignore[arg-type]


def test_training_is_one_call_of_lattice_fann(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it costs what that costs; ``benchmarks/distillation.py`` measures the ratio."""
    calls = []
    train = BackpropTrainer.train
    monkeypatch.setattr(BackpropTrainer, "train", lambda *given, **options: calls.append(0) or train(*given, **options))
    config = TrainingConfig(
        epochs=5, val_split=0, early_stopping=None, regularization=RegularizationConfig(label_smoothing=0.0)
    )
    trainer = StudentTrainer(config, hidden=(16,), hard_share=1.0)
    made = trainer.train(*arrays)
    assert len(calls) == 1
    network = NetworkBuilder().input(32).hidden(16, Activation.RELU).output(3, Activation.SOFTMAX).build(seed=42)
    network.fit_input_scaling(arrays[0])
    targets = mixed_targets(arrays[1], temperature=2.0, hard_share=1.0)
    BackpropTrainer(network, trainer.fann_config(5, 8)).train(arrays[0], targets)
    assert (network.parameter_vector() == made.network.parameter_vector()).all()
