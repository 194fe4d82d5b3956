"""What a model's weights would take in each precision, worked out from their shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice_inference.backends.weight_sizes import WeightSize
from lattice_inference.memory_use import layer_of

__all__ = ["PRECISIONS", "PrecisionNeed", "needs_by_precision"]

PRECISIONS = ("stored", "float32", "bfloat16", "int8")

# tables of a decoder's tokens, which may be its output matrix too; and tables that are nothing else
_TOKENS = re.compile(r"(?:^|\.)(?:token_embd|embed_tokens)\.weight$")
_TABLE = re.compile(r"(?:^|\.)(?:position_embd|token_types|\w+_embeddings)\.weight$")
_OUTPUT = re.compile(r"(?:^|\.)(?:output|lm_head)\.weight$")

# of an int8 matrix, for each output: a scale and the sum of its integers
_INT8_OUTPUT_BYTES = 8


@dataclass(frozen=True)
class PrecisionNeed:
    """What weights take in one precision.

    Attributes:
        precision: as :func:`load_model` takes it; ``"stored"`` is what the files have.
        layer_bytes: the weights of the largest layer.
        weights_bytes: all of them.
    """

    precision: str
    layer_bytes: int
    weights_bytes: int


def needs_by_precision(stored: Sequence[WeightSize], shapes: Mapping[str, Sequence[int]]) -> tuple[PrecisionNeed, ...]:
    """Return what weights take in each of :data:`PRECISIONS`.

    Vectors are float32 in all of them but the first. With int8 a table of embeddings is float16, unless it is the output
    matrix, too.

    Args:
        stored: each weight as the files hold it.
        shapes: the shape of each, by its name.
    """
    untied = any(_OUTPUT.search(name) for name in shapes)
    needs = []
    for precision in PRECISIONS:
        if precision == "stored":
            sizes: Iterable[tuple[str, int]] = [(weight.name, weight.nbytes) for weight in stored]
        else:
            sizes = [(name, _nbytes(precision, name, shape, untied)) for name, shape in shapes.items()]
        layers: dict[int | None, int] = {}
        for name, nbytes in sizes:
            layer = layer_of(name)
            layers[layer] = layers.get(layer, 0) + nbytes
        largest = max((nbytes for layer, nbytes in layers.items() if layer is not None), default=0)
        needs.append(PrecisionNeed(precision, largest, sum(layers.values())))
    return tuple(needs)


def _nbytes(precision: str, name: str, shape: Sequence[int], untied: bool) -> int:
    elements = math.prod(shape)
    if precision == "float32" or len(shape) < 2:
        return 4 * elements
    is_only_a_table = _TABLE.search(name) is not None or (untied and _TOKENS.search(name) is not None)
    if precision == "int8" and not is_only_a_table:
        return elements + _INT8_OUTPUT_BYTES * shape[0]
    return 2 * elements
