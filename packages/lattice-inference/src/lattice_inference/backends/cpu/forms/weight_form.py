"""What a form of weights says of itself, and what it is asked about."""

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

``"float32"``: rows stay float32, weights are widened where they are used. The others round rows to bfloat16 and multiply
them by dot product instructions (``"dot"``: AVX512-BF16, FEAT_BF16), by matrix tiles (``"tiles"``: AMX), which attention
does, too, or without either (``"widened"``: any CPU, slowly).
"""

StoredArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Terms:
    """What the caller asks for and the CPU has.

    Attributes:
        precision: what weights are kept in.
        activations: what integer weights are multiplied by.
        products: what bfloat16 weights are multiplied by and how.
        isa: the level of the instruction set; None where weights are written and not run.
        stored: under the precision ``"stored"`` the type that the source has a weight in, where it says that.
    """

    precision: Precision
    activations: Activations = "int8"
    products: Bfloat16Products = "float32"
    isa: str | None = None
    stored: str | None = None

    def asks(self, precision: str, stored: str) -> bool:
        """Whether this precision was asked for, or what is stored and the source has this type."""
        return self.stored == stored if self.precision == "stored" else self.precision == precision


@dataclass(frozen=True)
class WeightUse:
    """A weight that takes a form.

    Attributes:
        ref: the weight; no vector, which is always float32.
        readers: the ops that read it.
        terms: what was asked for.
        linear: for a table whose tensors are a linear's weight too, the form of that.
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
        """Whether all that reads it are linears over tokens, or mixtures of experts, which are made of such."""
        return self.ref.use == "linear" and all(
            op.kind.startswith(("linear", "moe")) and op.outputs[0].rows is Rows.TOKENS for op in self.readers
        )


def _no_range() -> InputRange | None:
    return None


@dataclass(frozen=True)
class LinearUse:
    """A linear that multiplies a weight.

    Attributes:
        terms: what was asked for.
        is_exact: whether much hangs on a small part of its products, so that rounded rows shall keep what was left out.
        range: returns what a calibration fixed for its rows.
    """

    terms: Terms
    is_exact: bool = False
    range: Callable[[], InputRange | None] = _no_range


@dataclass(frozen=True)
class PlacedWeight:
    """A weight, its form, and the byte offset of its panels; None for one that is not in panels."""

    ref: WeightRef
    form: WeightForm
    offset: int | None

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.ref.text if self.ref.is_stack else " + ".join(self.ref.sources)

    @property
    def panels(self) -> int:
        """The byte offset of a weight that is in panels."""
        assert self.offset is not None
        return self.offset


PackTogether = Callable[[Sequence[PlacedWeight], StoredTensorSource, _cpu.Memory], None]


class WeightForm(ABC):
    """One way to keep weights. A form has no state: one object stands for it.

    Attributes:
        name: no two forms share one.
        dtype: what a report says that values are kept in.
        weight_type: what the kernels know it as, of ``_cpu.WEIGHT_TYPES``.
        in_panels: whether tables lie in panels too, which a linear with the same tensors then shares; else they are rows.
        repacked: stored types that take more memory in this form, which the user is told.
        takes_range: whether its rows can be rounded within a calibration's range.
        pack_together: packs all weights of the forms that have this function, at once and before all others; or None,
            and :meth:`keep` is called for each weight.
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
        """Whether a weight may be kept so: on this CPU, in this precision, of what is stored."""

    def suits(self, use: WeightUse) -> bool:
        """Whether a weight shall be kept so. The first form of the list that serves and says so has it."""
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
        """Return the name of the kernel, of ``_cpu.KERNELS``, that multiplies such rows by it."""

    @abstractmethod
    def keep(self, weight: PlacedWeight, source: TensorSource, memory: _cpu.Memory) -> StoredArray | None:
        """Read a weight and pack it into ``memory``, or return the rows of one that is not in panels.

        Raises:
            CheckpointError: a tensor is missing, of another shape, or has a value that the form cannot hold.
        """

    def file_tensors(self, name: str, shape: tuple[int, ...]) -> list[StoredTensor]:
        """Return what a quantized model's file holds of a weight that is kept so: by default float32."""
        return [StoredTensor(name, "F32", shape)]

    def file_arrays(self, weight: npt.NDArray[np.float32], name: str) -> Iterator[npt.NDArray[np.generic]]:
        """Yield the contents of :meth:`file_tensors`."""
        yield weight
