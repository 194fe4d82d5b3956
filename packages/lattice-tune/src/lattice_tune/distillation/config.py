"""How a distillation goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lattice_tune.arguments import instance, real, text_of, whole
from lattice_tune.errors import ConfigError, InvalidInputError
from lattice_tune.training.config import TrainingConfig
from lattice_tune.training.regularization import RegularizationConfig

__all__ = ["DistillationConfig"]


def _training() -> TrainingConfig:
    return TrainingConfig(regularization=RegularizationConfig(dropout=0.5))


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """How a distillation goes.

    Attributes:
        hidden: widths of the student's hidden layers.
        temperature: at which the teacher's probabilities are learned.
        hard_share: share of the hard labels in the loss: gold ones where there are some, else the teacher's most probable.
        min_confidence: texts whose teacher is less sure than this are left out; None leaves none out.
        confidence: the student passes texts of a lower confidence back to the teacher; None passes none back.
        balance: weight the examples so that all labels count alike.
        prompt: put before every text by the encoder.
        batch_size: texts that the teacher, and the encoder, are given at a time.
        worst: examples with the worst predictions that the report shows.
        training: how the student is trained; its ``val_split`` is what the calibration is fitted and measured on.
    """

    hidden: tuple[int, ...] = (256,)
    temperature: float = 2.0
    hard_share: float = 0.5
    min_confidence: float | None = None
    confidence: float | None = None
    balance: bool = False
    prompt: str = ""
    batch_size: int = 256
    worst: int = 10
    training: TrainingConfig = field(default_factory=_training)

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, (tuple, list)) or len(self.hidden) > 16:
            raise ConfigError(f"hidden is {self.hidden!r:.80}; it must be a tuple of at most 16 widths")
        widths = tuple(
            whole(width, "a width of hidden", least=1, most=65_536, refusal=ConfigError) for width in self.hidden
        )
        object.__setattr__(self, "hidden", widths)
        real(self.temperature, "temperature", "from 0.05 to 100", least=0.05, most=100, refusal=ConfigError)
        real(self.hard_share, "hard_share", "from 0 to 1", least=0, most=1, refusal=ConfigError)
        for name in ("min_confidence", "confidence"):
            if getattr(self, name) is not None:
                real(getattr(self, name), name, "from 0 to 1, or None", least=0, most=1, refusal=ConfigError)
        if not isinstance(self.balance, bool):
            raise ConfigError(f"balance is {self.balance!r:.80}; it must be True or False")
        text_of(self.prompt, "prompt", refusal=ConfigError)
        whole(self.batch_size, "batch_size", least=1, most=1 << 20, refusal=ConfigError)
        whole(self.worst, "worst", most=10_000, refusal=ConfigError)
        try:
            instance(self.training, "training", TrainingConfig)
        except InvalidInputError as error:
            raise ConfigError(str(error)) from None
        if not self.training.val_split:
            raise ConfigError("training.val_split is 0; the calibration needs examples that are kept out of training")

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON has it."""
        return asdict(self) | {"training": self.training.to_dict()}
