"""All trained numbers in one vector: every A, then every B, then a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_fann.training.flat_update import FLAT_STEP
from lattice_tune.lora.draws import first_factor

__all__ = ["Group", "TrainedParameters"]

Float32Array = npt.NDArray[np.float32]

_PIECE = 1 << 16


@dataclass(frozen=True)
class Group:
    """A stretch of the vector with one learning rate.

    Attributes:
        part: where it lies.
        is_b: whether it holds the matrices B.
        decays: whether weight decay applies.
    """

    part: slice
    is_b: bool
    decays: bool


class TrainedParameters:
    """The matrices of an adapter, and a head's, as views of one float32 vector.

    Args:
        shapes: outputs and inputs of each linear, by its path.
        rank: rows of each A.
        head: outputs and inputs of a linear on top of the program, whose bias is trained too; None without one.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]], rank: int, head: tuple[int, int] | None = None) -> None:
        self.shapes = dict(sorted(shapes.items()))
        self.rank, self.head = rank, head
        self._places: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = {}
        end = 0
        bounds = [0]
        for part, rows, columns in (("a", rank, None), ("b", None, rank)):
            for site, (outputs, inputs) in self.shapes.items():
                end = self._place((site, part), end, (rows or outputs, columns or inputs))
            bounds.append(end)
        if head is not None:
            end = self._place(("", "weight"), end, head)
            bounds.append(end)
            end = self._place(("", "bias"), end, head[:1])
            bounds.append(end)
        self.values: Float32Array = np.zeros(end, np.float32)
        self.gradients: Float32Array = np.zeros(end, np.float32)
        kinds = [(False, True), (True, True), (False, True), (False, False)]
        self.groups = tuple(
            Group(slice(start, stop), *kind)
            for start, stop, kind in zip(bounds[:-1], bounds[1:], kinds[: len(bounds) - 1], strict=True)
        )

    def _place(self, key: tuple[str, str], start: int, shape: tuple[int, ...]) -> int:
        self._places[key] = start, shape
        size = int(np.prod(shape))
        return start + size + -size % FLAT_STEP

    def view(self, vector: Float32Array, site: str, part: str) -> Float32Array:
        """Return a matrix in a vector that lies as :attr:`values` does.

        ``part`` is ``"a"`` or ``"b"``; the head's site is ``""``, its parts are ``"weight"`` and ``"bias"``.
        """
        start, shape = self._places[site, part]
        return vector[start : start + int(np.prod(shape))].reshape(shape)

    def factors(self) -> Iterator[tuple[str, Float32Array, Float32Array]]:
        """Yield each site with its A and B."""
        for site in self.shapes:
            yield site, self.view(self.values, site, "a"), self.view(self.values, site, "b")

    def draw(self, seed: int) -> None:
        """Set the first values: A drawn, B and the head zero."""
        self.values[:] = 0.0
        for site, (_, inputs) in self.shapes.items():
            self.view(self.values, site, "a")[:] = first_factor(seed, site, self.rank, inputs)

    @property
    def count(self) -> int:
        """How many numbers are trained."""
        return sum(int(np.prod(shape)) for _, shape in self._places.values())

    def gradient_norm(self) -> float:
        """Return the L2 norm of the gradients, summed in float64."""
        total = 0.0
        for start in range(0, len(self.gradients), _PIECE):
            total += float(np.square(self.gradients[start : start + _PIECE], dtype=np.float64).sum())
        return float(np.sqrt(total))
