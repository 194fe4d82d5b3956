"""A program: a flat list of primitive ops over symbolic buffers.

Row counts are symbols that a batch gives values to, so one program serves every batch. Programs are immutable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Literal

__all__ = ["AttributeValue", "Buffer", "KvSpec", "Op", "Program", "RecurrentSpec", "Rows", "View", "WeightRef"]

AttributeValue = int | float | str | bool


class Rows(Enum):
    """What a buffer has a row for."""

    TOKENS = "T"
    SEQUENCES = "B"
    LOGIT_ROWS = "R"
    PATCHES = "P"
    MERGED_PATCHES = "M"


@dataclass(frozen=True)
class Buffer:
    """A matrix of activations, ``rows`` x ``width``, that the backend owns."""

    index: int
    name: str
    rows: Rows
    width: int
    dtype: Literal["float32"] = "float32"


@dataclass(frozen=True)
class View:
    """Columns ``column`` to ``column + width`` of every row of a buffer. Its row stride is the buffer's width."""

    buffer: Buffer
    column: int
    width: int

    @property
    def rows(self) -> Rows:
        """What the view has a row for."""
        return self.buffer.rows

    @property
    def is_whole(self) -> bool:
        """Whether the view covers all columns of its buffer."""
        return self.column == 0 and self.width == self.buffer.width


@dataclass(frozen=True)
class WeightRef:
    """A weight by the names of its tensors in the checkpoint.

    Attributes:
        sources: tensor names, or names of rows of one, ``tensor[first:end]``; several only with ``transform="concat"``.
        shape: the shape after the transform: of a stack of matrices (count, out, in).
        transform: ``"none"``, or ``"concat"`` (along the first axis, in the order of ``sources``; for a stack as many of
            them make each matrix).
        use: the form a backend keeps resident: ``"linear"`` ([out, in], multiplied), ``"rows"`` (looked up by row) or
            ``"vector"``.
    """

    sources: tuple[str, ...]
    shape: tuple[int, ...]
    use: Literal["linear", "rows", "vector"]
    transform: Literal["none", "concat"] = "none"

    @property
    def is_stack(self) -> bool:
        """Whether it is several matrices, of which an op multiplies by one at a time."""
        return self.use == "linear" and len(self.shape) == 3

    @property
    def source_shape(self) -> tuple[int, ...]:
        """The shape that each source must have; several share the rows evenly."""
        if len(self.sources) == 1 and not self.is_stack:
            return self.shape
        return math.prod(self.shape[:-1]) // len(self.sources), self.shape[-1]

    @property
    def text(self) -> str:
        """What texts call it: the names of its sources, of many the first and the last."""
        if not self.is_stack or len(self.sources) <= 2:
            return "+".join(self.sources)
        return f"{self.sources[0]}+...+{self.sources[-1]}"

    def matrices(self) -> tuple[WeightRef, ...]:
        """Return the matrices of a stack; of any other weight, the weight alone."""
        if not self.is_stack:
            return (self,)
        each = len(self.sources) // self.shape[0]
        parts = [self.sources[first : first + each] for first in range(0, len(self.sources), each)]
        transform: Literal["none", "concat"] = "concat" if each > 1 else "none"
        return tuple(WeightRef(part, self.shape[1:], self.use, transform) for part in parts)


@dataclass(frozen=True)
class KvSpec:
    """Keys and values that a layer keeps for each token of a sequence, in pages that the backend stores."""

    layer: int
    kv_heads: int
    head_dim: int
    dtype: Literal["float32", "float16", "bfloat16", "int8"]
    window: int | None = None


@dataclass(frozen=True)
class RecurrentSpec:
    """State of fixed size that a layer keeps for each sequence, in slots that the backend stores."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: Literal["float32"] = "float32"


@dataclass(frozen=True)
class Op:
    """One operation: a kind of :mod:`~lattice_inference.graph.ops`, or a fused kind that only a backend makes."""

    kind: str
    inputs: tuple[View, ...]
    weights: Mapping[str, WeightRef]
    outputs: tuple[View, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", MappingProxyType(dict(self.weights)))
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))


@dataclass(frozen=True)
class Program:
    """What a model computes: ops in order, the named views it returns, and the state it needs."""

    ops: tuple[Op, ...]
    outputs: Mapping[str, View]
    kv_specs: tuple[KvSpec, ...] = ()
    recurrent_specs: tuple[RecurrentSpec, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", MappingProxyType(dict(self.outputs)))

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Every buffer that an op writes, in the order of first writing."""
        return tuple(dict.fromkeys(view.buffer for op in self.ops for view in op.outputs))

    def describe(self) -> str:
        """Return the program as text, an op a line."""
        lines = []
        for op in self.ops:
            operands = [_view_text(view) for view in op.inputs]
            operands += [f"{name}={ref.text}" for name, ref in op.weights.items()]
            operands += [f"{name}={value!r}" for name, value in op.attributes.items()]
            target = f"{', '.join(_view_text(view) for view in op.outputs)} = " if op.outputs else ""
            lines.append(f"{target}{op.kind}({', '.join(operands)})")
        return "\n".join(lines)


def _view_text(view: View) -> str:
    columns = "" if view.is_whole else f"[{view.column}:{view.column + view.width}]"
    return f"{view.buffer.name}{columns}"
