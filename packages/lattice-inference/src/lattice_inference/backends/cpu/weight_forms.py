"""Chooses the form of each weight, and cuts linears whose weights would need several."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lattice_inference.backends.cpu.forms.input_rows import FloatRows, InputRows
from lattice_inference.backends.cpu.forms.registry import FLOAT32, forms_for
from lattice_inference.backends.cpu.forms.weight_form import (
    Bfloat16Products,
    LinearUse,
    Terms,
    WeightForm,
    WeightUse,
)
from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.backends.weight_reading import RepackedWeightsWarning
from lattice_inference.calibration import RANGE_SUFFIX, InputRange
from lattice_inference.checkpoint.tensor_rows import beside
from lattice_inference.errors import CheckpointError, InvalidInputError
from lattice_inference.graph.cutting import cut_linear
from lattice_inference.graph.program import Buffer, Op, Program, Rows, View, WeightRef
from lattice_inference.precision import Activations, Precision

__all__ = ["Bfloat16Products", "WeightForms"]


class WeightForms:
    """The form of each weight.

    A weight has the first form of :mod:`~lattice_inference.backends.cpu.forms.registry` that suits it. Vectors are always
    float32. A linear whose tensors would have several forms becomes several linears.

    Args:
        precision: the precision that the caller wants.
        source: where the weights come from.
        activations: what integer weights are multiplied by.
        input_ranges: ranges by weight name, for weights and rows in int8. The rows that a weight multiplies are rounded
            within its range. A range here replaces the source's range. Without either, each row has its own range.
        products: what bfloat16 weights are multiplied by and how.
        isa: the level of the instruction set that will run the program, if one will.
        is_dry: do not warn of weights that take more memory than in the file, as nothing will be loaded.

    Attributes:
        shared: maps each table that reads a linear's panels to that linear's weight.
    """

    def __init__(
        self,
        precision: Precision,
        source: TensorSource,
        activations: Activations = "int8",
        input_ranges: Mapping[str, InputRange] | None = None,
        products: Bfloat16Products = "float32",
        *,
        isa: str | None = None,
        is_dry: bool = False,
    ) -> None:
        self._terms = Terms(precision, activations, products, isa)
        self._candidates: dict[str | None, tuple[Terms, tuple[WeightForm, ...]]] = {}
        self._input_ranges = {} if input_ranges is None else input_ranges
        self._stored = source if isinstance(source, StoredTensorSource) else None  # checked once, as the check is slow
        self._is_dry = is_dry
        self._producers: dict[Buffer, list[Op]] = defaultdict(list)
        self._forms: dict[WeightRef, WeightForm] = {}
        self._rows: dict[tuple[WeightRef, bool], InputRows] = {}
        self._rounded: set[WeightRef] = set()
        self._results: set[Buffer] = set()
        self._values: set[View] = set()
        self.shared: dict[WeightRef, WeightRef] = {}

    def choose(self, program: Program) -> Program:
        """Choose the form of every weight of ``program``, and return the program.

        A linear of several forms is cut into one linear for each form.
        """
        self._values = {op.inputs[1] for op in program.ops if op.kind == "kv_write"}
        program = replace(program, ops=tuple(part for op in program.ops for part in self._parts(op)))
        self._results = {view.buffer for view in program.outputs.values()}
        readers: dict[WeightRef, list[Op]] = defaultdict(list)
        for op in program.ops:
            for ref in op.weights.values():
                readers[ref].append(op)
            for view in op.outputs:
                self._producers[view.buffer].append(op)
        # rounded probabilities would choose other experts
        routers = {
            ref for op in program.ops if op.kind == "moe" for name, ref in op.weights.items() if "router" in name
        }
        for ref, ops in readers.items():
            if ref.use != "rows":
                self._forms[ref] = FLOAT32 if ref in routers else self._choose(ref, ops)
        linears = {ref.sources: ref for ref in self._forms if ref.use == "linear"}
        for ref, ops in readers.items():
            if ref.use == "rows":
                linear = linears.get(ref.sources)
                form = self._choose(ref, ops, None if linear is None else self._forms[linear])
                self._forms[ref] = form
                if linear is not None and form.in_panels and self._forms[linear] is form:
                    self.shared[ref] = linear
        use = LinearUse(self._terms)  # whether rows are bfloat16 does not depend on the linear
        rounded = {form for form in set(self._forms.values()) if form.input_rows(use) is FloatRows.BFLOAT16}
        self._rounded = {ref for ref, form in self._forms.items() if form in rounded}
        return program

    def __getitem__(self, ref: WeightRef) -> WeightForm:
        return self._forms[ref]

    def join(self, parts: Sequence[WeightRef], joined: WeightRef) -> bool:
        """Give ``joined``, which is made of ``parts``, their form, and return True.

        Return False if the parts have several forms.
        """
        forms = {self._forms[part] for part in parts}
        if len(forms) == 1:
            self._forms[joined] = forms.pop()
            return True
        return False

    def rows_of(self, ref: WeightRef) -> InputRows:
        """Return the rows that a weight of a mixture of experts multiplies."""
        return self._forms[ref].input_rows(LinearUse(self._terms))

    def input_rows(self, op: Op) -> InputRows:
        """Return the rows that a linear takes.

        Raises:
            CheckpointError: the source has an invalid range for them.
        """
        weight = op.weights["weight"]
        output = op.outputs[0]
        is_head = output.rows in (Rows.LOGIT_ROWS, Rows.SEQUENCES)
        gives_logits = is_head and output.is_whole and output.buffer in self._results
        is_exact = (gives_logits or output in self._values) and op.kind == "linear" and "bias" not in op.weights
        rows = self._rows.get((weight, is_exact))
        if rows is None:  # now, while the source is open: a later plan may use the same weights
            rows = self._forms[weight].input_rows(LinearUse(self._terms, is_exact, lambda: self._range(weight)))
            self._rows[weight, is_exact] = rows
        return rows

    def _range(self, weight: WeightRef) -> InputRange | None:
        ranges = [self._range_of_source(name) for name in weight.sources]
        if len(set(ranges)) > 1:
            names = ", ".join(weight.sources)
            raise CheckpointError(f"{names} multiply one input and have different ranges for it: calibrate again")
        return ranges[0]

    def _range_of_source(self, name: str) -> InputRange | None:
        if name in self._input_ranges:
            return self._input_ranges[name]
        beside_it = beside(name, RANGE_SUFFIX, of_rows=False)
        if self._stored is None or beside_it not in self._stored:
            return None
        ends = self._stored.float32(beside_it)
        if ends.shape != (2,):
            raise CheckpointError(f"{beside_it} must hold low and high, not be of shape {ends.shape}")
        try:
            return InputRange(float(ends[0]), float(ends[1]))
        except InvalidInputError as cause:
            raise CheckpointError(f"{beside_it}: {cause}") from cause

    @property
    def products(self) -> Bfloat16Products | None:
        """How rows of bfloat16 are multiplied; None if no linear takes such rows."""
        return self._terms.products if self._rounded else None

    def rounded_inputs(self, op: Op) -> int:
        """Return how many of an op's first inputs are rows of bfloat16."""
        if op.kind.startswith("linear"):
            return int(op.weights["weight"] in self._rounded)
        by_tiles = op.kind == "attention" and op.attributes["mask"] == "bidirectional"
        if by_tiles and self._terms.products == "tiles" and int(op.attributes["head_dim"]) % 32 == 0:
            makers = [maker for view in op.inputs for maker in self._producers[view.buffer]]
            if all(maker.kind.startswith("linear") and self.rounded_inputs(maker) for maker in makers):
                return 3
        return 0

    def _choose(self, ref: WeightRef, readers: list[Op], linear: WeightForm | None = None) -> WeightForm:
        if ref.use == "vector":
            return FLOAT32
        stored, name = None, ref.sources[0]
        if self._stored is not None and self._terms.precision == "stored":
            stored = self._stored.info(name).dtype
        if stored not in self._candidates:
            terms = replace(self._terms, stored=stored)
            self._candidates[stored] = terms, forms_for(terms)
        terms, candidates = self._candidates[stored]
        use = WeightUse(ref, tuple(readers), terms, linear)
        for form in candidates:  # the last suits all
            if form.suits(use):
                break
        if stored in form.repacked and not self._is_dry:
            warnings.warn(
                f"weights in {stored} (the first is {name}) are kept as {form.name}, which takes more memory",
                RepackedWeightsWarning,
                stacklevel=2,
            )
        return form

    def _parts(self, op: Op) -> Iterator[Op]:
        """Yield ``op``, or a linear for each run of tensors of one form.

        A tensor that gives values of attention is a separate run, as its rows are rounded differently.
        """
        weight = op.weights.get("weight")
        source = self._stored
        if weight is None or len(weight.sources) < 2 or source is None:
            yield op
            return
        widths = [source.info(name).shape[0] for name in weight.sources]

        def form_and_rows(part: WeightRef, output: View) -> tuple[WeightForm, InputRows]:
            form = self._choose(part, [op])
            is_exact = output in self._values and "bias" not in op.weights
            return form, form.input_rows(LinearUse(self._terms, is_exact))

        yield from cut_linear(op, widths, form_and_rows)
