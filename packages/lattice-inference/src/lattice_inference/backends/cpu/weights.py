"""The weights of a compiled program on the CPU.

They are read from a checkpoint once, rounded and packed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.weight_form import PackTogether, PlacedWeight, StoredArray, WeightForm
from lattice_inference.backends.cpu.weight_forms import WeightForms
from lattice_inference.backends.protocol import WeightSize
from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.graph.memory import ALIGNMENT
from lattice_inference.graph.program import Program, WeightRef

__all__ = ["ResidentWeights", "StoredTensorSource", "TensorSource", "WeightLayout", "matrix_bytes"]


class WeightLayout:
    """The place of each weight of a program, which follows from shapes and forms alone.

    Weights in the forms of ``elsewhere`` have no place.

    Attributes:
        weights: each weight once, without weights that share the panels of another.
        offsets: the byte offset of the panels, for each weight in panels.
        nbytes: the bytes of all panels.
    """

    def __init__(
        self, program: Program, forms: WeightForms, elsewhere: Mapping[WeightRef, WeightForm] | tuple[()] = ()
    ) -> None:
        refs = list(dict.fromkeys([ref for op in program.ops for ref in op.weights.values()]))
        if elsewhere:
            refs = [ref for ref in refs if elsewhere.get(ref) is not forms[ref]]
        self.weights: list[PlacedWeight] = []
        self._nbytes: list[int] = []  # of each weight
        self.offsets: dict[WeightRef, int] = {}
        self.nbytes: int = 0
        for ref in refs:
            if ref in forms.shared:
                continue
            form = forms[ref]
            if ref.use == "linear" or form.in_panels:
                self.offsets[ref] = self.nbytes
                self._nbytes.append(_panel_bytes(ref, form))
                self.nbytes += self._nbytes[-1]
            else:
                self._nbytes.append(_row_bytes(ref, form))
            self.weights.append(PlacedWeight(ref, form, self.offsets.get(ref)))
        self.offsets |= {ref: self.offsets[forms.shared[ref]] for ref in refs if forms.shared.get(ref) in self.offsets}

    def sizes(self) -> tuple[WeightSize, ...]:
        """Return the size of each weight, those in panels first; shared panels count once."""
        in_panels: list[WeightSize] = []
        others: list[WeightSize] = []
        for weight, nbytes in zip(self.weights, self._nbytes, strict=True):
            size = WeightSize(weight.name, weight.form.dtype, nbytes)
            (others if weight.offset is None else in_panels).append(size)
        return (*in_panels, *others)


class ResidentWeights:
    """The weights of a program in memory, each as panels, rows or a vector.

    Args:
        program: the program, in the form in which it is run.
        source: where the weights come from.
        forms: the form of each weight.
        beside: the weights of another program; those that both have in one form are not read again.

    Attributes:
        forms: the form of each weight.
        memory: the memory that holds the panels.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the program says, or a value that its form cannot hold.
    """

    def __init__(
        self, program: Program, source: TensorSource, forms: WeightForms, beside: ResidentWeights | None = None
    ) -> None:
        self.forms = forms
        self._beside = beside
        self._layout = WeightLayout(program, forms, () if beside is None else beside.held())
        self.memory: _cpu.Memory = _cpu.Memory(self._layout.nbytes, huge_pages=self._layout.nbytes >= _cpu.HUGE_PAGE)
        self._arrays: dict[WeightRef, StoredArray] = {}
        together: dict[PackTogether, list[PlacedWeight]] = {}
        matrices: list[PlacedWeight] = []
        for weight in self._layout.weights:
            matrices += _matrices(weight) if weight.ref.is_stack else (weight,)
        for weight in matrices:
            if weight.form.pack_together is not None:
                together.setdefault(weight.form.pack_together, []).append(weight)
        for pack, weights in together.items():
            assert isinstance(source, StoredTensorSource)
            pack(weights, source, self.memory)
        for weight in matrices:
            if weight.form.pack_together is None:
                rows = weight.form.keep(weight, source, self.memory)
                if rows is not None:
                    self._arrays[weight.ref] = rows
                for name in weight.ref.sources:
                    source.drop_pages(name)

    def __getitem__(self, ref: WeightRef) -> StoredArray | tuple[_cpu.Memory, int]:
        """Return the memory and byte offset of a weight's panels, or the array of another."""
        if ref in self._layout.offsets:
            return self.memory, self._layout.offsets[ref]
        return self._arrays[ref] if ref in self._arrays or self._beside is None else self._beside[ref]

    def array(self, ref: WeightRef) -> StoredArray:
        """Return a weight that is not packed."""
        return self._arrays[ref] if ref in self._arrays or self._beside is None else self._beside.array(ref)

    def form(self, ref: WeightRef) -> WeightForm:
        """Return the form of a weight."""
        return self.forms[ref]

    def held(self) -> Mapping[WeightRef, WeightForm]:
        """Return the form of each weight that is held here."""
        return {ref: self.forms[ref] for ref in (*self._layout.offsets, *self._arrays)}

    def sizes(self) -> tuple[WeightSize, ...]:
        """Return the size of each weight; shared panels count once."""
        return self._layout.sizes()


def matrix_bytes(ref: WeightRef, form: WeightForm) -> int:
    """Return the bytes of a weight in panels, or of each matrix of a stack."""
    columns, depth = ref.shape[-2:]
    nbytes = -(-columns // _cpu.PANEL) * form.panel_bytes(depth)
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _panel_bytes(ref: WeightRef, form: WeightForm) -> int:
    return math.prod(ref.shape[:-2]) * matrix_bytes(ref, form)


def _matrices(weight: PlacedWeight) -> Iterator[PlacedWeight]:
    """Yield each matrix of a stack."""
    step = matrix_bytes(weight.ref, weight.form)
    for number, ref in enumerate(weight.ref.matrices()):
        yield PlacedWeight(ref, weight.form, weight.panels + number * step)


def _row_bytes(ref: WeightRef, form: WeightForm) -> int:
    return math.prod(ref.shape[:-1]) * form.row_bytes(ref.shape[-1])
