"""The reference as a backend: it runs any model op by op in NumPy, in float64.

Tests compare other backends with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from lattice_inference.backends import reference
from lattice_inference.backends.batch_checks import (
    check_adapters,
    check_ids,
    check_inputs,
    check_pages,
    check_slots,
    check_specs,
    check_state,
    id_tables,
    input_shapes,
    refuse_closed,
    refuse_foreign_adapter,
    refuse_foreign_state,
)
from lattice_inference.backends.protocol import (
    BackendProgram,
    Finished,
    LowRankFactors,
    Outputs,
    PageStorage,
    PreparedAdapter,
    WeightSize,
)
from lattice_inference.backends.reference_state import ReferenceState
from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.checkpoint.int8_weights import SCALE_SUFFIX, Int8Matrix
from lattice_inference.errors import CheckpointError, UnsupportedError
from lattice_inference.graph.adapting import add_low_rank, linear_sites
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import KvSpec, Program, RecurrentSpec, WeightRef
from lattice_inference.precision import Activations, Precision

if TYPE_CHECKING:
    from lattice_inference.backends.reference_training import ReferenceTraining
    from lattice_inference.backends.training_protocol import SiteFactors

__all__ = ["ReferenceBackend", "ReferenceProgram"]

_STEP_TOKENS = 512


class ReferenceBackend:
    """Runs programs in NumPy, in float64: it is slow, and each op is a few readable lines.

    Weights keep their stored values. Rows are never rounded to bfloat16 or to integers.

    Args:
        threads: must be None, as NumPy's threads are set elsewhere.
        precision: ``"float32"`` or ``"stored"``; other precisions would round weights.
        activations: must be ``"float32"`` for weights that are stored as integers, unless ``precision`` is ``"float32"``.

    Raises:
        UnsupportedError: an option has another value.
    """

    def __init__(
        self, *, threads: int | None = None, precision: Precision = "float32", activations: Activations | None = None
    ) -> None:
        if threads is not None:
            raise UnsupportedError(f"the reference backend takes no threads={threads}: NumPy decides it; leave it out")
        if precision not in ("float32", "stored"):
            raise UnsupportedError(
                f"the reference backend rounds no weights to {precision}: pass precision='float32' or 'stored'"
            )
        self._rounds_rows = precision == "stored" and activations in (None, "int8")

    def compile(
        self, program: Program, source: TensorSource, *, beside: BackendProgram | None = None
    ) -> ReferenceProgram:
        """Return ``program`` ready to run.

        Raises:
            CheckpointError: a tensor is missing or has another shape than the program says.
            UnsupportedError: a weight is stored as integers, and the options ask for rounded rows.
        """
        known = beside.weights if isinstance(beside, ReferenceProgram) else None
        return ReferenceProgram(program, self._read_all(_weights(program), source, known))

    def compile_training(
        self, programs: Mapping[str, Program], source: TensorSource, factors: Mapping[str, SiteFactors]
    ) -> ReferenceTraining:
        """Return programs for training, ready to run.

        See :class:`~lattice_inference.backends.training_protocol.TrainingBackend`.
        """
        from lattice_inference.backends.reference_training import ReferenceTraining

        weights = dict.fromkeys(ref for program in programs.values() for ref in _weights(program))
        return ReferenceTraining(programs, self._read_all(weights, source), factors)

    def _read_all(
        self,
        refs: Iterable[WeightRef],
        source: TensorSource,
        known: Mapping[str, npt.NDArray[np.float32]] | None = None,
    ) -> dict[str, npt.NDArray[np.float32]]:
        weights: dict[str, npt.NDArray[np.float32]] = dict(known or {})
        for ref in refs:
            parts = [weights[name] if name in weights else self._read(source, ref, name) for name in ref.sources]
            shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
            if shape != ((math.prod(ref.shape[:-1]), ref.shape[-1]) if ref.is_stack else ref.shape):
                raise CheckpointError(f"{ref.text}: of shape {shape}, and the model needs {ref.shape}")
            weights |= zip(ref.sources, parts, strict=True)
            for name in ref.sources:
                source.drop_pages(name)
        return weights

    def _read(self, source: TensorSource, ref: WeightRef, name: str) -> npt.NDArray[np.float32]:
        if ref.use == "vector" or not isinstance(source, StoredTensorSource):
            return source.float32(name)
        stored = source.info(name).dtype
        if self._rounds_rows and (stored == "I8" or stored in BLOCK_FORMATS):
            raise UnsupportedError(
                f"{name} is stored as {stored}, and the reference backend rounds no rows to integers: pass "
                "activations='float32' or precision='float32'"
            )
        if stored == "I8":
            return Int8Matrix(np.asarray(source.array(name), np.int8), source.float32(name + SCALE_SUFFIX)).float32()
        return source.float32(name)

    def open_state(
        self,
        specs: Sequence[KvSpec],
        *,
        page_tokens: int,
        pages: int,
        recurrent_specs: Sequence[RecurrentSpec] = (),
        slots: int = 0,
    ) -> ReferenceState:
        """Return the pages and slots of a program with ``specs`` and ``recurrent_specs``."""
        return ReferenceState(specs, page_tokens=page_tokens, pages=pages, recurrent_specs=recurrent_specs, slots=slots)

    def weight_sizes(self, program: Program, source: TensorSource) -> tuple[WeightSize, ...]:
        """Return the size that each weight of ``program`` would have once compiled."""
        return _sizes(program)

    def file_forms(self, program: Program, source: TensorSource) -> NoReturn:
        """Raise UnsupportedError: only backends that keep other forms write files."""
        raise UnsupportedError("the reference backend writes no files")


@dataclass(frozen=True)
class _Adapter:
    """An adapter of a program, in the form that the caller gave."""

    program: ReferenceProgram
    factors: Mapping[str, LowRankFactors]

    @property
    def nbytes(self) -> int:
        """The size of its matrices in bytes."""
        return sum(site.a.nbytes + site.b.nbytes for site in self.factors.values())


class ReferenceProgram:
    """A program ready to run in NumPy. Thread-safe, as it never changes."""

    def __init__(self, program: Program, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self.program = program
        self.threads: int | None = None
        self.device = "cpu"
        self.device_identity: str | None = None
        self.step_tokens = _STEP_TOKENS
        self.weight_sizes: tuple[WeightSize, ...] = _sizes(program)
        self.arena_bytes = 0
        self.numerics: str | None = "reference"
        self.adapter_sites: Mapping[str, tuple[int, int]] = linear_sites(program)
        self._adapted = add_low_rank(program, self.adapter_sites)
        self.weights: Mapping[str, npt.NDArray[np.float32]] | None = weights
        self._tables = id_tables(program)
        self._inputs = input_shapes(program)

    def prepare_adapter(self, factors: Mapping[str, LowRankFactors]) -> _Adapter:
        """Return an adapter of this program.

        See :class:`~lattice_inference.backends.protocol.AdaptingProgram`.
        """
        if self.weights is None:
            refuse_closed()
        return _Adapter(self, dict(factors))

    def run(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> Outputs:
        """Run a step; see :class:`~lattice_inference.backends.protocol.BackendProgram`."""
        return self.submit(batch, outputs=outputs, state=state, adapters=adapters).wait()

    def submit(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> Finished:
        """Run a step and return its finished result."""
        weights = self.weights
        if weights is None:
            refuse_closed()
        check_state(self.program, batch, has_state=state is not None)
        if state is not None:
            if not isinstance(state, ReferenceState):
                refuse_foreign_state()
            check_specs(self.program, state.specs)
            if self.program.kv_specs:
                check_pages(batch, page_tokens=state.page_tokens, pages=state.pages)
            check_slots(self.program, batch, state.recurrent)
        check_ids(batch, self._tables)
        check_inputs(self._inputs, batch)
        check_adapters(batch, adapters)
        factors = [adapter.factors for adapter in adapters if isinstance(adapter, _Adapter) and adapter.program is self]
        if len(factors) < len(adapters):
            refuse_foreign_adapter()
        with np.errstate(all="ignore"):  # an overflow is refused in the results
            program = self._adapted if factors else self.program
            results = reference.run(program, weights, batch, state=state, adapters=factors)
        return Finished(
            {
                name: np.ascontiguousarray(array, np.float32)
                for name, array in results.items()
                if outputs is None or name in outputs
            }
        )

    def trim(self) -> None:
        """Do nothing: steps keep no memory."""

    def close(self) -> None:
        """Release the weights."""
        self.weights = None


def _weights(program: Program) -> Iterator[WeightRef]:
    yield from dict.fromkeys(ref for op in program.ops for ref in op.weights.values())


def _sizes(program: Program) -> tuple[WeightSize, ...]:
    shapes = {ref.text if ref.is_stack else ", ".join(ref.sources): ref.shape for ref in _weights(program)}
    return tuple(WeightSize(name, "float32", 4 * math.prod(shape)) for name, shape in shapes.items())
