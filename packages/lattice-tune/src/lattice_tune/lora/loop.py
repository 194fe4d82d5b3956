"""The loop: updates in an order that the seed gives, rounds with an evaluation, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_tune.errors import CheckpointError, TrainingError
from lattice_tune.lora.checkpoint import CheckpointIdentity, LoraCheckpoint, RoundState
from lattice_tune.lora.config import LoraTrainingConfig
from lattice_tune.lora.draws import epoch_order
from lattice_tune.lora.flat_optimizer import FlatOptimizer
from lattice_tune.lora.metrics_file import MetricsFile
from lattice_tune.lora.objective import LoraEvaluation, Objective
from lattice_tune.lora.parameters import TrainedParameters
from lattice_tune.training.early_stopping import StoppingState
from lattice_tune.training.metrics import EpochMetrics, TrainingMetrics

__all__ = ["CHECKPOINT_FILE", "METRICS_FILE", "LoopResult", "LoraStep", "TrainingLoop"]

CHECKPOINT_FILE = "checkpoint.npz"
METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class LoraStep:
    """An update that was done.

    Attributes:
        step: its number, from 1, of ``steps``.
        epoch: the pass over the examples, from 0.
        loss: of its batch, before it.
        learning_rate: of A; B's has the configured ratio to it.
        gradient_norm: before clipping.
        weight: trained tokens, or examples, of its batch.
        seconds: that it took.
        evaluation: of the validation examples, where a round ended; else None.
    """

    step: int
    steps: int
    epoch: int
    loss: float
    learning_rate: float
    gradient_norm: float
    weight: float
    seconds: float
    evaluation: LoraEvaluation | None = None


@dataclass(frozen=True)
class LoopResult:
    """How a training went: its rounds, and the loss of each update, (updates,) float64."""

    metrics: TrainingMetrics
    losses: npt.NDArray[np.float64]


@dataclass
class TrainingLoop:
    """One training.

    Attributes:
        config: how to train.
        objective: what is minimised.
        parameters: what is trained; at the end the best values, or the last ones.
        identity: tells this training's checkpoints from others'.
        folder: where checkpoints and metrics go; None keeps none.
        labels: the classes of a head, stored in checkpoints.
        progress: told of each update; returning True ends the training.
    """

    config: LoraTrainingConfig
    objective: Objective
    parameters: TrainedParameters
    identity: CheckpointIdentity
    folder: Path | None = None
    labels: tuple[str, ...] | None = None
    progress: Callable[[LoraStep], object] | None = None

    _losses: list[float] = field(default_factory=list, init=False)
    _history: list[EpochMetrics] = field(default_factory=list, init=False)
    _round: RoundState = field(default_factory=RoundState, init=False)
    _stopping: StoppingState | None = field(default=None, init=False)
    _best: npt.NDArray[np.float32] | None = field(default=None, init=False)
    _order: tuple[int, npt.NDArray[np.int64]] | None = field(default=None, init=False)

    @property
    def steps_per_epoch(self) -> int:
        """Updates of a pass over the examples; the last one may have fewer of them."""
        return -(-self.objective.count // self.config.batch_size)

    @property
    def steps(self) -> int:
        """Updates in all."""
        whole = self.steps_per_epoch * self.config.epochs
        return whole if self.config.max_steps is None else min(whole, self.config.max_steps)

    def run(self) -> LoopResult:
        """Train, from a checkpoint in the folder if there is one.

        Raises:
            CheckpointError: the checkpoint is of another training, or one cannot be written.
            TrainingError: a loss or a gradient is not finite; the message names the update.
        """
        config = self.config
        optimizer = FlatOptimizer(
            config.optimizer,
            self.parameters,
            b_rate_ratio=config.b_rate_ratio,
            gradient_clip=config.gradient_clip,
        )
        if config.early_stopping is not None:
            self._stopping = config.early_stopping.begin()
        step = self._resume(optimizer)
        self.objective.write()
        rates, is_over = config.rates(self.steps), self._waited_enough()
        metrics = None if self.folder is None else MetricsFile(self.folder / METRICS_FILE, step)
        try:
            while step < self.steps and not is_over:
                done = self._update(step, optimizer, rates.get_lr(config.optimizer.learning_rate, step, 0))
                step += 1
                if self._ends_round(step):
                    done = self._end_round(done)
                if metrics is not None:
                    _note(metrics, done)
                asked = self.progress is not None and self.progress(done) is True
                is_over = asked or self._waited_enough()
                if self.folder is not None and (self._is_checkpoint(step) or is_over):
                    self._checkpoint(step, optimizer).save(self.folder / CHECKPOINT_FILE)
        finally:
            if metrics is not None:
                metrics.close()
        restored = None
        if self._best is not None and self._stopping is not None:
            self.parameters.values[:] = self._best
            self.objective.write()
            restored = self._stopping.best_epoch
        return LoopResult(
            TrainingMetrics(tuple(self._history), step < self.steps, restored), np.array(self._losses, np.float64)
        )

    def _update(self, step: int, optimizer: FlatOptimizer, rate: float) -> LoraStep:
        began = time.perf_counter()
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self.config.seed, epoch, self.objective.count)
        size = self.config.batch_size
        chosen = self._order[1][place * size : (place + 1) * size].tolist()
        try:
            loss = self.objective.accumulate(chosen, step)
            if not np.isfinite(loss.total):
                raise TrainingError("the loss is not finite")
            moved = optimizer.update(rate, loss.weight)
            self.objective.write()
        except TrainingError as error:
            kept = "" if self.folder is None else f"; the last good checkpoint is in {self.folder}"
            raise TrainingError(
                f"update {step + 1}: {error}: lower the learning rate, or check the examples{kept}"
            ) from error
        mean = loss.total / loss.weight
        self._losses.append(mean)
        seconds = time.perf_counter() - began
        before = self._round
        self._round = RoundState(
            before.loss + loss.total,
            before.weight + loss.weight,
            before.norms + moved.gradient_norm,
            before.updates + 1,
            before.seconds + seconds,
        )
        return LoraStep(step + 1, self.steps, epoch, mean, rate, moved.gradient_norm, loss.weight, seconds)

    def _ends_round(self, step: int) -> bool:
        interval = self.config.eval_interval or self.steps_per_epoch
        return step % interval == 0 or step == self.steps

    def _end_round(self, done: LoraStep) -> LoraStep:
        """Evaluate, and note the round."""
        began = time.perf_counter()
        try:
            found = self.objective.evaluate()
        except TrainingError as error:
            raise TrainingError(f"update {done.step}: {error}") from error
        state = self._round
        entry = EpochMetrics(
            epoch=len(self._history),
            train_loss=state.loss / state.weight,
            val_loss=None if found is None else found.loss,
            val_accuracy=None if found is None else found.quality,
            learning_rate=done.learning_rate,
            gradient_norm=state.norms / state.updates,
            duration_seconds=state.seconds + time.perf_counter() - began,
            examples_seen=self._examples_seen(done.step),
        )
        self._history.append(entry)
        self._round = RoundState()
        if self.config.early_stopping is not None and self._stopping is not None:
            self._stopping = self.config.early_stopping.observe(self._stopping, entry)
            if self._stopping.best_epoch == entry.epoch:
                self._best = self.parameters.values.copy()
        return LoraStep(**{**done.__dict__, "evaluation": found})

    def _examples_seen(self, step: int) -> int:
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.objective.count + rest * self.config.batch_size

    def _waited_enough(self) -> bool:
        stopping = self.config.early_stopping
        return stopping is not None and self._stopping is not None and stopping.is_over(self._stopping)

    def _is_checkpoint(self, step: int) -> bool:
        interval = self.config.checkpoint_interval or self.steps_per_epoch
        return step % interval == 0 or step == self.steps

    def _checkpoint(self, step: int, optimizer: FlatOptimizer) -> LoraCheckpoint:
        return LoraCheckpoint(
            self.identity,
            step,
            self.parameters.values,
            optimizer.moment1,
            optimizer.moment2,
            np.array(self._losses, np.float64),
            tuple(self._history),
            self._round,
            self._stopping,
            self._best,
            self.labels,
        )

    def _resume(self, optimizer: FlatOptimizer) -> int:
        """Take what a checkpoint in the folder holds; return the updates that are done."""
        if self.folder is None or not (self.folder / CHECKPOINT_FILE).exists():
            return 0
        found = LoraCheckpoint.load(self.folder / CHECKPOINT_FILE)
        found.identity.check(self.identity)
        if found.values.size != self.parameters.values.size or found.step > self.steps:
            raise CheckpointError(
                f"{self.folder / CHECKPOINT_FILE}: has other matrices, or more updates than there are"
            )
        self.parameters.values[:] = found.values
        optimizer.moment1[:], optimizer.moment2[:] = found.moment1, found.moment2
        optimizer.updates = found.step
        self._losses, self._history = found.losses.tolist(), list(found.history)
        self._round, self._stopping = found.current, found.stopping
        self._best = None if found.best is None else found.best.copy()
        return found.step


def _note(metrics: MetricsFile, done: LoraStep) -> None:
    row = {name: value for name, value in done.__dict__.items() if name not in ("evaluation", "steps")}
    metrics.write(row)
    if done.evaluation is not None:
        metrics.write({"step": done.step, "epoch": done.epoch, "evaluation": done.evaluation.to_dict()})
