"""How a student is trained: one frozen dataclass with its parts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lattice_tune.arguments import instance, real, whole
from lattice_tune.errors import ConfigError
from lattice_tune.training.early_stopping import EarlyStopping
from lattice_tune.training.optimizer import OptimizerConfig
from lattice_tune.training.regularization import RegularizationConfig
from lattice_tune.training.schedule import LRSchedule

__all__ = ["MAX_BATCH_SIZE", "TrainingConfig"]

MAX_BATCH_SIZE = 8192


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a student is trained.

    Attributes:
        epochs: most passes over the examples.
        batch_size: examples in a mini-batch, at most 8,192.
        val_split: part of the examples kept out of training to measure it, chosen by a hash of each; 0 keeps none.
        seed: of first weights, orders and dropout.
        optimizer, schedule, regularization: see their classes.
        early_stopping: None trains all epochs.
        checkpoint_interval: epochs between checkpoints; None makes none.
    """

    epochs: int = 100
    batch_size: int = 32
    val_split: float = 0.1
    seed: int = 42
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: LRSchedule = field(default_factory=LRSchedule)
    regularization: RegularizationConfig = field(default_factory=RegularizationConfig)
    early_stopping: EarlyStopping | None = field(default_factory=EarlyStopping)
    checkpoint_interval: int | None = None

    def __post_init__(self) -> None:
        whole(self.epochs, "epochs", least=1, most=1_000_000, refusal=ConfigError)
        whole(self.batch_size, "batch_size", least=1, most=MAX_BATCH_SIZE, refusal=ConfigError)
        real(self.val_split, "val_split", "from 0 to 0.9", least=0, most=0.9, refusal=ConfigError)
        whole(self.seed, "seed", most=2**63 - 1, refusal=ConfigError)
        instance(self.optimizer, "optimizer", OptimizerConfig, refusal=ConfigError)
        instance(self.schedule, "schedule", LRSchedule, refusal=ConfigError)
        instance(self.regularization, "regularization", RegularizationConfig, refusal=ConfigError)
        if self.checkpoint_interval is not None:
            whole(self.checkpoint_interval, "checkpoint_interval", least=1, refusal=ConfigError)
        if self.early_stopping is not None:
            stopping = instance(self.early_stopping, "early_stopping", EarlyStopping, refusal=ConfigError)
            if stopping.monitor != "train_loss" and not self.val_split:
                raise ConfigError(
                    f"{stopping.monitor} is monitored and val_split is 0: keep some examples, or monitor train_loss"
                )

    @classmethod
    def quick(cls) -> TrainingConfig:
        """Return few epochs at a higher rate, to see whether something can be learned."""
        return cls(epochs=10, optimizer=OptimizerConfig(learning_rate=0.003), early_stopping=EarlyStopping(patience=3))

    @classmethod
    def thorough(cls) -> TrainingConfig:
        """Return many epochs at a lower rate, with warmup and annealing."""
        return cls(
            epochs=300,
            optimizer=OptimizerConfig(learning_rate=0.0005),
            schedule=LRSchedule.cosine_annealing_warmup(t_max=300),
            early_stopping=EarlyStopping(patience=30),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON has it."""
        found = asdict(self)
        found["optimizer"]["optimizer"] = self.optimizer.optimizer.value
        return found
