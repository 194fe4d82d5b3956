"""A program: a flat list of primitive ops over symbolic buffers.

Row counts are symbols, and each batch gives them values, so one program serves every batch. Programs are immutable.
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
    """The row symbols: what a buffer has one row for."""

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
    """Columns ``column`` to ``column + width`` of a buffer, whose width is the row stride."""

    buffer: Buffer
    column: int
    width: int

    @property
    def rows(self) -> Rows:
        """The row symbol of the view's buffer."""
        return self.buffer.rows

    @property
    def is_whole(self) -> bool:
        """Whether the view covers all columns of its buffer."""
        return self.column == 0 and self.width == self.buffer.width


@dataclass(frozen=True)
class WeightRef:
    """A weight, named by its tensors in the checkpoint.

    Attributes:
        sources: tensor names, or names of a tensor's rows, ``tensor[first:end]``; several only with
            ``transform="concat"``.
        shape: the shape after the transform; (count, out, in) for a stack of matrices.
        transform: ``"none"``, or ``"concat"``: along the first axis, in the order of ``sources``. In a stack each matrix
            has the same number of sources.
        use: the form that a backend keeps in memory: ``"linear"`` ([out, in], multiplied), ``"rows"`` (looked up by row)
            or ``"vector"``.
    """

    sources: tuple[str, ...]
    shape: tuple[int, ...]
    use: Literal["linear", "rows", "vector"]
    transform: Literal["none", "concat"] = "none"

    @property
    def is_stack(self) -> bool:
        """Whether it is a stack of matrices; an op multiplies by one of them at a time."""
        return self.use == "linear" and len(self.shape) == 3

    @property
    def source_shape(self) -> tuple[int, ...]:
        """The shape that each source must have; several sources have the same number of rows."""
        if len(self.sources) == 1 and (len(self.shape) < 3 or self.use != "linear"):  # as most are: nothing is called
            return self.shape
        return math.prod(self.shape[:-1]) // len(self.sources), self.shape[-1]

    @property
    def text(self) -> str:
        """Its name in messages: the names of its sources, or of the first and the last of many."""
        if not self.is_stack or len(self.sources) <= 2:
            return "+".join(self.sources)
        return f"{self.sources[0]}+...+{self.sources[-1]}"

    def matrices(self) -> tuple[WeightRef, ...]:
        """Return the matrices of a stack; for any other weight, the weight itself."""
        if not self.is_stack:
            return (self,)
        each = len(self.sources) // self.shape[0]
        parts = [self.sources[first : first + each] for first in range(0, len(self.sources), each)]
        transform: Literal["none", "concat"] = "concat" if each > 1 else "none"
        return tuple(WeightRef(part, self.shape[1:], self.use, transform) for part in parts)


@dataclass(frozen=True)
class KvSpec:
    """A layer's keys and values for each token of a sequence, in pages of the backend."""

    layer: int
    kv_heads: int
    head_dim: int
    dtype: Literal["float32", "float16", "bfloat16", "int8"]
    window: int | None = None


@dataclass(frozen=True)
class RecurrentSpec:
    """A layer's state of fixed size for each sequence, in slots of the backend.

    ``name`` is the kind of the op that keeps it, and ``shape`` its sizes; see
    :func:`~lattice_inference.graph.recurrent_ops.recurrent_spec`.
    """

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: Literal["float32"] = "float32"


@dataclass(frozen=True)
class Op:
    """One operation.

    ``kind`` is a kind of :mod:`~lattice_inference.graph.ops`, or a fused kind that only a backend makes.
    """

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
        """Every buffer that an op writes, in the order of the first write."""
        return tuple(dict.fromkeys(view.buffer for op in self.ops for view in op.outputs))

    def describe(self) -> str:
        """Return the program as text, one op per line."""
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
