"""What keeps a network from learning its examples by heart."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_tune.arguments import real
from lattice_tune.errors import ConfigError

__all__ = ["RegularizationConfig"]


@dataclass(frozen=True, kw_only=True)
class RegularizationConfig:
    """What keeps a network from learning its examples by heart.

    Attributes:
        dropout: part of a vector's numbers that a training step sets to zero, from 0 to 0.9.
        label_smoothing: part of each target that is spread over all labels alike, in [0, 1).
        gradient_clip: longer gradients are scaled down to this L2 norm; None leaves them. A gradient that is not finite ends
            the training with an error.
    """

    dropout: float = 0.1
    label_smoothing: float = 0.1
    gradient_clip: float | None = 1.0

    def __post_init__(self) -> None:
        real(self.dropout, "dropout", "from 0 to 0.9", least=0, most=0.9, refusal=ConfigError)
        real(self.label_smoothing, "label_smoothing", "in [0, 1)", least=0, below=1, refusal=ConfigError)
        if self.gradient_clip is not None:
            real(self.gradient_clip, "gradient_clip", "above 0, or None", above=0, refusal=ConfigError)

    @classmethod
    def none(cls) -> RegularizationConfig:
        """Return the configuration that does nothing."""
        return cls(dropout=0.0, label_smoothing=0.0, gradient_clip=None)

    @classmethod
    def light(cls) -> RegularizationConfig:
        """Return a little of each."""
        return cls(dropout=0.05, label_smoothing=0.05, gradient_clip=5.0)

    @classmethod
    def strong(cls) -> RegularizationConfig:
        """Return much of each, for few or noisy examples."""
        return cls(dropout=0.3, label_smoothing=0.2, gradient_clip=0.5)
