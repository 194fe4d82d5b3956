"""Compiles programs for the CPU and runs them.

Weights are packed once. A step is one call without the GIL, or several calls if it is long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_choice
from lattice_inference.backends.batch_checks import (
    check_adapters,
    check_slots,
    check_specs,
    check_state,
    refuse_closed,
    refuse_foreign_adapter,
    refuse_foreign_state,
    refuse_id,
    refuse_non_finite,
)
from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.adapter import CpuAdapter
from lattice_inference.backends.cpu.arena import ArenaPool
from lattice_inference.backends.cpu.expert_ops import expand_experts
from lattice_inference.backends.cpu.forms.block_packing import reading_first_weights
from lattice_inference.backends.cpu.forms.input_rows import IntegerRows
from lattice_inference.backends.cpu.integer_inputs import quantize_inputs
from lattice_inference.backends.cpu.keys_for_attention import hand_over_keys
from lattice_inference.backends.cpu.low_rank_groups import join_low_rank
from lattice_inference.backends.cpu.lowering import IN_PLACE
from lattice_inference.backends.cpu.rounded_inputs import round_inputs
from lattice_inference.backends.cpu.state import CpuState
from lattice_inference.backends.cpu.step_memory import step_memory
from lattice_inference.backends.cpu.step_outputs import calls_of, copy_outputs
from lattice_inference.backends.cpu.step_plan import StepPlan
from lattice_inference.backends.cpu.weight_forms import Bfloat16Products, WeightForms
from lattice_inference.backends.cpu.weights import ResidentWeights, WeightLayout
from lattice_inference.backends.protocol import (
    BackendProgram,
    FileForm,
    Finished,
    LowRankFactors,
    Outputs,
    PageStorage,
    PreparedAdapter,
    WeightSize,
)
from lattice_inference.backends.tensor_source import TensorSource
from lattice_inference.calibration import InputRange
from lattice_inference.cancellation import check_cancelled
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.graph.adapting import add_low_rank, linear_sites
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.fusion import BIT_NEUTRAL_RULES, Fusion, fuse
from lattice_inference.graph.memory import plan_memory
from lattice_inference.graph.program import KvSpec, Program, RecurrentSpec, Rows, WeightRef
from lattice_inference.precision import Activations, Precision, check_precision
from lattice_inference.process_lock import ProcessLock
from lattice_inference.thread_count import check_thread_count

if TYPE_CHECKING:
    from lattice_inference.backends.cpu.training import CpuTraining
    from lattice_inference.backends.training_protocol import SiteFactors

__all__ = ["CpuBackend", "CpuProgram", "TensorSource"]

_WHOLE: Sequence[tuple[int, int | None]] = ((0, None),)

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


class CpuBackend:
    """Runs programs on this machine's CPU.

    Args:
        isa: ``"baseline"``, ``"avx2"``, ``"avx512"`` or ``"neon"``; by default ``LATTICE_ISA``, else the best level here.
        fused: apply the fusions. They change no bit of a result. Without them each op of the model is a separate pass.
        threads: the most threads a step may use, 1 to 256; by default all of the process's pool.
        precision: the type of linear weights and embedding tables. Weights of 16 bits are widened where they are used, so
            results equal those of a float32 model with rounded weights, bit for bit. For bfloat16, see
            ``bfloat16_products``. With int8, linears over tokens multiply integers (:mod:`int8_weights`,
            kernels/rows/integer_rows.h). Linears over whole sequences cost almost nothing and stay in float32.
            With ``"stored"``, weights keep the source's type, block formats included.
        activations: what int8 and block-quantized weights are multiplied by. ``"int8"`` rounds rows to integers.
            ``"float32"`` keeps floats and widens weights where they are used; it is slower, and exact in the weights'
            values. With ``"float32"``, bfloat16 weights are widened too.
        input_ranges: see :class:`WeightForms`.
        dot: whether integer kernels use the CPU's dot product instruction (VNNI, SDOT). By default they do if the CPU has
            one. The choice changes no bit.
        tiles: whether kernels that can use the CPU's matrix tiles (AMX) do so. By default they do if the CPU has tiles and
            ``dot`` is not False. Linears with int8 weights give the same bits either way.
        bfloat16_products: how linears with bfloat16 weights multiply. By default they take the best way that the CPU has
            and that ``dot`` and ``tiles`` allow. If there is none, weights are widened. The choice changes the last bits.
        tile_sizes: sizes that replace the defaults of the instruction set. They say how work is cut and change no bit;
            kernels/tile_table.h explains them.

    Raises:
        InvalidInputError: ``threads`` is out of its range.
        ValueError: this CPU cannot run ``isa`` or these products. ``compile`` raises it for an unknown tile size or a
            value out of range.
        UnsupportedError: there is no such precision, or no such ``activations``.
    """

    def __init__(
        self,
        *,
        isa: str | None = None,
        fused: bool = True,
        threads: int | None = None,
        precision: Precision = "float32",
        activations: Activations = "int8",
        input_ranges: Mapping[str, InputRange] | None = None,
        dot: bool | None = None,
        tiles: bool | None = None,
        bfloat16_products: Bfloat16Products | None = None,
        tile_sizes: Mapping[str, int] | None = None,
    ) -> None:
        check_precision(precision)
        check_choice("activations", activations, get_args(Activations), UnsupportedError)
        self.isa: str = _cpu.select_isa(isa)
        self.fused = fused
        self.threads: int | None = None if threads is None else check_thread_count(threads)
        self.precision: Precision = precision
        self.activations: Activations = activations
        self.input_ranges = input_ranges
        self.dot = dot
        self.tiles = tiles
        self.bfloat16_products = self._choose_products(bfloat16_products)
        self.tile_sizes: dict[str, int] = dict(tile_sizes or {})

    def _choose_products(self, asked: Bfloat16Products | None) -> Bfloat16Products:
        if asked == "float32":
            return asked
        present = _cpu.bfloat16_products(self.isa)
        if asked is not None:
            if asked not in present:
                raise ValueError(f"{self.isa} multiplies bfloat16 here by {', '.join(present)}, not by {asked!r}")
            return asked
        if self.activations == "float32":
            return "float32"
        refused = {"widened"} | ({"dot", "tiles"} if self.dot is False else {"tiles"} if self.tiles is False else set())
        return next((products for products in reversed(present) if products not in refused), "float32")

    def compile(self, program: Program, source: TensorSource, *, beside: BackendProgram | None = None) -> CpuProgram:
        """Return ``program`` ready to run, with packed weights from ``source``.

        See the protocol ``Backend``.

        Raises:
            CheckpointError: a tensor is missing or has another shape than the program says.
        """
        forms = self._forms(source)
        with reading_first_weights(program, source):
            chosen = forms.choose(fuse(program, BIT_NEUTRAL_RULES if self.fused else ()))
            narrow = self._narrow_inputs(chosen, forms)
        weights = ResidentWeights(narrow, source, forms, beside.weights if isinstance(beside, CpuProgram) else None)
        sites = linear_sites(program)

        def adapted() -> StepPlan:
            # this comes after fusion and the choice of forms, so that both plans read the same weights
            return StepPlan(self._narrow_inputs(add_low_rank(chosen, sites), forms), weights, self._native_plan())

        return CpuProgram(StepPlan(narrow, weights, self._native_plan()), weights, self.threads, sites, adapted)

    def compile_training(
        self, programs: Mapping[str, Program], source: TensorSource, factors: Mapping[str, SiteFactors]
    ) -> CpuTraining:
        """Return programs for training.

        See :class:`~lattice_inference.backends.training_protocol.TrainingBackend`.

        Linears with integer weights multiply rows of floats: ``activations`` must be ``"float32"`` for them.
        """
        from lattice_inference.backends.cpu.training import CpuFactors, CpuTraining, training_plan

        forms = self._forms(source)
        # linears stay apart: the reverse reads the weight of each, and nothing is kept twice
        rules = [rule for rule in BIT_NEUTRAL_RULES if isinstance(rule, Fusion)] if self.fused else []
        fused = {name: fuse(program, rules) for name, program in programs.items()}
        whole = _all_ops(fused.values())
        with reading_first_weights(whole, source):
            if len(forms.choose(whole).ops) > len(whole.ops):
                raise UnsupportedError("a linear over tensors of several types cannot be trained")
            if any(isinstance(forms.input_rows(op), IntegerRows) for op in whole.ops if op.kind.startswith("linear")):
                raise UnsupportedError("training multiplies rows of floats: activations must be 'float32'")
            narrow = {name: self._narrow_inputs(program, forms) for name, program in fused.items()}
        weights = ResidentWeights(_all_ops(narrow.values()), source, forms)
        plans = {
            name: training_plan(program, weights, self._native_plan(), factors) for name, program in narrow.items()
        }
        return CpuTraining(plans, weights, CpuFactors(factors), self.threads)

    def _narrow_inputs(self, chosen: Program, forms: WeightForms) -> Program:
        """Round each input of a product once, in the op that makes it if possible."""
        quantized = quantize_inputs(chosen, forms.input_rows, in_norms=self.fused)
        rounded = round_inputs(quantized, forms.rounded_inputs, _cpu.bfloat16_row_floats, in_producers=self.fused)
        return expand_experts(hand_over_keys(rounded) if self.fused else rounded, forms)

    def _native_plan(self) -> _cpu.Plan:
        products = "widened" if self.bfloat16_products == "float32" else self.bfloat16_products
        return _cpu.Plan(self.isa, self.dot, self.tiles, products, self.tile_sizes)

    def weight_sizes(self, program: Program, source: TensorSource) -> tuple[WeightSize, ...]:
        """Return the size that each weight of ``program`` would have once compiled.

        It reads types and shapes, but no weight.
        """
        forms = self._forms(source, is_dry=True)
        return WeightLayout(forms.choose(fuse(program, BIT_NEUTRAL_RULES if self.fused else ())), forms).sizes()

    def token_bytes(self, program: Program, source: TensorSource) -> int:
        """Return what a token of a step takes in the arena, beside the scratch of threads.

        As :meth:`weight_sizes`, it reads no weight.
        """
        forms = self._forms(source, is_dry=True)
        chosen = forms.choose(fuse(program, BIT_NEUTRAL_RULES if self.fused else ()))
        joined, _ = join_low_rank(self._narrow_inputs(chosen, forms))
        slots = plan_memory(joined, IN_PLACE).slots
        return 4 * sum(slot.width for slot in slots if slot.rows is Rows.TOKENS)

    def _forms(self, source: TensorSource, *, is_dry: bool = False) -> WeightForms:
        products = self.bfloat16_products
        return WeightForms(
            self.precision, source, self.activations, self.input_ranges, products, isa=self.isa, is_dry=is_dry
        )

    def file_forms(self, program: Program, source: TensorSource) -> Mapping[WeightRef, FileForm]:
        """Return how to write each weight of ``program`` into a file of this precision.

        The forms do not depend on the CPU that will read the file.
        """
        forms = WeightForms(self.precision, source)
        forms.choose(program)
        return {ref: forms[ref] for op in program.ops for ref in op.weights.values()}

    @staticmethod
    def open_state(
        specs: Sequence[KvSpec],
        *,
        page_tokens: int,
        pages: int,
        recurrent_specs: Sequence[RecurrentSpec] = (),
        slots: int = 0,
    ) -> CpuState:
        """Return the pages and slots of a program with these specs; see :class:`CpuState`."""
        return CpuState(specs, page_tokens=page_tokens, pages=pages, recurrent_specs=recurrent_specs, slots=slots)


class CpuProgram:
    """A program ready to run. Thread-safe.

    Concurrent runs take turns on the pool, and each has separate memory.

    Attributes:
        adapter_sites: the shape of each weight that adapters may change, by its tensor's name.
        weights: its weights, which other programs may share; None once it is closed.
        numerics: how rows of bfloat16 are multiplied, such as ``"avx512-tiles"``. It decides the last bits of results.
            None if the program rounds no rows to bfloat16.
        step_tokens: the best number of tokens for a step. It is large enough to keep every core busy. It is small enough
            for intermediate results to stay in cache, and for a cancellation to be answered soon.
    """

    def __init__(
        self,
        plan: StepPlan,
        weights: ResidentWeights,
        threads: int | None,
        sites: Mapping[str, tuple[int, int]],
        adapted: Callable[[], StepPlan],
    ) -> None:
        self.program: Program = plan.program
        self.weights: ResidentWeights | None = weights
        self.threads = threads
        self.adapter_sites = sites
        self.device = "cpu"
        self.device_identity: str | None = None
        self._arenas = ArenaPool()
        self._plan: StepPlan | None = plan
        self._adapted: StepPlan | None = None
        self._compile_adapted: Callable[[], StepPlan] | None = adapted
        self._lock = ProcessLock()
        self._fitting_specs: tuple[KvSpec, ...] | None = None  # of the last state that fits
        self.weight_sizes: tuple[WeightSize, ...] = weights.sizes()
        products = weights.forms.products
        self.numerics: str | None = f"{plan.native.isa}-{products}" if products else None
        self.step_tokens: int = plan.native.step_tokens

    @property
    def arena_bytes(self) -> int:
        """Bytes of memory that stay for the activations of later runs."""
        return self._arenas.idle_bytes

    def prepare_adapter(self, factors: Mapping[str, LowRankFactors]) -> CpuAdapter:
        """Return an adapter for steps of this program; see the protocol ``AdaptingProgram``."""
        with self._lock:  # the first adapter makes the plan that has places for adapters
            if self._adapted is None:
                compile_adapted = self._compile_adapted
                if compile_adapted is None:
                    refuse_closed()
                self._adapted = compile_adapted()
            plan = self._adapted
        return CpuAdapter(plan.native, plan.groups, factors)

    def run(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> Outputs:
        """Run a step and return its outputs; see :meth:`submit`.

        Raises:
            NonFiniteError: an output holds NaN or infinity; its ``rows`` are rows of that output.
        """
        results = self._compute(batch, outputs, state, adapters)
        refuse_non_finite(results)
        return results

    def submit(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> Finished:
        """Run a step and return its finished result: the outputs for ``batch`` in new arrays.

        Args:
            batch: the packed batch; for a program that keeps keys and values with ``context_lengths`` and ``block_table``.
            outputs: which outputs are wanted; all of them by default.
            state: the pages that ``block_table`` names. The step writes the batch's keys and values there.
            adapters: the adapters that ``batch.adapter`` numbers. Without any, the step runs the plain plan.

        Raises:
            InvalidInputError: the program is closed, an id lies outside its table, or the batch carries state that the
                program does not keep. Also if pages do not exist or are too few, or ``state`` or an adapter belongs to
                another program.
        """
        return Finished(self._compute(batch, outputs, state, adapters))

    def _compute(
        self,
        batch: Batch,
        outputs: Collection[str] | None,
        state: PageStorage | None,
        adapters: Sequence[PreparedAdapter],
    ) -> Outputs:
        plan = self._adapted if adapters else self._plan
        if self._plan is None or plan is None:
            return refuse_foreign_adapter() if self._plan is not None else refuse_closed()
        native = plan.native
        step_adapters = _step_adapters(native, batch, adapters) if adapters or batch.adapter is not None else None
        if state is not None and not isinstance(state, CpuState):
            refuse_foreign_state()
        context, pages, cu_pages = self._paged_inputs(batch, state) or (None, None, None)
        recurrent = None
        if self.program.recurrent_specs:
            recurrent, context = self._slots(batch, state), batch.context_lengths
        least_scratch = 0 if step_adapters is None else step_adapters.scratch_bytes(batch.tokens)
        memory = step_memory(plan, batch, self.threads, context=context, least_scratch=least_scratch)
        arena = self._arenas.take(memory.nbytes)
        try:
            step = memory.step(
                batch,
                arena,
                kv=None if state is None or pages is None else state.kv,
                context=context,
                pages=pages,
                cu_pages=cu_pages,
                adapters=step_adapters,
                inputs=plan.checked_inputs(batch) if plan.inputs or batch.inputs is not None else (),
                recurrent=recurrent,
                read_slots=batch.read_slots,
                write_slots=batch.write_slots,
            )
            for first, end in _WHOLE if batch.tokens <= self.step_tokens else calls_of(len(native)):
                outside = native.run(step, first, end)
                if outside is not None:
                    refuse_id(batch, *outside)
                if end is not None:
                    check_cancelled()
            results = copy_outputs(plan, outputs, arena, memory.slot_offsets, memory.counts)
        finally:
            self._arenas.give_back(arena)
        return results

    def trim(self) -> None:
        """Return memory that steps no longer use to the operating system.

        The next step allocates it again.
        """
        self._arenas.trim()
        _cpu.trim_heap()

    def close(self) -> None:
        """Release the weights; a running step keeps them until it ends.

        Closing twice is harmless.
        """
        with self._lock:
            self._plan = self._adapted = self._compile_adapted = self.weights = None
        self._arenas.trim()

    def _paged_inputs(self, batch: Batch, state: CpuState | None) -> tuple[Int32Array, Int32Array, Int32Array] | None:
        """Return context lengths, page numbers and the bounds of each sequence's page numbers.

        Return None for a program without state.
        """
        keeps_state = bool(self.program.kv_specs)
        if not keeps_state and self.program.recurrent_specs:
            return None
        if not keeps_state and state is None and not batch.carries_state:
            return None
        if not keeps_state or state is None or batch.context_lengths is None or batch.block_table is None:
            check_state(self.program, batch, has_state=state is not None)
            return None
        if batch.read_slots is not None and not self.program.recurrent_specs:
            check_state(self.program, batch, has_state=True)
        if state.specs is not self._fitting_specs:
            check_specs(self.program, state.specs)
            self._fitting_specs = state.specs
        bounds = np.array([0, *accumulate(map(len, batch.block_table))], np.int32)
        pages = np.ascontiguousarray(np.concatenate(batch.block_table), np.int32)
        try:
            state.kv.check(batch.cu_seqlens, batch.context_lengths, pages, bounds)
        except InvalidInputError:
            raise
        except ValueError as error:
            raise InvalidInputError(f"block_table: {error}") from error
        return batch.context_lengths, pages, bounds

    def _slots(self, batch: Batch, state: CpuState | None) -> _cpu.RecurrentSlots:
        """Return the slots that the batch names, for a program with recurrent layers."""
        check_state(self.program, batch, has_state=state is not None)
        storage = None if state is None else state.recurrent
        check_slots(self.program, batch, storage)
        assert storage is not None
        return storage.native


def _step_adapters(plan: _cpu.Plan, batch: Batch, adapters: Sequence[PreparedAdapter]) -> _cpu.StepAdapters | None:
    check_adapters(batch, adapters)
    if not adapters:
        return None
    assert batch.adapter is not None
    natives = [adapter.native for adapter in adapters if isinstance(adapter, CpuAdapter) and adapter.plan is plan]
    if len(natives) < len(adapters):
        refuse_foreign_adapter()
    return _cpu.StepAdapters(tuple(natives), batch.adapter, batch.cu_seqlens, batch.logit_rows)


def _all_ops(programs: Iterable[Program]) -> Program:
    """Return a program with the ops of all: what reads weights."""
    return Program(tuple([op for program in programs for op in program.ops]), {})
