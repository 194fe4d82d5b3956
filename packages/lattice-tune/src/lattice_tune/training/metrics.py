"""What each epoch of a training has shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from lattice_tune.arguments import whole

__all__ = ["EpochMetrics", "TrainingMetrics"]


@dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """One epoch.

    Attributes:
        epoch: its number, from 0.
        train_loss: mean loss over the batches, each measured before its update.
        val_loss, val_accuracy: over the validation examples, after the epoch; None without any. Accuracy is against the
            targets that are trained on.
        learning_rate: of the last update.
        gradient_norm: mean L2 norm of the gradients before clipping.
        duration_seconds: wall time.
        examples_seen: examples gone through since the training began.
    """

    epoch: int
    train_loss: float
    val_loss: float | None
    val_accuracy: float | None
    learning_rate: float
    gradient_norm: float
    duration_seconds: float
    examples_seen: int


@dataclass(frozen=True)
class TrainingMetrics:
    """A whole training.

    Attributes:
        history: its epochs.
        stopped_early: whether early stopping or a callback ended it.
        restored_epoch: the epoch whose weights were kept; None if those of the last one were.
    """

    history: tuple[EpochMetrics, ...] = field(default_factory=tuple)
    stopped_early: bool = False
    restored_epoch: int | None = None

    @property
    def best_epoch(self) -> int | None:
        """The epoch with the lowest validation loss; None without any."""
        measured = [(entry.val_loss, entry.epoch) for entry in self.history if entry.val_loss is not None]
        return min(measured)[1] if measured else None

    @property
    def best_val_loss(self) -> float | None:
        """The lowest validation loss; None without any."""
        return min((entry.val_loss for entry in self.history if entry.val_loss is not None), default=None)

    def is_overfitting(self, window: int = 5) -> bool:
        """Whether the validation loss rose and the training loss fell in the last ``window`` epochs.

        Both must hold in each of them.
        """
        steps = whole(window, "window", least=1)
        last = self.history[-steps - 1 :]
        if len(last) <= steps:
            return False
        for before, after in pairwise(last):
            if before.val_loss is None or after.val_loss is None:
                return False
            if not (after.val_loss > before.val_loss and after.train_loss < before.train_loss):
                return False
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as JSON has them."""
        return {
            "history": [asdict(entry) for entry in self.history],
            "stopped_early": self.stopped_early,
            "restored_epoch": self.restored_epoch,
            "best_epoch": self.best_epoch,
            "best_val_loss": self.best_val_loss,
        }
