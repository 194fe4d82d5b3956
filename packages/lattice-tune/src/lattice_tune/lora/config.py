"""What adapter is trained, and how: two frozen dataclasses."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from lattice_tune.arguments import choice, flag, instance, number, real, text_of, whole
from lattice_tune.errors import ConfigError, shown
from lattice_tune.training.early_stopping import EarlyStopping
from lattice_tune.training.optimizer import OptimizerConfig
from lattice_tune.training.schedule import LRSchedule

__all__ = ["MAX_RANK", "LoraConfig", "LoraSchedule", "LoraTrainingConfig"]

MAX_RANK = 512

LoraSchedule = Literal["linear", "cosine", "constant"]
"""How the learning rate falls after the warm-up: to 0 on a line, on half a cosine, or not at all."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """The adapter: y + scale B (A x) for each of its linears.

    Attributes:
        rank: rows of A, at most 512.
        alpha: the scale is alpha / rank; None takes 2 rank, so the scale is 2.
        rank_stabilized: the scale is alpha / sqrt(rank) instead (rsLoRA).
        targets: which linears: ``"all"``, ``"attention"``, or endings of their paths, such as ``("q_proj", "v_proj")``.
        layers: the first and the last layer that is changed, from 0; None takes all. Nothing is computed backwards below
            the first one.
        dropout: part of the inputs of each A that a training step sets to zero, from 0 to 0.9.
        seed: of the first A; B begins with zeros.
    """

    rank: int = 16
    alpha: float | None = None
    rank_stabilized: bool = False
    targets: str | tuple[str, ...] = "all"
    layers: tuple[int, int] | None = None
    dropout: float = 0.0
    seed: int = 42

    def __post_init__(self) -> None:
        whole(self.rank, "rank", least=1, most=MAX_RANK, refusal=ConfigError)
        if self.alpha is not None:
            real(self.alpha, "alpha", "above 0, or None", above=0, below=1e30, refusal=ConfigError)
        flag(self.rank_stabilized, "rank_stabilized", refusal=ConfigError)
        if isinstance(self.targets, str):
            choice(self.targets, "targets", ("all", "attention"), refusal=ConfigError)
        elif not isinstance(self.targets, tuple) or not self.targets:
            raise ConfigError(f"targets is {shown(self.targets)}; give all, attention, or endings of paths")
        else:
            for ending in self.targets:
                if not text_of(ending, "one of targets", refusal=ConfigError):
                    raise ConfigError("one of targets is empty; give the ending of a path, such as q_proj")
        if self.layers is not None:
            if not isinstance(self.layers, tuple) or len(self.layers) != 2:
                raise ConfigError(f"layers is {shown(self.layers)}; give the first and the last layer, or None")
            first = whole(self.layers[0], "the first of layers", refusal=ConfigError)
            whole(self.layers[1], "the last of layers", least=first, refusal=ConfigError)
        real(self.dropout, "dropout", "from 0 to 0.9", least=0, most=0.9, refusal=ConfigError)
        whole(self.seed, "seed", most=2**63 - 1, refusal=ConfigError)

    @property
    def scale(self) -> float:
        """What B (A x) is multiplied by."""
        alpha = 2.0 * self.rank if self.alpha is None else float(self.alpha)
        return alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class LoraTrainingConfig:
    """How an adapter is trained.

    Attributes:
        epochs: passes over the examples.
        max_steps: most updates; None does all epochs. The schedule reaches its end at the last update.
        batch_size: examples of an update.
        micro_batch_tokens: tokens that are computed at a time. Examples are packed without padding; a larger batch is
            computed in parts, with the same gradient.
        max_tokens: tokens of an example, or fewer if the model takes fewer; what is longer is cut (a plain text: divided).
            At most ``micro_batch_tokens``.
        optimizer: the rule, its rate and weight decay.
        schedule: what follows the warm-up.
        warmup: part of all updates in which the rate rises from 0, from 0 to 1.
        b_rate_ratio: the rate of B divided by that of A (LoRA+); 1 is plain LoRA.
        gradient_clip: longer gradients are scaled down to this L2 norm, over all parameters; None leaves them.
        noise: NEFTune's alpha: uniform noise of up to alpha / sqrt(tokens dimensions) on the embeddings; 0 adds none.
        seed: of orders, dropout and noise.
        early_stopping: ends the training, and restores the best weights; None trains to the end.
        eval_interval: updates between evaluations; None evaluates after each epoch.
        checkpoint_interval: updates between checkpoints, if there is a folder; None writes one after each epoch.
        scale: what cosines are multiplied by, of the losses ``"ranking"`` and ``"cosent"``.
        margin: of the loss ``"triplet"``, in cosine distance.
    """

    epochs: int = 3
    max_steps: int | None = None
    batch_size: int = 8
    micro_batch_tokens: int = 2048
    max_tokens: int = 1024
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=2e-4, weight_decay=0.0))
    schedule: LoraSchedule = "linear"
    warmup: float = 0.05
    b_rate_ratio: float = 1.0
    gradient_clip: float | None = 1.0
    noise: float = 0.0
    seed: int = 42
    early_stopping: EarlyStopping | None = None
    eval_interval: int | None = None
    checkpoint_interval: int | None = None
    scale: float = 20.0
    margin: float = 0.5

    def __post_init__(self) -> None:
        whole(self.epochs, "epochs", least=1, most=1_000_000, refusal=ConfigError)
        for name in ("max_steps", "eval_interval", "checkpoint_interval"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), name, least=1, most=2**40, refusal=ConfigError)
        whole(self.batch_size, "batch_size", least=1, most=65_536, refusal=ConfigError)
        whole(self.micro_batch_tokens, "micro_batch_tokens", least=2, most=1 << 20, refusal=ConfigError)
        whole(self.max_tokens, "max_tokens", least=2, most=1 << 20, refusal=ConfigError)
        if self.max_tokens > self.micro_batch_tokens:
            raise ConfigError(
                f"max_tokens is {self.max_tokens} and micro_batch_tokens {self.micro_batch_tokens}: an example has to fit"
            )
        instance(self.optimizer, "optimizer", OptimizerConfig, refusal=ConfigError)
        choice(self.schedule, "schedule", get_args(LoraSchedule), refusal=ConfigError)
        number(self.warmup, "warmup", least=0, most=1, refusal=ConfigError)
        real(self.b_rate_ratio, "b_rate_ratio", "above 0", above=0, most=1e6, refusal=ConfigError)
        if self.gradient_clip is not None:
            real(self.gradient_clip, "gradient_clip", "above 0, or None", above=0, refusal=ConfigError)
        number(self.noise, "noise", least=0, most=1e3, refusal=ConfigError)
        whole(self.seed, "seed", most=2**63 - 1, refusal=ConfigError)
        if self.early_stopping is not None:
            instance(self.early_stopping, "early_stopping", EarlyStopping, refusal=ConfigError)
        real(self.scale, "scale", "above 0", above=0, most=1e4, refusal=ConfigError)
        number(self.margin, "margin", least=0, most=2, refusal=ConfigError)

    def rates(self, steps: int) -> LRSchedule:
        """Return the schedule of a training of so many updates.

        Raises:
            InvalidInputError: ``steps`` is no whole number from 1.
        """
        updates = whole(steps, "steps", least=1, most=2**53)
        warmup = max(1, min(updates, round(self.warmup * updates)))
        match self.schedule:
            case "linear":
                return LRSchedule.linear_decay(warmup, updates)
            case "cosine":
                return LRSchedule.cosine_decay(warmup, updates)
            case _:
                return LRSchedule.linear_warmup(warmup)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON has it."""
        found = asdict(self)
        found["optimizer"]["optimizer"] = self.optimizer.optimizer.value
        return found
