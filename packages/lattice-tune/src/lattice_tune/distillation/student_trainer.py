"""Trains a student: a small network that learns labels from vectors.

The labels are a teacher's probabilities and hard labels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

import lattice_fann
from lattice_fann import (
    Activation,
    BackpropTrainer,
    FannError,
    Loss,
    Network,
    NetworkBuilder,
    TrainingState,
    mixed_targets,
)
from lattice_tune.arguments import instance, listed, number_rows, plain_numbers, real, whole
from lattice_tune.datasets.split import hash_position
from lattice_tune.errors import CheckpointError, InvalidInputError, TrainingError, shown
from lattice_tune.training.callback import TrainingCallback
from lattice_tune.training.checkpoint import Checkpoint
from lattice_tune.training.config import TrainingConfig
from lattice_tune.training.early_stopping import StoppingState
from lattice_tune.training.metrics import EpochMetrics, TrainingMetrics
from lattice_tune.training.optimizer import Optimizer
from lattice_tune.training.schedule import LRSchedule

__all__ = ["StudentTrainer", "TrainedNetwork", "held_out"]

Float32Array = npt.NDArray[np.float32]

_OPTIMIZERS = {
    Optimizer.SGD: lattice_fann.Optimizer.SGD,
    Optimizer.SGD_MOMENTUM: lattice_fann.Optimizer.SGD,
    Optimizer.ADAM: lattice_fann.Optimizer.ADAM,
    Optimizer.ADAMW: lattice_fann.Optimizer.ADAMW,
    Optimizer.RMSPROP: lattice_fann.Optimizer.RMSPROP,
}


@dataclass(frozen=True)
class TrainedNetwork:
    """What a training made.

    Attributes:
        network: with the best epoch's weights under early stopping, else the last one's.
        metrics: how it went.
        held_out: (examples,) bool, which examples were kept out of training.
    """

    network: Network
    metrics: TrainingMetrics
    held_out: npt.NDArray[np.bool_]


class StudentTrainer:
    """Trains a student network on vectors with a teacher's probabilities, and hard labels.

    The loss of an example is (1 - hard_share) T^2 KL(teacher || student), both at temperature T [Hinton et al. 2015], plus
    hard_share times the cross-entropy of the hard label. The bits of the result depend on data, configuration and seed.

    Args:
        config: how to train.
        hidden: widths of the hidden layers (ReLU); none makes a linear classifier.
        temperature: T.
        hard_share: the hard labels' share, from 0 to 1.
    """

    def __init__(
        self,
        config: TrainingConfig | None = None,
        *,
        hidden: Sequence[int] = (64,),
        temperature: float = 2.0,
        hard_share: float = 0.5,
    ) -> None:
        self.config: TrainingConfig = TrainingConfig() if config is None else instance(config, "config", TrainingConfig)
        self.hidden: tuple[int, ...] = tuple(
            whole(width, "a hidden layer", least=1, most=65_536) for width in listed(hidden, "hidden", "int")
        )
        if len(self.hidden) > 16:
            raise InvalidInputError(f"hidden has {len(self.hidden)} layers; the most is 16")
        self.temperature: float = real(temperature, "temperature", "from 0.05 to 100", least=0.05, most=100)
        self.hard_share: float = real(hard_share, "hard_share", "from 0 to 1", least=0, most=1)

    def train(
        self,
        vectors: npt.ArrayLike,
        soft: npt.ArrayLike,
        *,
        hard: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        keys: Sequence[bytes] | None = None,
        callbacks: Sequence[TrainingCallback] = (),
        resume_from: Checkpoint | None = None,
    ) -> TrainedNetwork:
        """Train a new network.

        Args:
            vectors: (examples, dimension).
            soft: (examples, labels) a teacher's probabilities.
            hard: (examples,) classes or (examples, labels) distributions; by default each row's most probable label.
            sample_weight: (examples,) weights.
            keys: what the examples kept out of training are chosen by, such as texts; by default their vectors.
            callbacks: told of epochs and checkpoints.
            resume_from: a checkpoint of a training with the same data and configuration, which is gone on with.

        Raises:
            InvalidInputError: arrays that do not fit each other, or too few examples.
            CheckpointError: the checkpoint is of another training.
            TrainingError: a value was not finite: the rate is too high.
        """
        x, targets = number_rows(vectors, "vectors"), number_rows(soft, "soft")
        if len(x) != len(targets) or not len(x):
            raise InvalidInputError(
                f"there are {len(x)} vectors and {len(targets)} rows of soft; at least one is needed"
            )
        if targets.shape[1] < 2:
            raise InvalidInputError("there is one label; at least two are needed")
        told = [
            instance(one, "a callback", TrainingCallback) for one in listed(callbacks, "callbacks", "TrainingCallback")
        ]
        if keys is None:
            chosen = [row.tobytes() for row in x] if self.config.val_split else [b""] * len(x)
        else:
            chosen = listed(keys, "keys", "bytes")
        if len(chosen) != len(x) or not all(isinstance(key, bytes) for key in chosen):
            raise InvalidInputError(f"keys must be {len(x)} bytes objects, one an example")
        weights = None
        if sample_weight is not None:
            weights = number_rows([plain_numbers(sample_weight, "sample_weight").ravel()], "sample_weight")[0]
        if weights is not None and weights.shape != (len(x),):
            raise InvalidInputError(f"there are {len(x)} vectors and {weights.size} sample weights")
        out = held_out(chosen, self.config.val_split, self.config.seed)
        try:
            rows = self._targets(targets, hard)
            network = self._network(x, rows.shape[1])
            network.fit_input_scaling(x[~out] if out.any() else x)
            run = _Run(self, network, x, rows, weights, out, told)
            return run.train(resume_from)
        except (lattice_fann.NumericInstability, lattice_fann.TrainingError) as error:
            raise TrainingError(f"training failed: {error}") from error
        except FannError as error:
            raise InvalidInputError(str(error)) from error

    def _targets(self, soft: Float32Array, hard: npt.ArrayLike | None) -> Float32Array:
        if (soft < 0).any() or not (np.abs(soft.sum(axis=1) - 1) <= 1e-3).all():
            raise InvalidInputError("a row of soft is no distribution: its values must be at least 0 with the sum 1")
        rows = (
            np.power(soft.astype(np.float64), 1.0 / self.temperature)
            if self.hard_share < 1
            else soft.astype(np.float64)
        )
        rows /= rows.sum(axis=1, keepdims=True)
        given = rows.argmax(axis=1) if hard is None else plain_numbers(hard, "hard")
        if given.ndim == 1 and given.dtype.kind in "iu" and given.shape == (len(rows),):
            if not (given.min() >= 0 and given.max() < rows.shape[1]):
                raise InvalidInputError(f"classes of hard must be from 0 to {rows.shape[1] - 1}")
            given = np.eye(rows.shape[1])[given]
        if given.shape != rows.shape or given.dtype.kind not in "iuf":
            raise InvalidInputError(
                f"hard is {shown(hard)}; it must be {len(rows)} classes, or rows like those of soft"
            )
        smoothing = self.config.regularization.label_smoothing
        smooth = [(1 - smoothing) * part + smoothing / rows.shape[1] for part in (rows, given)]
        return mixed_targets(*smooth, temperature=self.temperature, hard_share=self.hard_share)

    def _network(self, x: Float32Array, labels: int) -> Network:
        builder = NetworkBuilder().input(x.shape[1])
        for width in self.hidden:
            builder.hidden(width, Activation.RELU)
        return builder.output(labels, Activation.SOFTMAX).build(seed=self.config.seed)

    def fann_config(self, epochs: int, batches: int) -> lattice_fann.TrainingConfig:
        """Return what lattice_fann is told: this configuration in its terms."""
        optimizer, regularization = self.config.optimizer, self.config.regularization
        is_plain = self.config.schedule.kind == "constant"
        return lattice_fann.TrainingConfig(
            learning_rate=optimizer.learning_rate,
            momentum=optimizer.momentum if optimizer.optimizer is Optimizer.SGD_MOMENTUM else 0.0,
            weight_decay=optimizer.weight_decay,
            max_epochs=epochs,
            target_error=None,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            loss=Loss.DISTILLATION,
            optimizer=_OPTIMIZERS[optimizer.optimizer],
            beta1=optimizer.beta1,
            beta2=optimizer.beta2,
            epsilon=optimizer.epsilon,
            schedule=None if is_plain else _Factor(self.config.schedule, optimizer.learning_rate, batches),
            max_gradient_norm=regularization.gradient_clip,
            temperature=self.temperature,
            hard_share=self.hard_share,
            input_dropout=regularization.dropout,
        )


def held_out(keys: Sequence[bytes], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return which examples are held out of training, (examples,) bool.

    They are those whose key's hash lies below ``share``.

    Raises:
        InvalidInputError: all would be kept out, or none.
    """
    if not share:
        return np.zeros(len(keys), dtype=np.bool_)
    out = np.array([hash_position(key, seed) < share for key in keys], dtype=np.bool_)
    if out.all() or not out.any():
        what, remedy = ("all", "smaller") if out.all() else ("none", "larger")
        raise InvalidInputError(
            f"of {len(keys)} examples, {what} would be kept out by a val_split of {share}: "
            f"give more different examples, or a {remedy} val_split"
        )
    return out


@dataclass(frozen=True)
class _Factor:
    """A schedule for lattice_fann: a factor of the configured rate.

    It is given by epochs, with a fraction.
    """

    schedule: LRSchedule
    base: float
    batches: int

    def __call__(self, epoch: float, max_epochs: int) -> float:
        step = round(epoch * self.batches)
        return self.schedule.get_lr(self.base, step, step // self.batches) / self.base


class _Run:
    """One call of train."""

    def __init__(
        self,
        trainer: StudentTrainer,
        network: Network,
        x: Float32Array,
        targets: Float32Array,
        weights: Float32Array | None,
        out: npt.NDArray[np.bool_],
        callbacks: list[TrainingCallback],
    ) -> None:
        self.trainer, self.config, self.network, self.out = trainer, trainer.config, network, out
        self.x, self.targets, self.weights, self.validation = x, targets, weights, None
        if out.any():
            self.x, self.targets, self.validation = x[~out], targets[~out], (x[out], targets[out])
            self.weights = None if weights is None else weights[~out]
        self.callbacks = callbacks
        self.batches = -(-len(self.x) // min(self.config.batch_size, len(self.x)))
        self.history: list[EpochMetrics] = []
        self.stopping: StoppingState | None = None
        self.best: Float32Array | None = None
        self.is_over = False

    def train(self, resume_from: Checkpoint | None) -> TrainedNetwork:
        config, state = self.config, None
        if config.early_stopping is not None:
            self.stopping = config.early_stopping.begin()
        if resume_from is not None:
            state = self.resume(instance(resume_from, "resume_from", Checkpoint))
        for callback in self.callbacks:
            callback.on_train_start(len(self.x))
        done = 0 if state is None else state.epoch
        while done < config.epochs and not self.is_over:
            interval = config.checkpoint_interval
            end = config.epochs if interval is None else min(config.epochs, done - done % interval + interval)
            result = BackpropTrainer(self.network, self.trainer.fann_config(end, self.batches)).train(
                self.x,
                self.targets,
                sample_weight=self.weights,
                validation=self.validation,
                callbacks=[self.note],
                resume_from=state,
            )
            state, done = result.state, result.state.epoch
            if interval is not None and done % interval == 0:
                self.tell_checkpoint(state)
        restored = None
        if self.stopping is not None and self.best is not None:
            self.network.set_parameter_vector(self.best)
            restored = self.stopping.best_epoch
        metrics = TrainingMetrics(tuple(self.history), self.is_over, restored)
        for callback in self.callbacks:
            callback.on_train_end(metrics)
        return TrainedNetwork(self.network, metrics, self.out)

    def note(self, record: lattice_fann.EpochRecord) -> bool:
        """Keep an epoch's numbers, and its weights if they are the best; True ends the training."""
        metrics = EpochMetrics(
            epoch=record.epoch,
            train_loss=record.loss,
            val_loss=record.validation_loss,
            val_accuracy=record.validation_accuracy,
            learning_rate=record.learning_rate,
            gradient_norm=record.gradient_norm,
            duration_seconds=record.seconds,
            examples_seen=(record.epoch + 1) * len(self.x),
        )
        self.history.append(metrics)
        if self.config.early_stopping is not None and self.stopping is not None:
            self.stopping = self.config.early_stopping.observe(self.stopping, metrics)
            if self.stopping.best_epoch == record.epoch:
                self.best = self.network.parameter_vector()
            self.is_over = self.config.early_stopping.is_over(self.stopping)
        asked = [callback.on_epoch_end(metrics) is True for callback in self.callbacks]
        self.is_over = self.is_over or any(asked)
        return self.is_over

    def tell_checkpoint(self, state: TrainingState) -> None:
        if not self.callbacks:
            return
        checkpoint = Checkpoint(state, tuple(self.history), self.stopping, self.best, self.digest())
        for callback in self.callbacks:
            callback.on_checkpoint(checkpoint)

    def resume(self, checkpoint: Checkpoint) -> TrainingState:
        if checkpoint.data_digest != self.digest():
            raise CheckpointError(
                "the checkpoint is of a training with other examples or another configuration: "
                "begin anew, or give what it was made with"
            )
        self.history = list(checkpoint.history)
        self.stopping, self.best = checkpoint.stopping, checkpoint.best
        if self.config.early_stopping is not None and self.stopping is not None:
            self.is_over = self.config.early_stopping.is_over(self.stopping)
        return checkpoint.state

    def digest(self) -> str:
        """Identifies all that the bits of this training depend on.

        Epochs and the interval of checkpoints are left out: more may be trained, and stored at other times.
        """
        trainer = self.trainer
        told: dict[str, Any] = replace(self.config, epochs=1, checkpoint_interval=None).to_dict()
        told |= {"hidden": trainer.hidden, "temperature": trainer.temperature, "hard_share": trainer.hard_share}
        digest = blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16)
        for array in (self.x, self.targets, self.weights, *(self.validation or ())):
            digest.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()
