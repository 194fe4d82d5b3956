"""The linears of a program that have trained factors, and the order of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.training_protocol import CompiledTraining
from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

__all__ = ["RowOrder", "SiteAccess", "TrainedSite"]

Float32Array = npt.NDArray[np.float32]
RowOrder = npt.NDArray[np.intp]


@dataclass(frozen=True)
class TrainedSite:
    """A linear with factors A (rank, inputs) and B (outputs, rank).

    ``name`` is its path in transformers, as in :class:`~lattice_inference.lora.LoraAdapter`.
    """

    name: str
    inputs: int
    outputs: int


class SiteAccess:
    """Reads and writes the factors of sites by the paths of transformers, in its order of rows.

    Args:
        compiled: the programs, whose factors they are.
        sites: the linears.
        tensors: the name that the program has for each.
        orders: for some sites, the row of transformers' order that each row of the file has.
        rank: rows of each A.
    """

    def __init__(
        self,
        compiled: CompiledTraining,
        sites: Sequence[TrainedSite],
        tensors: Mapping[str, str],
        orders: Mapping[str, RowOrder],
        rank: int,
    ) -> None:
        self._compiled = compiled
        self._sites = {site.name: site for site in sites}
        self._tensors = tensors
        self._orders = orders
        self._rank = rank

    def write(self, name: str, a: object, b: object) -> None:
        """Set A and B; see :meth:`~lattice_inference.training.TrainingProgram.write_factors`."""
        site = self._named(name)
        whole_a = _checked("a", a, (self._rank, site.inputs))
        whole_b = _checked("b", b, (site.outputs, self._rank))
        order = self._orders.get(name)
        self._compiled.factors.write(self._tensors[name], whole_a, whole_b if order is None else whole_b[order])

    def read(self, name: str) -> tuple[Float32Array, Float32Array]:
        """Return copies of A and B."""
        self._named(name)
        return self._in_order(name, *self._compiled.factors.read(self._tensors[name]))

    def gradients(self, name: str) -> tuple[Float32Array, Float32Array]:
        """Return dA and dB."""
        self._named(name)
        return self._in_order(name, *self._compiled.factors.gradients(self._tensors[name]))

    def _in_order(self, name: str, a: Float32Array, b: Float32Array) -> tuple[Float32Array, Float32Array]:
        order = self._orders.get(name)
        if order is None:
            return a, b
        restored = np.empty_like(b)
        restored[order] = b
        return a, restored

    def _named(self, name: object) -> TrainedSite:
        site = self._sites.get(name) if isinstance(name, str) else None
        if site is None:
            raise InvalidInputError(
                f"site is {value_text(name)}; expected the name of one of the {len(self._sites)} sites"
            )
        return site


def _checked(name: str, given: object, shape: tuple[int, int]) -> Float32Array:
    try:
        numbers = np.asarray(given)
    except ValueError:  # rows of several lengths
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "iuf":
        raise InvalidInputError(f"{name} is {value_text(given)}; expected an array of numbers")
    with np.errstate(over="ignore"):  # infinity is refused below
        array = np.ascontiguousarray(numbers, np.float32)
    if array.shape != shape:
        raise InvalidInputError(f"{name} has the shape {array.shape}; expected {shape}")
    if not np.isfinite(array).all():
        raise InvalidInputError(f"{name} holds NaN or infinity")
    return array
