"""The interface of a backend that trains.

It runs programs with their reverse over one set of weights, and keeps factors that change. The programs have the ops of
:data:`~lattice_inference.graph.reverse_ops.TRAINING_OPS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.protocol import Outputs
from lattice_inference.backends.tensor_source import TensorSource
from lattice_inference.graph.program import Program
from lattice_inference.graph.training_batch import TrainingBatch

__all__ = ["CompiledTraining", "Factors", "SiteFactors", "TrainingBackend"]

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SiteFactors:
    """The sizes of a site's factors: A is (rank, inputs) and B (outputs, rank)."""

    rank: int
    inputs: int
    outputs: int


class Factors(Protocol):
    """The factors A and B of each site, and the sums of their gradients.

    They are memory of the backend. All begin as zeros. Sites are named by their tensors.
    Arrays that go in or out are float32, C-contiguous, and copies.
    """

    def write(self, site: str, a: Float32Array, b: Float32Array) -> None:
        """Set A, (rank, inputs), and B, (outputs, rank), of a site."""
        ...

    def read(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return A and B of a site."""
        ...

    def zero_gradients(self) -> None:
        """Set all dA and dB to 0."""
        ...

    def gradients(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return dA and dB of a site, what the runs since :meth:`zero_gradients` added."""
        ...


class CompiledTraining(Protocol):
    """Programs that share weights and factors. One run at a time."""

    @property
    def factors(self) -> Factors:
        """The factors that the runs read, and whose gradients they add to."""
        ...

    @property
    def peak_bytes(self) -> int:
        """The most memory that weights, factors and one run have taken together so far."""
        ...

    def run(self, name: str, batch: TrainingBatch) -> Outputs:
        """Run the program with this name; return all its outputs.

        Raises:
            InvalidInputError: it is closed, or an id of the batch lies outside its table.
            NonFiniteError: an output holds NaN or infinity.
        """
        ...

    def close(self) -> None:
        """Release weights and factors; a second call does nothing."""
        ...


@runtime_checkable
class TrainingBackend(Protocol):
    """A backend that runs programs for training."""

    def compile_training(
        self, programs: Mapping[str, Program], source: TensorSource, factors: Mapping[str, SiteFactors]
    ) -> CompiledTraining:
        """Return ``programs`` ready to run, by name, with weights from ``source``.

        Args:
            programs: what :func:`~lattice_inference.graph.backward.differentiate` made of one model.
            source: the weights, which all the programs share.
            factors: the sizes of each site that ``low_rank_...`` ops name.

        Raises:
            CheckpointError: a tensor is missing or has another shape than the program says.
            UnsupportedError: the backend lacks an op.
        """
        ...
