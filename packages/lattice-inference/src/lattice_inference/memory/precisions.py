"""The size of weights in each precision, in the CPU backend's forms.

The forms are chosen without reading a weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lattice_inference.backends.opening import open_backend
from lattice_inference.backends.protocol import WeightSize
from lattice_inference.backends.tensor_source import StoredTensorSource
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.safetensors import SINGLE_FILE
from lattice_inference.errors import LatticeError
from lattice_inference.graph.program import Buffer, Op, Program, Rows, View, WeightRef
from lattice_inference.memory.use import layer_of
from lattice_inference.precision import Precision

__all__ = ["PRECISIONS", "PrecisionNeed", "needs_by_precision", "path_of_model"]

PRECISIONS: tuple[Precision, ...] = ("stored", "float32", "bfloat16", "int8")


@dataclass(frozen=True)
class PrecisionNeed:
    """What weights take in one precision, once loaded.

    Attributes:
        precision: as :func:`load_model` takes it; ``"stored"`` keeps what the files have, where there are kernels for it.
        layer_bytes: the weights of the largest layer.
        weights_bytes: all of them.
    """

    precision: str
    layer_bytes: int
    weights_bytes: int

    @classmethod
    def of(cls, precision: str, weights: Iterable[WeightSize]) -> PrecisionNeed:
        """Return what ``weights`` take together, and those of the largest layer."""
        layers: dict[int | None, int] = {}
        for weight in weights:
            layer = layer_of(weight.name)
            layers[layer] = layers.get(layer, 0) + weight.nbytes
        largest = max((nbytes for layer, nbytes in layers.items() if layer is not None), default=0)
        return cls(precision, largest, sum(layers.values()))


def needs_by_precision(checkpoint: Checkpoint) -> tuple[PrecisionNeed, ...]:
    """Return what weights take in each of :data:`PRECISIONS`.

    Of files that hold no model that can be loaded, each matrix counts as the weight of a linear.
    """
    from lattice_inference.quantize.model_program import open_model_program

    program: Program
    tensors: StoredTensorSource
    with ExitStack() as stack:
        try:
            model = open_model_program(path_of_model(checkpoint.directory), stack)
            program, tensors = model.program, model.tensors
        except LatticeError:
            program, tensors = _program_of(checkpoint), checkpoint
        return tuple(_need(precision, program, tensors) for precision in PRECISIONS)


def path_of_model(path: Path) -> Path:
    """Return the model's directory for the file that holds all of its tensors, else the path."""
    return path.parent if path.name == SINGLE_FILE else path


def _need(precision: Precision, program: Program, tensors: StoredTensorSource) -> PrecisionNeed:
    return PrecisionNeed.of(precision, open_backend(precision=precision).weight_sizes(program, tensors))


def _program_of(checkpoint: Checkpoint) -> Program:
    """Return a program with a linear for each matrix; all that it is good for is to be weighed."""
    ops: list[Op] = []
    for name in checkpoint.names():
        shape = checkpoint.info(name).shape
        elements, width = math.prod(shape), shape[-1] if shape else 1
        if elements == 0:
            continue
        is_matrix = len(shape) > 1
        if is_matrix:
            shape = (elements // width, width)
        ref = WeightRef((name,), shape, "linear" if is_matrix else "vector")
        x, y = (
            View(Buffer(len(ops), name, Rows.TOKENS, columns), 0, columns) for columns in (width, elements // width)
        )
        ops.append(Op("linear" if is_matrix else "rms_norm", (x,), {"weight": ref}, (y,)))
    return Program(tuple(ops), {})
