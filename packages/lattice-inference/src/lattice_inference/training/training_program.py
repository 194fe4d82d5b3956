"""A model that runs forward and backward over packed batches, with trained factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.training_protocol import CompiledTraining
from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.training_batch import Dropout, Noise, TrainingBatch
from lattice_inference.training.trained_sites import RowOrder, SiteAccess, TrainedSite
from lattice_inference.value_text import value_text

__all__ = ["TrainingProgram"]

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]

NOT_TRAINED = -100
"""The target of a row without loss, as in PyTorch."""


class TrainingProgram:
    """A model with trained factors, made by :func:`open_training_program`.

    It is a context manager that closes it, and for one thread at a time. Gradients add up over calls until
    :meth:`zero_gradients`. They are the same bits for any number of threads and any ``keep``. Factors and gradients
    have the order of rows of transformers, whatever the file's.

    Attributes:
        sites: the linears with factors, in the order of the program.
        rank: rows of each A.
        scaling: the factor of B A.
    """

    def __init__(
        self,
        compiled: CompiledTraining,
        sites: Sequence[TrainedSite],
        tensors: Mapping[str, str],
        orders: Mapping[str, RowOrder],
        *,
        rank: int,
        scaling: float,
        loss: str,
        output: str,
        width: int,
        positions: Callable[[Int32Array, Int32Array], Int32Array | None] | None,
    ) -> None:
        self.sites: tuple[TrainedSite, ...] = tuple(sites)
        self.rank = rank
        self.scaling = scaling
        self._compiled: CompiledTraining | None = compiled
        self._access = SiteAccess(compiled, sites, tensors, orders, rank)
        self._loss = loss
        self._output = output
        self._width = width
        self._positions = positions
        self._peak = 0

    def write_factors(self, site: str, a: Float32Array, b: Float32Array) -> None:
        """Set A, (rank, inputs), and B, (outputs, rank), of the site with this name.

        Raises:
            InvalidInputError: there is no such site, a shape differs, or a number is NaN or infinite.
        """
        self._open()
        self._access.write(site, a, b)

    def read_factors(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return copies of A and B of a site."""
        self._open()
        return self._access.read(site)

    def zero_gradients(self) -> None:
        """Set the gradients of all sites to 0."""
        self._open().factors.zero_gradients()

    def gradients(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return dA and dB of a site, float32, summed since :meth:`zero_gradients`."""
        self._open()
        return self._access.gradients(site)

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
        """Run packed sequences forward and backward, and add the gradients of their loss.

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
            NonFiniteError: the loss is NaN or infinite.

        After an error or an interrupt in the run, gradients have no meaning until :meth:`zero_gradients`.
        """
        return self._tokens("reverse", token_ids, cu_seqlens, targets, weights, dropout, noise)

    def loss_of_tokens(
        self,
        token_ids: Int32Array,
        cu_seqlens: Int32Array,
        targets: Int32Array,
        weights: Float32Array | None = None,
    ) -> tuple[float, int]:
        """Return what :meth:`accumulate_tokens` returns, without gradients, dropout and noise."""
        return self._tokens("forward", token_ids, cu_seqlens, targets, weights, None, None)

    def vectors(
        self,
        token_ids: Int32Array,
        cu_seqlens: Int32Array,
        token_type_ids: Int32Array | None = None,
        *,
        dropout: Dropout | None = None,
        noise: Noise | None = None,
    ) -> Float32Array:
        """Return the vectors (B, width) of packed texts, as the encoder gives them.

        They are pooled and normalised; with loss="scores" they are logits. Without dropout and noise they are those of the
        encoder with the same adapter. Ids hold the special tokens.

        Raises:
            InvalidInputError: the program is closed or opened for tokens, or the batch is not valid.
            NonFiniteError: a vector holds NaN or infinity.
        """
        compiled = self._open_for("vectors")
        batch = self._batch(token_ids, cu_seqlens, token_type_ids, {}, dropout, noise)
        return compiled.run("forward", batch)[self._output]

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

        After an error or an interrupt in the run, gradients have no meaning until :meth:`zero_gradients`.
        """
        compiled = self._open_for("vectors")
        batch = self._batch(token_ids, cu_seqlens, token_type_ids, {}, dropout, noise)
        gradient = _floats("d_vectors", d_vectors)
        if gradient.shape != (batch.sequences, self._width):
            raise InvalidInputError(
                f"d_vectors has the shape {gradient.shape}; expected {(batch.sequences, self._width)}: a row a text"
            )
        batch = self._batch(token_ids, cu_seqlens, token_type_ids, {"gradient": gradient}, dropout, noise)
        return compiled.run("reverse", batch)[self._output]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that weights, factors and one run have taken together so far."""
        return self._peak if self._compiled is None else self._compiled.peak_bytes

    def close(self) -> None:
        """Free everything; a second call does nothing, and other calls are refused."""
        compiled, self._compiled = self._compiled, None
        if compiled is not None:
            self._peak = compiled.peak_bytes
            compiled.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> CompiledTraining:
        if self._compiled is None:
            _refuse("the program is closed: open it again")
        return self._compiled

    def _open_for(self, what: str) -> CompiledTraining:
        compiled = self._open()
        if (self._loss == "tokens") is not (what == "tokens"):
            _refuse(f"the program was opened with loss={self._loss!r}, which has no {what}")
        return compiled

    def _tokens(
        self,
        program: str,
        token_ids: object,
        cu_seqlens: object,
        targets: object,
        weights: object,
        dropout: Dropout | None,
        noise: Noise | None,
    ) -> tuple[float, int]:
        """Run a program with a loss; return the loss and the number of trained rows."""
        compiled = self._open_for("tokens")
        ids, wanted = _integers("token_ids", token_ids), _integers("targets", targets)
        counts = np.ones(len(ids), np.float32) if weights is None else _floats("weights", weights)
        if not wanted.shape == counts.shape == ids.shape:
            _refuse(f"{len(ids)} tokens have targets of shape {wanted.shape} and weights of shape {counts.shape}")
        if len(counts) and float(counts.min()) < 0:
            _refuse(f"weights holds {counts.min()}; a weight is at least 0")
        rows = np.flatnonzero((wanted != NOT_TRAINED) & (counts > 0)).astype(np.int32)
        if not len(rows):
            _refuse(f"no row is trained: every target is {NOT_TRAINED} or has the weight 0")
        chosen = wanted[rows]
        if int(chosen.min()) < 0 or int(chosen.max()) >= self._width:
            bad = int(rows[np.argmax((chosen < 0) | (chosen >= self._width))])
            _refuse(
                f"targets holds {wanted[bad]} for row {bad}; expected {NOT_TRAINED} or a token below {self._width:,}"
            )
        shares = counts[rows]
        batch = TrainingBatch(
            ids,
            _integers("cu_seqlens", cu_seqlens),
            logit_rows=rows,
            targets=chosen,
            target_weights=shares,
            dropout=_checked_draws("dropout", dropout, Dropout),
            noise=_checked_draws("noise", noise, Noise),
        )
        most, high, low, logit = compiled.run(program, batch)["losses"].astype(np.float64).T
        loss = float(shares.astype(np.float64) @ (np.log(high + low) + most - logit))
        if not np.isfinite(loss):
            raise NonFiniteError(f"the loss is {loss}: factors or weights have grown out of range", ())
        return loss, len(rows)

    def _batch(
        self,
        token_ids: object,
        cu_seqlens: object,
        token_type_ids: object,
        inputs: Mapping[str, Float32Array],
        dropout: Dropout | None,
        noise: Noise | None,
    ) -> TrainingBatch:
        ids, bounds = _integers("token_ids", token_ids), _integers("cu_seqlens", cu_seqlens)
        Batch(ids, bounds)  # checks them before positions are derived
        return TrainingBatch(
            ids,
            bounds,
            token_type_ids=None if token_type_ids is None else _integers("token_type_ids", token_type_ids),
            positions=None if self._positions is None else self._positions(ids, bounds),
            inputs=inputs,
            dropout=_checked_draws("dropout", dropout, Dropout),
            noise=_checked_draws("noise", noise, Noise),
        )


def _refuse(problem: str) -> NoReturn:
    raise InvalidInputError(problem)


def _integers(name: str, given: object) -> Int32Array:
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        _refuse(f"{name} is {value_text(given)}; expected a one-dimensional array of integers")
    if array.size and (int(array.min()) < -(2**31) or int(array.max()) >= 2**31):
        _refuse(f"{name} holds numbers that are no 32-bit integers")
    return np.ascontiguousarray(array, np.int32)


def _floats(name: str, given: object) -> Float32Array:
    array = np.asarray(given)
    if array.dtype.kind not in "iuf":
        _refuse(f"{name} is {value_text(given)}; expected an array of numbers")
    with np.errstate(over="ignore"):  # infinity is refused below
        numbers = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(numbers).all():
        _refuse(f"{name} holds NaN or infinity")
    return numbers


def _checked_draws(name: str, given: Any, kind: type[Any]) -> Any:
    if given is not None and not isinstance(given, kind):
        _refuse(f"{name} is {value_text(given)}; expected a {kind.__name__}, or None")
    return given
