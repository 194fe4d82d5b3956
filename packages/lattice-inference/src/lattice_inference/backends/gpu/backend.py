"""Compiles programs for a GPU device; what a kind of device adds is the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lattice_inference.backends.gpu.device import GpuDevice
from lattice_inference.backends.gpu.expert_ops import expand_experts
from lattice_inference.backends.gpu.fusing import join_gates, join_rope_and_write
from lattice_inference.backends.gpu.lowering import IN_PLACE, check_ops, lower
from lattice_inference.backends.gpu.mapped_weights import maps_weights
from lattice_inference.backends.gpu.plan import GpuPlan
from lattice_inference.backends.gpu.program import GpuProgram
from lattice_inference.backends.gpu.state import GpuState
from lattice_inference.backends.gpu.weights import GpuWeightForms, GpuWeights
from lattice_inference.backends.protocol import BackendProgram, FileForm, WeightSize
from lattice_inference.backends.tensor_source import TensorSource
from lattice_inference.backends.weight_reading import read_float32
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.graph.adapting import add_low_rank, linear_sites
from lattice_inference.graph.compile import CompiledProgram, compile_program
from lattice_inference.graph.fusion import BIT_NEUTRAL_RULES, fuse
from lattice_inference.graph.program import KvSpec, Program, RecurrentSpec, WeightRef
from lattice_inference.precision import Activations, Precision, check_precision
from lattice_inference.thread_count import check_thread_count

__all__ = ["GpuBackend"]


class GpuBackend:
    """Runs programs on a GPU.

    Args:
        device: what runs them.
        fused: apply the fusions, which change no byte of a result on one device.
        threads: the most threads that work beside the device may use, such as cutting texts into tokens.
        precision: what weights are kept in: as on the CPU, but for ``"int8"``, which would round rows too.
        activations: what quantized weights are multiplied by: ``"float32"``, which is the default.
        max_binding_bytes: weights above this are cut by output rows; by default what the device binds.
        subgroups: whether kernels add up over subgroups; by default if the device has them. It changes last bits.

    Raises:
        UnsupportedError: ``precision`` or ``activations`` is ``"int8"``.
        InvalidInputError: ``max_binding_bytes`` is none that the device has.
    """

    def __init__(
        self,
        device: GpuDevice,
        *,
        fused: bool = True,
        threads: int | None = None,
        precision: Precision = "float32",
        activations: Activations | None = None,
        max_binding_bytes: int | None = None,
        subgroups: bool | None = None,
    ) -> None:
        check_precision(precision)
        kind = device.description.kind
        if precision == "int8":
            raise UnsupportedError(
                f"device {kind!r} rounds no rows to integers, so precision='int8' is not built for it: pass 'stored', "
                "'bfloat16', 'float16' or 'float32', or device='cpu'"
            )
        if activations == "int8":
            raise UnsupportedError(
                f"device {kind!r} rounds no rows to integers: leave activations out, or pass activations='float32'"
            )
        if max_binding_bytes is not None and not 0 < max_binding_bytes <= device.max_binding_bytes:
            raise InvalidInputError(
                f"max_binding_bytes must be from 1 to the device's {device.max_binding_bytes}, not {max_binding_bytes}"
            )
        if subgroups and not device.has_subgroups:
            raise UnsupportedError(f"{device.description.name} has no subgroups")
        self.device = device
        self._subgroups = device.has_subgroups if subgroups is None else subgroups
        self.fused = fused
        self.threads = None if threads is None else check_thread_count(threads)
        self.precision: Precision = precision
        self._limit = max_binding_bytes or device.max_binding_bytes

    def compile(self, program: Program, source: TensorSource, *, beside: BackendProgram | None = None) -> GpuProgram:
        """Return ``program`` ready to run, its weights uploaded from ``source``.

        Programs share no weights.

        Raises:
            CheckpointError: a tensor is missing or has another shape than the program says.
            UnsupportedError: no kernel computes one of its ops.
            DeviceMemoryError: the device has no room for the weights.
        """
        self.check(program)
        forms = GpuWeightForms(self.precision, source, are_mapped=maps_weights(self.device))
        sites = linear_sites(program)
        plain = self._compiled(program, forms, {})
        weights = GpuWeights(plain.program, source, forms, self.device, self._limit)

        def plan(compiled: CompiledProgram) -> GpuPlan:
            check_ops(compiled.program)
            is_software = self.device.description.is_software
            lowered = lower(
                compiled.program,
                weights,
                has_subgroups=self._subgroups,
                is_software=is_software,
                few_columns=self.device.few_columns,
            )
            frequencies = [read_float32(ref, source) for ref, _ in lowered.angles]
            return GpuPlan(self.device, compiled, lowered, frequencies)

        return GpuProgram(
            self.device,
            plan(plain),
            weights.sizes(),
            self.threads,
            sites,
            lambda: plan(self._compiled(program, forms, sites)),
        )

    @staticmethod
    def check(program: Program) -> None:
        """Raise UnsupportedError for an op, or a size of one, that no kernel computes."""
        check_ops(expand_experts(program))

    def _compiled(
        self, program: Program, forms: GpuWeightForms, sites: Mapping[str, tuple[int, int]]
    ) -> CompiledProgram:
        """Return ``program`` fused, with places for the adapters of ``sites``.

        Whatever the sites, it reads the same weights.
        """

        def rewrite(program: Program) -> Program:
            cut = expand_experts(add_low_rank(forms.cut(program), sites))
            if not self.fused:
                return cut
            return join_gates(join_rope_and_write(cut), lambda ref: forms.nbytes(ref) <= self._limit)

        return compile_program(
            program, rules=BIT_NEUTRAL_RULES if self.fused else (), rewrite=rewrite, in_place=IN_PLACE
        )

    def open_state(
        self,
        specs: Sequence[KvSpec],
        *,
        page_tokens: int,
        pages: int,
        recurrent_specs: Sequence[RecurrentSpec] = (),
        slots: int = 0,
    ) -> GpuState:
        """Return the pages and slots of a program with these specs.

        Raises:
            UnsupportedError: a recurrent layer has heads that are wider than the kernels take.
        """
        return GpuState(
            self.device,
            specs,
            page_tokens=page_tokens,
            pages=pages,
            recurrent_specs=recurrent_specs,
            slots=slots,
        )

    def weight_sizes(self, program: Program, source: TensorSource) -> tuple[WeightSize, ...]:
        """Return what each weight of ``program`` would take on the device; no weight is read."""
        forms = GpuWeightForms(self.precision, source, are_mapped=maps_weights(self.device))
        fused = expand_experts(forms.cut(fuse(program, BIT_NEUTRAL_RULES if self.fused else ())))
        return GpuWeights(fused, source, forms, None, self._limit).sizes()

    def file_forms(self, program: Program, source: TensorSource) -> Mapping[WeightRef, FileForm]:
        """Raise UnsupportedError: files are written by the CPU backend."""
        raise UnsupportedError("GPU backends write no files: use device='cpu'")
