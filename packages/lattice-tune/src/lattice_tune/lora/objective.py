"""What is minimised: names, what a batch gives, and what an evaluation finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol

__all__ = ["LoraEvaluation", "Objective", "ObjectiveName", "SummedLoss"]

ObjectiveName = Literal["tokens", "ranking", "cosent", "cosine", "triplet", "classification", "bce", "ce"]
"""What a model learns: a language model's next tokens; an encoder's in-batch ranking, scores (CoSENT, squared cosine
error), triplets or classes; a cross-encoder's scores (binary cross-entropy) or classes."""


class SummedLoss(NamedTuple):
    """The loss of a batch times its weight, and that weight: trained tokens, or examples."""

    total: float
    weight: float


@dataclass(frozen=True)
class LoraEvaluation:
    """What an evaluation found.

    Attributes:
        loss: the mean loss of a trained token, or of an example.
        weight: trained tokens, or examples.
        accuracy: of classes, rankings or triplets; None for other objectives.
        correlation: Spearman's, of scores; None for other objectives, or where it is not defined.
    """

    loss: float
    weight: float
    accuracy: float | None = None
    correlation: float | None = None

    @property
    def perplexity(self) -> float:
        """The exponential of the loss; meant for tokens."""
        return math.exp(min(self.loss, 700.0))

    @property
    def quality(self) -> float | None:
        """Accuracy, else correlation, else None: what early stopping calls ``val_accuracy``."""
        return self.correlation if self.accuracy is None else self.accuracy

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON has it."""
        return asdict(self)


class Objective(Protocol):
    """A loss over examples, whose gradients are added up in the trained parameters."""

    @property
    def count(self) -> int:
        """Examples to train on."""
        ...

    @property
    def digest(self) -> str:
        """Tells other examples."""
        ...

    def accumulate(self, chosen: Sequence[int], step: int) -> SummedLoss:
        """Set the gradients to those of the summed loss of the chosen examples."""
        ...

    def write(self) -> None:
        """Give the program the parameters as they are now."""
        ...

    def evaluate(self) -> LoraEvaluation | None:
        """Measure the validation examples; None without any."""
        ...
