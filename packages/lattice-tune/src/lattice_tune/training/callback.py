"""What a program can do while a training runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lattice_tune.training.metrics import EpochMetrics, TrainingMetrics

if TYPE_CHECKING:
    from lattice_tune.training.checkpoint import Checkpoint

__all__ = ["TrainingCallback"]


class TrainingCallback:
    """Hooks of a running training; override those that you need.

    Errors that they raise end the training.
    """

    def on_train_start(self, examples: int) -> None:
        """Be told that training begins, with so many examples."""

    def on_epoch_end(self, metrics: EpochMetrics) -> bool | None:
        """Be told of an epoch; returning True ends the training."""

    def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Be given a checkpoint, every ``checkpoint_interval`` epochs."""

    def on_train_end(self, metrics: TrainingMetrics) -> None:
        """Be told how the training ended."""
