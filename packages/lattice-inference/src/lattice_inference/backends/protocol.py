"""What a backend is: it compiles programs, keeps pages of keys and values, and runs steps.

Nothing outside a backend names its classes: :func:`~lattice_inference.backends.opening.open_backend` makes one by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lattice_inference.graph.program import KvSpec, Program, WeightRef

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
    "WeightSize",
]

Outputs = dict[str, npt.NDArray[np.float32]]
"""Outputs of a step by name, each (rows, width)."""


@dataclass(frozen=True)
class WeightSize:
    """One weight as it is kept.

    Attributes:
        name: of the tensor or tensors that it was made of.
        dtype: what its values are kept in.
        nbytes: what it takes, padding included.
        mapped: whether it lies in the mapped file; else it was packed into memory.
    """

    name: str
    dtype: str
    nbytes: int
    mapped: bool = False


class PageStorage(Protocol):
    """``pages`` pages, each with room for ``page_tokens`` tokens of every layer of ``specs``.

    Made by a backend's ``open_state``. A page is named by its number; what it holds before it is written is of no meaning.
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
        """Give the memory back."""
        ...


class Pending(Protocol):
    """A step that was submitted."""

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
        """The most threads that a step may use; ``None`` is all of the process's pool."""
        ...

    @property
    def device(self) -> str:
        """The kind of device that runs it: ``"cpu"``, ``"wgpu"``."""
        ...

    @property
    def device_identity(self) -> str | None:
        """Device and driver, which decide the last bits of results; None for the CPU."""
        ...

    @property
    def step_tokens(self) -> int:
        """Tokens of a step: enough to keep the device busy, few enough to answer a cancellation soon."""
        ...

    @property
    def weight_sizes(self) -> tuple[WeightSize, ...]:
        """What each weight takes."""
        ...

    @property
    def arena_bytes(self) -> int:
        """Bytes that are kept for the activations of later steps."""
        ...

    @property
    def numerics(self) -> str | None:
        """What decides the last bits of results beside ``NUMERICS_VERSION``; None if nothing does."""
        ...

    def run(self, batch: Batch, *, outputs: Collection[str] | None = None, state: PageStorage | None = None) -> Outputs:
        """Do :meth:`submit`, and wait."""
        ...

    def submit(
        self, batch: Batch, *, outputs: Collection[str] | None = None, state: PageStorage | None = None
    ) -> Pending:
        """Begin a step.

        Args:
            batch: the packed batch; for a program that keeps keys and values with ``context_lengths`` and ``block_table``.
            outputs: which outputs of the program are wanted; all of them by default.
            state: the pages that ``block_table`` names, of this backend. The batch's keys and values are written there.

        Raises:
            InvalidInputError: the program is closed, an id lies outside its table, the batch carries state that the program
                has not, it names pages that do not exist or do not suffice, or ``state`` is another program's.
        """
        ...

    def trim(self) -> None:
        """Give the memory that steps left behind back to the operating system."""
        ...

    def close(self) -> None:
        """Give the weights back; a step that runs keeps them until it ends. Closing twice is harmless."""
        ...


class LowRankFactors(Protocol):
    """What an adapter adds to one linear: scale * B (A x)."""

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
        """What the product is multiplied by."""
        ...


class PreparedAdapter(Protocol):
    """An adapter in the form that one program's steps take. Immutable: steps that have it keep what it is."""

    @property
    def nbytes(self) -> int:
        """What it takes."""
        ...


@runtime_checkable
class AdaptingProgram(BackendProgram, Protocol):
    """A program whose sequences may have adapters."""

    @property
    def adapter_sites(self) -> Mapping[str, tuple[int, int]]:
        """Return the shape of each weight that adapters may change, by its tensor's name."""
        ...

    def prepare_adapter(self, factors: Mapping[str, LowRankFactors]) -> PreparedAdapter:
        """Return an adapter of this program, from A, B and scale by tensor names of :attr:`adapter_sites` that they fit.

        Raises:
            InvalidInputError: the program is closed.
        """
        ...

    def run(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> Outputs:
        """Do :meth:`BackendProgram.run`; ``batch.adapter`` says which of ``adapters`` each sequence has."""
        ...

    def submit(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> Pending:
        """Do :meth:`BackendProgram.submit`; ``batch.adapter`` says which of ``adapters`` each sequence has."""
        ...


class FileForm(Protocol):
    """How a weight is written into a file, so that loading it gives the backend's form bit for bit."""

    @property
    def takes_range(self) -> bool:
        """Whether a calibrated range of the weight's input stands beside it."""
        ...

    def file_tensors(self, name: str, shape: tuple[int, ...]) -> list[StoredTensor]:
        """Return the tensors that a weight becomes."""
        ...

    def file_arrays(self, weight: npt.NDArray[np.float32], name: str) -> Iterator[npt.NDArray[np.generic]]:
        """Yield their values, in the same order."""
        ...


class Backend(Protocol):
    """Compiles programs for a device."""

    def compile(self, program: Program, source: TensorSource) -> BackendProgram:
        """Return ``program`` ready to run, its weights read from ``source``.

        Raises:
            CheckpointError: a tensor is missing or has another shape than the program says.
        """
        ...

    def open_state(self, specs: Sequence[KvSpec], *, page_tokens: int, pages: int) -> PageStorage:
        """Return pages for the keys and values of a program with ``specs``."""
        ...

    def weight_sizes(self, program: Program, source: TensorSource) -> tuple[WeightSize, ...]:
        """Return what each weight of ``program`` would take, compiled; types and shapes are read, and no weight."""
        ...

    def file_forms(self, program: Program, source: TensorSource) -> Mapping[WeightRef, FileForm]:
        """Return how each weight of ``program`` is written into a file of this backend's precision.

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
