"""What training reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from lattice_fann.training.state import TrainingState

__all__ = ["EpochRecord", "TrainingResult"]


@dataclass(frozen=True)
class EpochRecord:
    """One epoch.

    Attributes:
        epoch: its number, from 0.
        loss: mean training loss over the accepted batches, each measured before its update.
        validation_loss: mean loss over the validation samples after the epoch, None without any.
        validation_accuracy: part of the validation samples whose largest output is the target's; None without
            validation samples, or with one output.
        learning_rate: of the epoch's last update.
        gradient_norm: mean L2 norm of the batches' gradients, before clipping.
        skipped_batches: batches that the gradient guard left out.
        seconds: wall time.
    """

    epoch: int
    loss: float
    validation_loss: float | None
    validation_accuracy: float | None
    learning_rate: float
    gradient_norm: float
    skipped_batches: int
    seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended.

    Attributes:
        final_error: training loss of the last epoch; infinity if there was none.
        epochs_trained: epochs run by this call.
        converged: whether the target error was reached.
        stopped_early: whether patience ran out or a callback asked to stop.
        best_epoch: the epoch with the best monitored loss, None without patience or validation.
        history: a record of each epoch.
        state: what resuming takes.
    """

    final_error: float
    epochs_trained: int
    converged: bool
    stopped_early: bool
    best_epoch: int | None
    history: list[EpochRecord]
    state: TrainingState = field(repr=False)

    @property
    def error_history(self) -> list[float]:
        """The training loss of each epoch."""
        return [record.loss for record in self.history]
