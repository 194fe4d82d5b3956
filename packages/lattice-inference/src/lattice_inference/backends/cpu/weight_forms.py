"""Which form each weight of a program is kept in."""

from __future__ import annotations

from lattice_inference.backends.cpu.integer_inputs import IntegerForm
from lattice_inference.graph.program import Op, Program, Rows, WeightRef
from lattice_inference.precision import Precision

__all__ = ["WeightForms"]


class WeightForms:
    """The form of each weight: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"int8"``; vectors are always float32.

    What is not int8 under the precision ``"int8"``:

    * weights that multiply whole sequences only, the heads on top of a model: they are used once a text, and what they
      compute is the result itself (float32);
    * embedding tables, whose rounding to int8 would cost as much quality as that of all linears (float16), unless the same
      tensor is a linear's weight, too: a table then reads the linear's panels.

    Attributes:
        twins: for a table that reads a linear's panels, that linear's weight.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._forms: dict[WeightRef, str] = {}
        self.twins: dict[WeightRef, WeightRef] = {}

    def choose(self, program: Program) -> None:
        """Decide for every weight of ``program``."""
        for op in program.ops:
            for ref in op.weights.values():
                form: str = "float32" if ref.use == "vector" else self._precision
                if form == "int8" and ref.use == "linear" and op.outputs[0].rows is Rows.SEQUENCES:
                    form = "float32"
                if self._forms.get(ref) != "int8":
                    self._forms[ref] = form
        linears = {ref.sources: ref for ref, form in self._forms.items() if ref.use == "linear" and form == "int8"}
        for ref, form in self._forms.items():
            if ref.use == "rows" and form == "int8":
                if ref.sources in linears:
                    self.twins[ref] = linears[ref.sources]
                else:
                    self._forms[ref] = "float16"

    def __getitem__(self, ref: WeightRef) -> str:
        return self._forms[ref]

    def integer_input(self, op: Op) -> IntegerForm | None:
        """Return what quantizes the input of a linear; None where it takes floats."""
        return "quantize_rows" if self._forms[op.weights["weight"]] == "int8" else None
