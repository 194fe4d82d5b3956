"""A model that runs forward and backward over packed batches, with trained low-rank factors at its linears."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from lattice_inference.graph.training_batch import Dropout, Noise

__all__ = ["TrainedSite", "TrainingProgram"]

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TrainedSite:
    """A linear with factors A (rank, inputs) and B (outputs, rank).

    ``name`` is its path in transformers, as in :class:`~lattice_inference.lora.LoraAdapter`.
    """

    name: str
    inputs: int
    outputs: int


class TrainingProgram:
    """A model with trained factors; :func:`open_training_program` makes it. A context manager that closes it.

    It is for one thread at a time. Gradients add up over calls until :meth:`zero_gradients`. They are the same bits for any
    number of threads and any ``keep``. Factors and gradients have the order of rows of transformers, whatever the file's.

    Attributes:
        sites: the linears with factors, in the order of the program.
        rank: rows of each A.
        scaling: the factor of B A.
    """

    sites: tuple[TrainedSite, ...]
    rank: int
    scaling: float

    def write_factors(self, site: str, a: Float32Array, b: Float32Array) -> None:
        """Set A, (rank, inputs), and B, (outputs, rank), of the site with this name.

        Raises:
            InvalidInputError: there is no such site, a shape differs, or a number is NaN or infinite.
        """
        raise NotImplementedError

    def read_factors(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return copies of A and B of a site."""
        raise NotImplementedError

    def zero_gradients(self) -> None:
        """Set the gradients of all sites to 0."""
        raise NotImplementedError

    def gradients(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return dA and dB of a site, float32: sums over the calls since :meth:`zero_gradients`."""
        raise NotImplementedError

    def accumulate_tokens(
        self,
        token_ids: Int32Array,
        cu_seqlens: Int32Array,
        targets: Int32Array,
        weights: Float32Array | None = None,
        *,
        dropout: Dropout | None = None,
        noise: Noise | None = None,
    ) -> tuple[float, int]:
        """Run packed sequences forward and backward, and add the gradients of the sum of their losses.

        Args:
            token_ids: (T,) the tokens of all sequences, one after the other.
            cu_seqlens: (B + 1,) where each sequence begins; its positions begin at 0, and it sees no other sequence.
            targets: (T,) the token that each row should give: usually the next one. A row with -100 is not trained.
            weights: (T,) what the loss of each row counts, not negative; a row with 0 is not trained. By default 1.
            dropout: of the inputs of each A.
            noise: on the embeddings.

        Returns:
            The sum of weight times cross-entropy, computed in float64, and the number of trained rows. The gradients are
            those of this sum: divide by the sum of the weights for those of a mean.

        Raises:
            InvalidInputError: the program is closed or opened for vectors, lengths disagree, an id or a target is no token,
                a weight is negative or not finite, or no row is trained.
            NonFiniteError: the loss is NaN or infinite. Gradients that this call added may be, too.
        """
        raise NotImplementedError

    def loss_of_tokens(
        self,
        token_ids: Int32Array,
        cu_seqlens: Int32Array,
        targets: Int32Array,
        weights: Float32Array | None = None,
    ) -> tuple[float, int]:
        """Return what :meth:`accumulate_tokens` returns, without gradients, dropout and noise."""
        raise NotImplementedError

    def vectors(
        self,
        token_ids: Int32Array,
        cu_seqlens: Int32Array,
        token_type_ids: Int32Array | None = None,
        *,
        dropout: Dropout | None = None,
        noise: Noise | None = None,
    ) -> Float32Array:
        """Return the vectors (B, width) of packed texts, pooled and normalised as the encoder gives them.

        Without dropout and noise they are those of the encoder with the same adapter. Ids hold the special tokens.

        Raises:
            InvalidInputError: the program is closed or opened for tokens, or the batch is not valid.
            NonFiniteError: a vector holds NaN or infinity.
        """
        raise NotImplementedError

    def accumulate_vectors(
        self,
        token_ids: Int32Array,
        cu_seqlens: Int32Array,
        d_vectors: Float32Array,
        token_type_ids: Int32Array | None = None,
        *,
        dropout: Dropout | None = None,
        noise: Noise | None = None,
    ) -> Float32Array:
        """Run texts forward and backward, and add the gradients of a loss that was computed outside.

        Args:
            token_ids, cu_seqlens, token_type_ids, dropout, noise: as for :meth:`vectors`; for a loss in two passes, exactly
                what the first pass had.
            d_vectors: (B, width) the gradient of the loss by each vector.

        Returns:
            The vectors, as :meth:`vectors` returns them.

        Raises:
            InvalidInputError, NonFiniteError: as for :meth:`vectors`; or ``d_vectors`` has another shape or is not finite.
        """
        raise NotImplementedError

    @property
    def peak_bytes(self) -> int:
        """The most memory in bytes that weights, factors, gradients and one run have taken together so far."""
        raise NotImplementedError

    def close(self) -> None:
        """Free everything; a second call does nothing, and other calls raise InvalidInputError."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
