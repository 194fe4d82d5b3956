"""The interface of a weight form, and the types of its arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.input_rows import InputRows
from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.calibration import InputRange
from lattice_inference.checkpoint.safetensors_writer import StoredTensor
from lattice_inference.graph.program import Op, Rows, WeightRef
from lattice_inference.precision import Activations, Precision

__all__ = [
    "Bfloat16Products",
    "LinearUse",
    "PackTogether",
    "PlacedWeight",
    "Terms",
    "WeightForm",
    "WeightUse",
]

Bfloat16Products = Literal["float32", "widened", "dot", "tiles"]
"""How linears with bfloat16 weights multiply.

``"float32"`` keeps rows in float32 and widens weights where they are used. The others round rows to bfloat16. ``"dot"``
multiplies them by dot product instructions (AVX512-BF16, FEAT_BF16). ``"tiles"`` multiplies them by matrix tiles (AMX), and
attention uses tiles too. ``"widened"`` needs neither: it runs on any CPU, slowly.
"""

StoredArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Terms:
    """What the caller wants and the CPU has.

    Attributes:
        precision: the type that weights are kept in.
        activations: what integer weights are multiplied by.
        products: what bfloat16 weights are multiplied by and how.
        isa: the level of the instruction set; None where weights are written and not run.
        stored: under the precision ``"stored"``, the type of a weight in the source, if the source says it.
    """

    precision: Precision
    activations: Activations = "int8"
    products: Bfloat16Products = "float32"
    isa: str | None = None
    stored: str | None = None

    def asks(self, precision: str, stored: str) -> bool:
        """Whether the caller wants this precision, or the stored type and that is ``stored``."""
        return self.stored == stored if self.precision == "stored" else self.precision == precision


@dataclass(frozen=True)
class WeightUse:
    """A weight that takes a form.

    Attributes:
        ref: the weight. It is never a vector, as vectors are always float32.
        readers: the ops that read it.
        terms: what the caller wants and the CPU has.
        linear: for a table whose tensors are also a linear's weight, the form of that weight.
    """

    ref: WeightRef
    readers: tuple[Op, ...]
    terms: Terms
    linear: WeightForm | None = None

    @property
    def is_over_sequences(self) -> bool:
        """Whether it multiplies whole sequences only."""
        return self.ref.use == "linear" and all(op.outputs[0].rows is Rows.SEQUENCES for op in self.readers)

    @property
    def is_over_tokens(self) -> bool:
        """Whether only linears over tokens and mixtures of experts read it."""
        return self.ref.use == "linear" and all(
            op.kind.startswith(("linear", "moe")) and op.outputs[0].rows is Rows.TOKENS for op in self.readers
        )


def _no_range() -> InputRange | None:
    return None


@dataclass(frozen=True)
class LinearUse:
    """A linear that multiplies a weight.

    Attributes:
        terms: what the caller wants and the CPU has.
        is_exact: whether errors of rounding matter so much that rounded rows keep what the first rounding left out.
        range: returns the range that a calibration fixed for its rows.
    """

    terms: Terms
    is_exact: bool = False
    range: Callable[[], InputRange | None] = _no_range


@dataclass(frozen=True)
class PlacedWeight:
    """A weight, its form, and the byte offset of its panels, or None if it has no panels."""

    ref: WeightRef
    form: WeightForm
    offset: int | None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.ref.text if self.ref.is_stack else " + ".join(self.ref.sources)

    @property
    def panels(self) -> int:
        """The byte offset of a weight that is in panels."""
        assert self.offset is not None
        return self.offset


PackTogether = Callable[[Sequence[PlacedWeight], StoredTensorSource, _cpu.Memory], None]


class WeightForm(ABC):
    """One way to keep weights. A form has no state, so one object represents it.

    Attributes:
        name: a unique name.
        dtype: the type of its values in reports.
        weight_type: its name for the kernels, one of ``_cpu.WEIGHT_TYPES``.
        in_panels: whether tables lie in panels too. A linear with the same tensors then shares the panels. If false,
            tables are rows.
        repacked: stored types that take more memory in this form; a warning tells the user.
        takes_range: whether its rows can be rounded within a calibrated range.
        pack_together: a function that packs all weights of all forms that have it, at once and before other weights. If
            it is None, :meth:`keep` is called for each weight.
    """

    name: str
    dtype: str
    weight_type: str
    in_panels: bool = False
    repacked: frozenset[str] = frozenset()
    takes_range: bool = False
    pack_together: PackTogether | None = None

    @abstractmethod
    def serves(self, terms: Terms) -> bool:
        """Whether this form can keep weights on this CPU, in this precision and stored type."""

    def suits(self, use: WeightUse) -> bool:
        """Whether this form should keep the weight.

        The first form of the list that serves the terms and suits the weight keeps it.
        """
        return True

    @abstractmethod
    def panel_bytes(self, depth: int) -> int:
        """Return the bytes of a panel of 16 columns."""

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row of a table or vector that is not in panels."""
        raise NotImplementedError(f"{self.name} has no rows outside of panels")

    @abstractmethod
    def input_rows(self, use: LinearUse) -> InputRows:
        """Return which rows a linear with such a weight takes."""

    @abstractmethod
    def kernel(self, rows: InputRows) -> str:
        """Return the kernel, one of ``_cpu.KERNELS``, that multiplies such rows by it."""

    @abstractmethod
    def keep(self, weight: PlacedWeight, source: TensorSource, memory: _cpu.Memory) -> StoredArray | None:
        """Read a weight and pack it into ``memory``, or return its rows if it has no panels.

        Raises:
            CheckpointError: a tensor is missing, of another shape, or has a value that the form cannot hold.
        """

    def file_tensors(self, name: str, shape: tuple[int, ...]) -> list[StoredTensor]:
        """Return the tensors that a quantized model's file holds for such a weight.

        By default this is one float32 tensor.
        """
        return [StoredTensor(name, "F32", shape)]

    def file_arrays(self, weight: npt.NDArray[np.float32], name: str) -> Iterator[npt.NDArray[np.generic]]:
        """Yield the contents of :meth:`file_tensors`."""
        yield weight
