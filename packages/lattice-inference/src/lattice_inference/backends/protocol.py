"""The interface of a backend: it compiles programs, runs steps and keeps pages.

Nothing outside a backend names its classes: :func:`~lattice_inference.backends.opening.open_backend` makes one by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lattice_inference.graph.program import KvSpec, Program, RecurrentSpec, WeightRef

if TYPE_CHECKING:
    from lattice_inference.backends.tensor_source import TensorSource
    from lattice_inference.checkpoint.safetensors_writer import StoredTensor
    from lattice_inference.graph.batch import Batch

__all__ = [
    "AdaptingProgram",
    "Backend",
    "BackendProgram",
    "FileForm",
    "Finished",
    "LowRankFactors",
    "Outputs",
    "PageStorage",
    "Pending",
    "PreparedAdapter",
    "SlotStorage",
    "WeightSize",
]

Outputs = dict[str, npt.NDArray[np.float32]]
"""Outputs of a step by name, each (rows, width)."""


@dataclass(frozen=True)
class WeightSize:
    """The size of one weight as the backend keeps it.

    Attributes:
        name: the name of the tensor or tensors that it was made of.
        dtype: the type that its values are kept in.
        nbytes: its size in bytes, padding included.
        mapped: whether it lies in the mapped file; otherwise it was packed into memory.
    """

    name: str
    dtype: str
    nbytes: int
    mapped: bool = False


class SlotStorage(Protocol):
    """``slots`` slots, each with one sequence's state of every recurrent layer of ``specs``.

    A slot holds the state at the beginning of a block, the rows of the block so far, and the inputs that a short
    convolution still needs. A sequence can be continued from the block's beginning and from each of its rows.
    """

    @property
    def specs(self) -> tuple[RecurrentSpec, ...]:
        """What every recurrent layer keeps."""
        ...

    @property
    def slots(self) -> int:
        """How many slots there are."""
        ...

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot, all layers together."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Copy one slot over another."""
        ...

    def export(self, slot: int) -> bytes:
        """Return the content of a slot, ``slot_bytes`` long."""
        ...

    def import_(self, slot: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a slot.

        Raises:
            InvalidInputError: ``content`` has another size than a slot.
        """
        ...

    def close(self) -> None:
        """Release the memory; closing twice is harmless."""
        ...


class PageStorage(Protocol):
    """``pages`` pages, each with room for ``page_tokens`` tokens of every layer of ``specs``.

    A backend's ``open_state`` makes it. A page's number names it. Its content has no meaning before it is written.
    """

    @property
    def specs(self) -> tuple[KvSpec, ...]:
        """What every layer keeps."""
        ...

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""
        ...

    @property
    def pages(self) -> int:
        """How many pages there are."""
        ...

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers together."""
        ...

    @property
    def recurrent(self) -> SlotStorage | None:
        """The slots of recurrent layers, or None."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page over another."""
        ...

    def export(self, page: int) -> bytes:
        """Return the content of a page, ``page_bytes`` long."""
        ...

    def import_(self, page: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a page.

        Raises:
            InvalidInputError: ``content`` has another size than a page.
        """
        ...

    def close(self) -> None:
        """Release the memory."""
        ...


class Pending(Protocol):
    """A submitted step."""

    def wait(self) -> Outputs:
        """Return the outputs, in new arrays. Calling it again returns the same.

        Raises:
            NonFiniteError: an output holds NaN or infinity; its ``rows`` are rows of that output.
        """
        ...


class BackendProgram(Protocol):
    """A program that a backend has compiled. Thread-safe."""

    @property
    def program(self) -> Program:
        """What it runs."""
        ...

    @property
    def threads(self) -> int | None:
        """The most threads that a step may use; None means all of the process's pool."""
        ...

    @property
    def device(self) -> str:
        """The kind of device that runs it: ``"cpu"``, ``"wgpu"``, ``"metal"``."""
        ...

    @property
    def device_identity(self) -> str | None:
        """Device and driver, which decide the last bits of results; None for the CPU."""
        ...

    @property
    def step_tokens(self) -> int:
        """The best number of tokens for a step.

        It is large enough to keep the device busy and small enough to answer a cancellation soon.
        """
        ...

    @property
    def weight_sizes(self) -> tuple[WeightSize, ...]:
        """The size of each weight."""
        ...

    @property
    def arena_bytes(self) -> int:
        """Bytes that are kept for the activations of later steps."""
        ...

    @property
    def numerics(self) -> str | None:
        """What decides the last bits of results besides ``NUMERICS_VERSION``; None if nothing does."""
        ...

    def run(self, batch: Batch, *, outputs: Collection[str] | None = None, state: PageStorage | None = None) -> Outputs:
        """Call :meth:`submit` and wait."""
        ...

    def submit(
        self, batch: Batch, *, outputs: Collection[str] | None = None, state: PageStorage | None = None
    ) -> Pending:
        """Begin a step.

        Args:
            batch: the packed batch; for a program that keeps keys and values with ``context_lengths`` and ``block_table``.
            outputs: which outputs of the program are wanted; all of them by default.
            state: the pages that ``block_table`` names, of this backend. The step writes the batch's keys and values there.

        Raises:
            InvalidInputError: the program is closed, an id lies outside its table, or the batch carries state that the
                program does not keep. Also if pages do not exist or are too few, or ``state`` belongs to another program.
        """
        ...

    def trim(self) -> None:
        """Return memory that steps no longer use to the operating system."""
        ...

    def close(self) -> None:
        """Release the weights; a running step keeps them until it ends.

        Closing twice is harmless.
        """
        ...


class LowRankFactors(Protocol):
    """The matrices that an adapter adds to one linear: scale * B (A x)."""

    @property
    def a(self) -> npt.NDArray[np.float32]:
        """A, (rank, inputs), finite and C-contiguous."""
        ...

    @property
    def b(self) -> npt.NDArray[np.float32]:
        """B, (outputs, rank), finite and C-contiguous."""
        ...

    @property
    def scale(self) -> float:
        """The factor of the product."""
        ...


class PreparedAdapter(Protocol):
    """An adapter in the form that one program's steps take.

    It is immutable: it cannot change while a step uses it.
    """

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        ...


@runtime_checkable
class AdaptingProgram(BackendProgram, Protocol):
    """A program whose sequences may have adapters."""

    @property
    def adapter_sites(self) -> Mapping[str, tuple[int, int]]:
        """Return the shape of each weight that adapters may change, by its tensor's name."""
        ...

    def prepare_adapter(self, factors: Mapping[str, LowRankFactors]) -> PreparedAdapter:
        """Return an adapter of this program.

        Args:
            factors: A, B and scale by tensor name; their shapes fit those of :attr:`adapter_sites`.

        Raises:
            InvalidInputError: the program is closed.
        """
        ...

    def submit(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> Pending:
        """Do :meth:`BackendProgram.submit` with adapters.

        ``batch.adapter`` says which of ``adapters`` each sequence has.
        """
        ...


class FileForm(Protocol):
    """How a weight is written into a file, so that a backend loads the same bits."""

    @property
    def takes_range(self) -> bool:
        """Whether the file also holds a calibrated range of the weight's input."""
        ...

    def file_tensors(self, name: str, shape: tuple[int, ...]) -> list[StoredTensor]:
        """Return the tensors that a weight becomes."""
        ...

    def file_arrays(self, weight: npt.NDArray[np.float32], name: str) -> Iterator[npt.NDArray[np.generic]]:
        """Yield their values, in the same order."""
        ...


class Backend(Protocol):
    """Compiles programs for a device."""

    def compile(
        self, program: Program, source: TensorSource, *, beside: BackendProgram | None = None
    ) -> BackendProgram:
        """Return ``program`` ready to run, with weights from ``source``.

        Args:
            program: what to run.
            source: where the weights come from.
            beside: another program of this backend over the same source; the two share the weights that both have, if the
                backend can.

        Raises:
            CheckpointError: a tensor is missing or has another shape than the program says.
        """
        ...

    def open_state(
        self,
        specs: Sequence[KvSpec],
        *,
        page_tokens: int,
        pages: int,
        recurrent_specs: Sequence[RecurrentSpec] = (),
        slots: int = 0,
    ) -> PageStorage:
        """Return the pages and slots of a program with ``specs`` and ``recurrent_specs``.

        Raises:
            UnsupportedError: the backend keeps no recurrent state, and ``recurrent_specs`` are given.
        """
        ...

    def weight_sizes(self, program: Program, source: TensorSource) -> tuple[WeightSize, ...]:
        """Return the size that each weight of ``program`` would have once compiled.

        It reads types and shapes, but no weight.
        """
        ...

    def file_forms(self, program: Program, source: TensorSource) -> Mapping[WeightRef, FileForm]:
        """Return how to write each weight of ``program`` into a file of this backend's precision.

        Raises:
            UnsupportedError: the backend has no form for files.
        """
        ...


@dataclass(frozen=True)
class Finished:
    """A :class:`Pending` of a backend that has the outputs at once."""

    outputs: Outputs

    def wait(self) -> Outputs:
        """Return the outputs."""
        from lattice_inference.backends.batch_checks import refuse_non_finite

        refuse_non_finite(self.outputs)
        return self.outputs
