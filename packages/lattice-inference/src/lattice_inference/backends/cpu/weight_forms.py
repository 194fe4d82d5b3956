"""Which form each weight of a program is kept in, and programs rewritten where one linear would need two."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Literal

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.integer_inputs import IntegerForm
from lattice_inference.backends.cpu.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.errors import CheckpointError, InvalidInputError
from lattice_inference.graph.program import Buffer, Op, Program, Rows, View, WeightRef
from lattice_inference.input_range import RANGE_SUFFIX, InputRange
from lattice_inference.precision import Precision

__all__ = ["PANEL_FORMS", "Activations", "Bfloat16Products", "RepackedWeightsWarning", "WeightForms"]

Activations = Literal["int8", "float32"]
"""What a linear with integer weights multiplies them by."""

Bfloat16Products = Literal["float32", "widened", "dot", "tiles"]
"""How linears with bfloat16 weights multiply.

``"float32"``: rows stay float32, weights are widened where they are used. The others round rows to bfloat16 and multiply
them by dot product instructions (``"dot"``: AVX512-BF16, FEAT_BF16), by matrix tiles (``"tiles"``: AMX), which attention
does, too, or without either (``"widened"``: any CPU, slowly).
"""

PANEL_FORMS = frozenset({"int8", *_cpu.BLOCK_FORMATS})
"""Forms whose tables lie in the panels of a linear."""

_STORED_FORMS: Mapping[str, str] = {"F16": "float16", "BF16": "bfloat16", "I8": "int8"}


class RepackedWeightsWarning(UserWarning):
    """A tensor's block format has no kernel of its own, so that it takes another form, and more memory, once loaded."""


class WeightForms:
    """The form of each weight: ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"int8"``, or a block format of ggml.

    Rows that block-quantized weights are multiplied by are rounded once, but where much hangs on a small part of the
    products: for the logits, which are the result itself, and for the values of attention, which all later tokens add up.
    There what rounding left out is rounded and multiplied too (of linears without bias).

    Vectors are always float32. Under the precision ``"stored"`` everything else stays what the source has; block formats
    without a kernel become Q8_0. What is not int8 under the precision ``"int8"``:

    * weights that multiply whole sequences only, the heads on top of a model: they are used once a text, and what they
      compute is the result itself (float32);
    * embedding tables, whose rounding to int8 would cost as much quality as that of all linears (float16), unless the same
      tensor is a linear's weight, too: a table then reads the linear's panels.

    Where rows are rounded to bfloat16, linears over tokens with bfloat16 weights have them in pairs
    (``"bfloat16_pairs"``): the same values, as the instructions take them. Those over whole sequences and logits, and
    linears whose weight is a table too, are not rounded: they keep ``"bfloat16"``.

    Args:
        precision: what the caller asks for.
        source: where the weights come from.
        activations: what integer weights are multiplied by.
        input_ranges: by a weight's name, the range that the rows it is multiplied by are rounded within, where weight and
            rows are int8; it counts before one that the source has. Without either each row has its own range.
        products: what bfloat16 weights are multiplied by and how.

    Attributes:
        twins: for a table that reads a linear's panels, that linear's weight.
    """

    def __init__(
        self,
        precision: Precision,
        source: TensorSource,
        activations: Activations = "int8",
        input_ranges: Mapping[str, InputRange] | None = None,
        products: Bfloat16Products = "float32",
    ) -> None:
        self._precision = precision
        self._input_ranges = {} if input_ranges is None else input_ranges
        self._stored = source if isinstance(source, StoredTensorSource) else None  # asked once: it takes its time
        self._activations = activations
        self._products = products
        self._producers: dict[Buffer, list[Op]] = defaultdict(list)
        self._forms: dict[WeightRef, str] = {}
        self._results: set[Buffer] = set()
        self._values: set[View] = set()
        self.twins: dict[WeightRef, WeightRef] = {}

    def choose(self, program: Program) -> Program:
        """Decide for every weight of ``program``, and return it with each linear of several forms cut into one a form."""
        self._values = {op.inputs[1] for op in program.ops if op.kind == "kv_write"}
        program = replace(program, ops=tuple(part for op in program.ops for part in self._parts(op)))
        self._results = {view.buffer for view in program.outputs.values()}
        for op in program.ops:
            for ref in op.weights.values():
                form = self._form_of(ref)
                if self._precision == "int8" and ref.use == "linear" and op.outputs[0].rows is Rows.SEQUENCES:
                    form = "float32"
                if self._forms.get(ref) != "int8":
                    self._forms[ref] = form
        linears = {ref.sources: ref for ref in self._forms if ref.use == "linear"}
        for ref, form in self._forms.items():
            if ref.use == "rows" and form in PANEL_FORMS:
                twin = linears.get(ref.sources)
                if twin is not None and self._forms[twin] == form:
                    self.twins[ref] = twin
                elif form == "int8":
                    self._forms[ref] = "float16"
        if self._products != "float32":
            self._pair(program)
        return program

    def __getitem__(self, ref: WeightRef) -> str:
        return self._forms[ref]

    def integer_input(self, op: Op) -> IntegerForm | None:
        """Return what quantizes the input of a linear; None where it takes floats.

        Raises:
            CheckpointError: the source has a range for it that makes no sense.
        """
        weight = op.weights["weight"]
        form = self._forms[weight]
        if form not in PANEL_FORMS or self._activations == "float32":
            return None
        if form == "int8":
            return IntegerForm("quantize_rows", self._range(weight))
        output = op.outputs[0]
        gives_logits = output.rows is Rows.LOGIT_ROWS and output.is_whole and output.buffer in self._results
        if (gives_logits or output in self._values) and op.kind == "linear" and "bias" not in op.weights:
            return IntegerForm("quantize_block_pairs")
        return IntegerForm("quantize_blocks")

    def _range(self, weight: WeightRef) -> InputRange | None:
        ranges = [self._range_of_source(name) for name in weight.sources]
        if len(set(ranges)) > 1:
            names = ", ".join(weight.sources)
            raise CheckpointError(f"{names} multiply one input and have different ranges for it: calibrate again")
        return ranges[0]

    def _range_of_source(self, name: str) -> InputRange | None:
        if name in self._input_ranges:
            return self._input_ranges[name]
        if self._stored is None or name + RANGE_SUFFIX not in self._stored:
            return None
        ends = self._stored.float32(name + RANGE_SUFFIX)
        if ends.shape != (2,):
            raise CheckpointError(f"{name + RANGE_SUFFIX} must hold low and high, not be of shape {ends.shape}")
        try:
            return InputRange(float(ends[0]), float(ends[1]))
        except InvalidInputError as cause:
            raise CheckpointError(f"{name + RANGE_SUFFIX}: {cause}") from cause

    @property
    def products(self) -> Bfloat16Products | None:
        """What rows rounded to bfloat16 are multiplied by; None if no linear takes such rows."""
        return self._products if "bfloat16_pairs" in self._forms.values() else None

    def rounded_inputs(self, op: Op) -> int:
        """Return how many inputs of an op, from the first on, are taken as rows of bfloat16."""
        if op.kind.startswith("linear"):
            return int(self._forms[op.weights["weight"]] == "bfloat16_pairs")
        if op.kind == "attention" and self._products == "tiles" and int(op.attributes["head_dim"]) % 32 == 0:
            makers = [maker for view in op.inputs for maker in self._producers[view.buffer]]
            if all(maker.kind.startswith("linear") and self.rounded_inputs(maker) for maker in makers):
                return 3
        return 0

    def _pair(self, program: Program) -> None:
        """Have bfloat16 weights in pairs where every op that reads them is a linear over tokens."""
        readers: dict[WeightRef, list[Op]] = defaultdict(list)
        for op in program.ops:
            for ref in op.weights.values():
                readers[ref].append(op)
            for view in op.outputs:
                self._producers[view.buffer].append(op)
        for ref, ops in readers.items():
            over_tokens = all(op.kind.startswith("linear") and op.outputs[0].rows is Rows.TOKENS for op in ops)
            if self._forms[ref] == "bfloat16" and ref.use == "linear" and over_tokens:
                self._forms[ref] = "bfloat16_pairs"

    def _form_of(self, ref: WeightRef) -> str:
        if ref.use == "vector":
            return "float32"
        return self._form_of_source(ref.sources[0])

    def _form_of_source(self, name: str) -> str:
        if self._precision != "stored":
            return self._precision
        if self._stored is None:
            return "float32"
        stored = self._stored.info(name).dtype
        if stored in _cpu.BLOCK_FORMATS:
            return stored
        if stored in BLOCK_FORMATS:
            warnings.warn(
                f"weights in {stored} (the first is {name}) are kept as Q8_0, which takes more memory",
                RepackedWeightsWarning,
                stacklevel=2,
            )
            return "Q8_0"
        return _STORED_FORMS.get(stored, "float32")

    def _parts(self, op: Op) -> Iterator[Op]:
        """Yield ``op``, or for a linear over tensors of several forms a linear for each run of one form.

        One that gives values of attention is a run of its own, as its rows are rounded otherwise.
        """
        weight = op.weights.get("weight")
        source = self._stored
        if weight is None or len(weight.sources) < 2 or source is None:
            yield op
            return
        widths = [source.info(name).shape[0] for name in weight.sources]
        starts = [sum(widths[:index]) for index in range(len(widths))]

        def form_and_use(index: int) -> tuple[str, bool]:
            form = self._form_of_source(weight.sources[index])
            rounded = form in _cpu.BLOCK_FORMATS and self._activations != "float32" and "bias" not in op.weights
            return form, rounded and _columns(op.outputs[0], starts[index], widths[index]) in self._values

        runs = [list(indices) for _, indices in groupby(range(len(weight.sources)), key=form_and_use)]
        column = 0
        for run in runs if len(runs) > 1 else ():
            width = sum(widths[index] for index in run)
            yield replace(
                op,
                inputs=(op.inputs[0], *(_columns(view, column, width) for view in op.inputs[1:])),
                weights={name: _sources(ref, run, width) for name, ref in op.weights.items()},
                outputs=(_columns(op.outputs[0], column, width),),
            )
            column += width
        if len(runs) == 1:
            yield op


def _columns(view: View, column: int, width: int) -> View:
    return View(view.buffer, view.column + column, width)


def _sources(ref: WeightRef, run: list[int], width: int) -> WeightRef:
    return replace(
        ref,
        sources=tuple(ref.sources[index] for index in run),
        shape=(width, *ref.shape[1:]),
        transform="concat" if len(run) > 1 else "none",
    )
