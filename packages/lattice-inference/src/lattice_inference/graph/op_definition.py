"""The form of an op's definition, and the checks that definitions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.program import Op, Rows

__all__ = ["OpDefinition", "Shape", "integer", "require"]

Shape = tuple[Rows, int]


@dataclass(frozen=True)
class OpDefinition:
    """The signature of an op.

    Attributes:
        inputs: how many views it reads.
        weights: names of its weights; those that end in ``?`` are optional.
        attributes: names and types of its attributes, all required.
        shape: returns the rows and width of the op's output; raises InvalidInputError when the operands do not fit.
        meaning: what it computes.
        further: returns the rows and widths of the outputs after the first.
    """

    inputs: int
    weights: tuple[str, ...]
    attributes: Mapping[str, type]
    shape: Callable[[Op], Shape]
    meaning: str
    further: Callable[[Op], tuple[Shape, ...]] = lambda _: ()

    @cached_property
    def required_weights(self) -> frozenset[str]:
        """Names of the weights that must be given."""
        return frozenset([name for name in self.weights if not name.endswith("?")])

    @cached_property
    def allowed_weights(self) -> frozenset[str]:
        """Names of the weights that may be given."""
        return frozenset([name.rstrip("?") for name in self.weights])


def require(condition: bool, op: Op, problem: str) -> None:
    """Raise InvalidInputError that names the op and the problem, unless the condition holds."""
    if not condition:
        raise InvalidInputError(f"{op.kind}: {problem}")


def integer(op: Op, name: str) -> int:
    """Return an attribute that must be an integer."""
    value = op.attributes[name]
    require(isinstance(value, int), op, f"{name} must be an integer")
    return int(value)
