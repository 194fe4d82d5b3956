"""A batch of a program for training: targets, and the random draws of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_integer, check_number
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.batch import Batch

__all__ = ["Dropout", "Noise", "TrainingBatch"]

_MOST = 2**64 - 1


@dataclass(frozen=True)
class Dropout:
    """Dropout of the inputs of LoRA's A.

    Nothing is stored: the draws depend on these numbers and on the place.

    Attributes:
        rate: the share of elements that become 0, from 0 to below 1; the others are divided by 1 - rate.
        seed: the key of the draws.
        step: the number of the step; each batch needs its own.

    Raises:
        InvalidInputError: a number is out of range.
    """

    rate: float
    seed: int
    step: int

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("rate", self.rate, 0.0, 1 - 2**-20)
        check_integer("seed", self.seed, 0, _MOST)
        check_integer("step", self.step, 0, _MOST)

    @property
    def threshold(self) -> int:
        """Words of 32 bits below this number drop their element."""
        return int(float(self.rate) * 2**32)

    @property
    def factor(self) -> np.float32:
        """What the elements that stay are multiplied by."""
        return np.float32(1 / (1 - float(self.rate)))


@dataclass(frozen=True)
class Noise:
    """NEFTune's noise on the embeddings of tokens.

    See Jain et al. 2023, https://arxiv.org/abs/2310.05914.

    Attributes:
        alpha: the noise is uniform within alpha / sqrt(tokens of the sequence x columns), on both sides of 0.
        seed: the key of the draws.
        step: the number of the step; each batch needs its own.

    Raises:
        InvalidInputError: a number is out of range.
    """

    alpha: float
    seed: int
    step: int

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("alpha", self.alpha, 0.0, 1e6)
        check_integer("seed", self.seed, 0, _MOST)
        check_integer("step", self.step, 0, _MOST)


@dataclass(frozen=True)
class TrainingBatch(Batch):
    """A :class:`Batch`, and what a program for training reads besides.

    ``logit_rows`` names the rows that are trained. ``targets[R]`` (int32) is the token that each of them should give, and
    ``target_weights[R]`` (float32) what its loss counts.

    Raises:
        InvalidInputError: as for a batch; or lengths or types disagree.
    """

    targets: npt.NDArray[np.int32] | None = None
    target_weights: npt.NDArray[np.float32] | None = None
    dropout: Dropout | None = None
    noise: Noise | None = None

    def __post_init__(self) -> None:
        """Check what is beside the batch; the batch's own checks come first."""
        super().__post_init__()
        for name, kind in (("targets", np.int32), ("target_weights", np.float32)):
            if (given := getattr(self, name)) is not None:
                array: npt.NDArray[Any] = np.ascontiguousarray(given, kind)
                if array.shape != (self.logit_count,):
                    raise InvalidInputError(f"{name} has the shape {array.shape} for {self.logit_count} logit_rows")
                object.__setattr__(self, name, array)
