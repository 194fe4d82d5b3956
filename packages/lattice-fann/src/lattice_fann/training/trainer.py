"""Trains networks by backpropagation over mini-batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lattice_fann._engine import StepEngine
from lattice_fann.arguments import instance, listed, real, shown
from lattice_fann.errors import (
    FannError,
    GradientError,
    InvalidInputError,
    NumericInstability,
    SizeMismatchError,
    TrainingError,
)
from lattice_fann.initialization import random_generator
from lattice_fann.layer import Float32Array
from lattice_fann.network import Network
from lattice_fann.one_thread import one_thread
from lattice_fann.training.config import GradientGuardStrategy, Optimizer, TrainingConfig
from lattice_fann.training.data import ClassWeight, DataSet, prepare, split
from lattice_fann.training.loss import check_loss, default_loss, evaluate_loss
from lattice_fann.training.result import EpochRecord, TrainingResult
from lattice_fann.training.state import TrainingState

__all__ = ["BackpropTrainer", "Callback", "Trainer"]

Callback = Callable[[EpochRecord], object]
"""Called after each epoch; returning True stops the training."""

_SHUFFLE_STREAM, _SPLIT_STREAM, _DROPOUT_STREAM = 1, 2, 3
_GOLDEN = 0x9E3779B1


class Trainer(Protocol):
    """Anything that fits a network to data."""

    def train(self, inputs: npt.ArrayLike, targets: npt.ArrayLike) -> TrainingResult:
        """Train on ``inputs`` (samples, inputs) and ``targets`` (samples, outputs)."""


class BackpropTrainer:
    """Trains a network in place.

    The bits of the result depend on the network, the data, the configuration and the seed, not on how many threads run.

    >>> from lattice_fann import Activation, BackpropTrainer, NetworkBuilder, TrainingConfig
    >>> network = NetworkBuilder().input(2).hidden(8, Activation.TANH).output(1, Activation.SIGMOID).build(seed=1)
    >>> config = TrainingConfig(learning_rate=0.5, max_epochs=2000, batch_size=4, weight_decay=0.0, seed=1)
    >>> result = BackpropTrainer(network, config).train([[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, 0])
    >>> result.converged
    True
    """

    def __init__(self, network: Network, config: TrainingConfig | None = None) -> None:
        self.network: Network = instance(network, "network", Network)
        self.config: TrainingConfig = TrainingConfig() if config is None else instance(config, "config", TrainingConfig)
        self._loss = default_loss(network) if self.config.loss is None else self.config.loss
        check_loss(network, self._loss)

    @one_thread("this network", of=lambda trainer: trainer.network)
    def train(
        self,
        inputs: npt.ArrayLike,
        targets: npt.ArrayLike,
        *,
        sample_weight: npt.ArrayLike | None = None,
        class_weight: ClassWeight | None = None,
        validation: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        callbacks: Sequence[Callback] = (),
        resume_from: TrainingState | None = None,
    ) -> TrainingResult:
        """Train and return how it went.

        Args:
            inputs: (samples, inputs).
            targets: (samples, outputs); or, for a softmax output, (samples,) integer classes; or, for one output,
                (samples,) numbers.
            sample_weight: (samples,) weights, not negative: a batch's loss is the weighted mean.
            class_weight: a weight for each class, by the largest target; ``"balanced"`` makes all classes count alike.
            validation: inputs and targets to measure; instead of ``validation_fraction``.
            callbacks: called in order after each epoch.
            resume_from: the state of an earlier training of this architecture, which is carried on up to ``max_epochs``
                in all: with the same data and configuration, it gives the bits of a training never interrupted.

        Raises:
            SizeMismatchError, InvalidInputError: data that do not fit the network or the loss.
            NumericInstability: a forward value is not finite (guard ERROR), or a validation value.
            GradientError: a gradient or updated weight is not finite.
            TrainingError: the guard left out every batch of an epoch.
            After these three the network holds the last good weights: the best epoch's, or those before the bad epoch.
        """
        config = self.config
        for callback in listed(callbacks, "callbacks", "functions"):
            if not callable(callback):
                raise InvalidInputError(f"callbacks holds {shown(callback)}, which cannot be called")
        if validation is not None and not (isinstance(validation, (tuple, list)) and len(validation) == 2):
            raise InvalidInputError(f"validation is {shown(validation)}; it must be a pair (inputs, targets)")
        total = self._loss.target_sum(config.temperature, config.hard_share)
        data = prepare(
            self.network,
            inputs,
            targets,
            self._loss,
            sample_weight=sample_weight,
            class_weight=class_weight,
            target_sum=total,
        )
        state = self._begin(resume_from)
        held_out: DataSet | None = None
        if validation is not None:
            if config.validation_fraction:
                raise InvalidInputError("validation data and a validation_fraction are both given: use one of them")
            held_out = prepare(self.network, *validation, self._loss, target_sum=total)
        elif config.validation_fraction:
            stratify = self._loss.wants_distributions
            generator = random_generator(state.seed, _SPLIT_STREAM)
            data, held_out = split(data, config.validation_fraction, generator, stratify=stratify)
        if held_out is not None:
            held_out = self._measurable(held_out)
        run = _Run(self.network, config, self._loss, data, held_out, state)
        return run.train(callbacks)

    def _measurable(self, held_out: DataSet) -> DataSet:
        """Return the validation samples that count.

        They have a weight and, unless the guard is ERROR, finite inputs.
        """
        counts = np.ones(len(held_out), dtype=np.bool_) if held_out.weights is None else held_out.weights > 0
        if self.config.gradient_guard is not GradientGuardStrategy.ERROR:
            counts &= np.isfinite(held_out.inputs).all(axis=1)
        if not counts.any():
            raise InvalidInputError("no validation sample counts: all have weight zero or inputs that are not finite")
        return held_out if counts.all() else held_out.rows(np.flatnonzero(counts).astype(np.int64))

    def _begin(self, resume_from: TrainingState | None) -> TrainingState:
        network = self.network
        if resume_from is None:
            seed = self.config.seed
            entropy = np.random.SeedSequence().entropy if seed is None else int(seed)
            assert isinstance(entropy, int)
            zeros = np.zeros_like(network.parameters)
            return TrainingState(
                network.architecture(),
                entropy,
                0,
                0,
                network.parameters.copy(),
                zeros,
                zeros.copy(),
                math.inf,
                None,
                None,
                0,
            )
        instance(resume_from, "resume_from", TrainingState).check()
        if resume_from.architecture != network.architecture():
            raise InvalidInputError(
                f"the state is of a network {resume_from.architecture}, this one is {network.architecture()}"
            )
        sizes = [resume_from.parameters.size, resume_from.moment1.size, resume_from.moment2.size]
        if resume_from.best_parameters is not None:
            sizes.append(resume_from.best_parameters.size)
        if any(size != network.parameters.size for size in sizes):
            raise SizeMismatchError(f"the state holds {sizes} values, the network {network.parameters.size}")
        return resume_from


class _Run:
    """One call of train."""

    def __init__(
        self,
        network: Network,
        config: TrainingConfig,
        loss: object,
        data: DataSet,
        held_out: DataSet | None,
        state: TrainingState,
    ) -> None:
        from lattice_fann.training.loss import Loss

        assert isinstance(loss, Loss)
        self.network, self.config, self.loss, self.data, self.held_out = network, config, loss, data, held_out
        self.parameter = config.huber_delta if loss is Loss.HUBER else config.temperature
        self.batch_size = min(config.batch_size, len(data))
        self.engine = StepEngine(network, self.batch_size, loss.value, self.parameter, config.hard_share)
        self.seed, self.updates, self.first_epoch = state.seed, state.updates, state.epoch
        self.drop_seed = 0
        if config.input_dropout:  # a generator costs as much as an epoch of a tiny network
            self.drop_seed = int(random_generator(state.seed, _DROPOUT_STREAM).randint(2**32, dtype=np.uint32))
        self.best_loss, self.best_epoch, self.waited = state.best_loss, state.best_epoch, state.epochs_without_gain
        self.best = None if state.best_parameters is None else state.best_parameters.copy()
        network.parameters[:] = state.parameters
        self.engine.moment1[:] = state.moment1
        self.engine.moment2[:] = state.moment2
        if config.optimizer is Optimizer.RPROP and state.updates == 0:
            self.engine.moment2[:] = config.learning_rate
        self.equal_weights = np.full(self.batch_size, 1.0 / self.batch_size, dtype=np.float32)
        self.monitors = config.patience is not None or held_out is not None

    def train(self, callbacks: Sequence[Callback]) -> TrainingResult:
        history: list[EpochRecord] = []
        converged = stopped = False
        last_good = self.network.parameters.copy()
        self.final_epoch = self.first_epoch
        for epoch in range(self.first_epoch, self.config.max_epochs):
            try:
                record = self.epoch(epoch)
            except (TrainingError, NumericInstability):
                self.network.parameters[:] = last_good if self.best is None else self.best
                raise
            except BaseException:  # an interrupt: leave whole weights, of the end of an epoch
                self.network.parameters[:] = last_good
                raise
            last_good[:] = self.network.parameters
            history.append(record)
            self.final_epoch = epoch + 1
            if self.monitors:
                self.note(record)
            stopped = any([callback(record) is True for callback in callbacks])  # noqa: C419 - every one is called
            converged = self.config.target_error is not None and record.loss < self.config.target_error
            out_of_patience = self.config.patience is not None and self.waited >= self.config.patience
            stopped = stopped or out_of_patience
            if converged or stopped:
                break
        state = self.state()
        if self.config.patience is not None and self.config.restore_best and self.best is not None:
            self.network.parameters[:] = self.best
        return TrainingResult(
            final_error=history[-1].loss if history else math.inf,
            epochs_trained=len(history),
            converged=converged,
            stopped_early=stopped and not converged,
            best_epoch=self.best_epoch,
            history=history,
            state=state,
        )

    def state(self) -> TrainingState:
        return TrainingState(
            architecture=self.network.architecture(),
            seed=self.seed,
            epoch=self.final_epoch,
            updates=self.updates,
            parameters=self.network.parameters.copy(),
            moment1=self.engine.moment1.copy(),
            moment2=self.engine.moment2.copy(),
            best_loss=self.best_loss,
            best_epoch=self.best_epoch,
            best_parameters=self.best,
            epochs_without_gain=self.waited,
        )

    def note(self, record: EpochRecord) -> None:
        """Compare the epoch with the best so far."""
        monitored = record.loss if record.validation_loss is None else record.validation_loss
        if monitored < self.best_loss - self.config.min_delta or self.best_epoch is None:
            self.best_loss, self.best_epoch, self.waited = monitored, record.epoch, 0
            self.best = self.network.parameters.copy()
        else:
            self.waited += 1

    def epoch(self, epoch: int) -> EpochRecord:
        """Go once over the data."""
        began = time.perf_counter()
        order = np.arange(len(self.data), dtype=np.int64)
        if self.config.shuffle:
            random_generator(self.seed, _SHUFFLE_STREAM, epoch).shuffle(order)
        total = mass = norms = 0.0
        accepted = skipped = 0
        rate = self.config.learning_rate
        starts = range(0, len(order), self.batch_size)
        for index, start in enumerate(starts):
            rows = order[start : start + self.batch_size]
            outcome = self.batch(rows)
            if outcome is None:
                skipped += 1
                continue
            loss, squares, weight = outcome
            norm = math.sqrt(squares)
            rate = self.rate(epoch + index / len(starts))
            self.update(rate, norm)
            total += loss * weight
            mass += weight
            norms += norm
            accepted += 1
        if not accepted:
            raise TrainingError(f"every batch of epoch {epoch} was left out: no value of it was usable")
        if not np.isfinite(self.network.parameters).all():
            raise GradientError(f"a weight is not finite after epoch {epoch}: lower the learning rate, {rate}")
        validation_loss, accuracy = (None, None) if self.held_out is None else self.validate(self.held_out)
        seconds = time.perf_counter() - began
        return EpochRecord(epoch, total / mass, validation_loss, accuracy, rate, norms / accepted, skipped, seconds)

    def validate(self, held_out: DataSet) -> tuple[float, float | None]:
        loss, outputs = evaluate_loss(
            self.network,
            held_out.inputs,
            held_out.targets,
            held_out.weights,
            self.loss,
            self.parameter,
            self.config.hard_share,
        )
        if held_out.targets.shape[1] == 1:
            return loss, None
        return loss, float(np.mean(outputs.argmax(axis=1) == held_out.targets.argmax(axis=1)))

    def weights_of(self, rows: npt.NDArray[np.int64]) -> tuple[Float32Array, float]:
        """The samples' weights divided by their sum, and the sum."""
        if self.data.weights is None:
            if rows.size == self.batch_size:
                return self.equal_weights, float(rows.size)
            return np.full(rows.size, 1.0 / rows.size, dtype=np.float32), float(rows.size)
        weights = self.data.weights[rows].astype(np.float64)
        total = float(weights.sum())
        return (weights / total if total > 0 else weights).astype(np.float32), total

    def batch(self, rows: npt.NDArray[np.int64]) -> tuple[float, float, float] | None:
        """Return loss, squared gradient norm and weight of a batch under the gradient guard.

        None if it is left out.
        """
        guard = self.config.gradient_guard
        sanitize = guard is GradientGuardStrategy.SANITIZE
        weights, total = self.weights_of(rows)
        if not total > 0:
            return None
        status, loss, squares, fault = self.gradient(rows, weights, sanitize)
        if status == 0 and sanitize:
            usable = self.usable(rows)
            weights = np.where(usable, weights, np.float32(0))
            remaining = float(weights.sum(dtype=np.float64))
            if not remaining > 0:
                return None
            total *= remaining
            weights = (weights / remaining).astype(np.float32)
            status, loss, squares, fault = self.gradient(rows, weights, sanitize)
        if status == 1 and math.isfinite(loss):
            return loss, squares, total
        if guard is not GradientGuardStrategy.ERROR:
            return None
        if status == 0:
            assert fault is not None
            layer, row, index = fault
            raise NumericInstability(layer, index, int(rows[row]))
        what = "a gradient" if status == 2 else "the loss"
        raise GradientError(
            f"{what} of a batch is not finite: lower the learning rate, scale the inputs, or set max_gradient_norm"
        )

    def gradient(
        self, rows: npt.NDArray[np.int64], weights: Float32Array, sanitize: bool
    ) -> tuple[int, float, float, tuple[int | None, int, int] | None]:
        drop, seed = self.config.input_dropout, (self.drop_seed + self.updates * _GOLDEN) & 0xFFFFFFFF
        return self.engine.gradient(
            self.data.inputs, self.data.targets, rows, weights, sanitize, drop=drop, drop_seed=seed
        )

    def usable(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which samples the network can be run on."""
        good = np.ones(rows.size, dtype=np.bool_)
        for i, row in enumerate(rows):
            try:
                self.network.forward(self.data.inputs[row])
            except FannError:
                good[i] = False
        return good

    def rate(self, epoch: float) -> float:
        schedule = self.config.schedule
        if schedule is None:
            return self.config.learning_rate
        given = schedule(epoch, self.config.max_epochs)
        factor = real(given, f"what the schedule gave at epoch {epoch}", "of at least 0", least=0)
        return self.config.learning_rate * factor

    def update(self, rate: float, norm: float) -> None:
        config = self.config
        self.updates += 1
        scale = 1.0
        if config.max_gradient_norm is not None:
            scale = min(1.0, config.max_gradient_norm / (norm + 1e-6))
        beta2 = config.square_smoothing
        self.engine.update(
            config.optimizer.value,
            rate,
            momentum=config.momentum,
            beta1=config.beta1,
            beta2=beta2,
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
            correction1=1.0 - config.beta1**self.updates,
            correction2_root=math.sqrt(1.0 - beta2**self.updates),
            gradient_scale=scale,
            gradient_limit=math.inf if config.max_gradient_value is None else config.max_gradient_value,
            decay_biases=config.decay_biases,
        )
