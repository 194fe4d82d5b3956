"""An adapter as the CPU keeps it.

The matrices of each group of linears lie in panels, in the fewest bits that hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.bfloat16 import BFLOAT16
from lattice_inference.backends.cpu.forms.float import FLOAT16, FLOAT32, FloatForm
from lattice_inference.backends.cpu.low_rank_groups import SitePlace
from lattice_inference.backends.protocol import LowRankFactors
from lattice_inference.graph.memory import ALIGNMENT

__all__ = ["CpuAdapter"]

Float32Array = npt.NDArray[np.float32]
_FIRST_LOOK = 4096  # numbers that tell most matrices of float32 apart from 16 bits


class CpuAdapter:
    """What one adapter adds to the linears of a program. Immutable.

    Args:
        plan: the plan that it is for.
        groups: the sites of each of the plan's groups.
        factors: A, B and scale by site; they fit.

    Attributes:
        plan: the plan.
        native: what steps are given.
        nbytes: what the matrices take.
    """

    def __init__(
        self, plan: _cpu.Plan, groups: Sequence[Sequence[SitePlace]], factors: Mapping[str, LowRankFactors]
    ) -> None:
        laid_out = [[(place, factors[place.site]) for place in group if place.site in factors] for group in groups]
        forms = [_form_of([matrix for _, site in parts for matrix in (site.a, site.b)]) for parts in laid_out]
        places: list[tuple[Float32Array, FloatForm, int]] = []
        described: list[tuple[str, int, list[tuple[int, int, int, int, float]]] | None] = []
        self.nbytes = 0
        for parts, form in zip(laid_out, forms, strict=True):
            if not parts:
                described.append(None)
                continue
            first = self.nbytes
            for _, site in parts:  # one after the other, with nothing between
                places.append((site.a, form, self.nbytes))
                self.nbytes += _panel_bytes(site.a, form)
            self._align()
            tuples = []
            for place, site in parts:
                places.append((site.b, form, self.nbytes))
                tuples.append((self.nbytes, len(site.a), place.column, place.width, float(site.scale)))
                self.nbytes += _panel_bytes(site.b, form)
                self._align()
            described.append((form.weight_type, first, tuples))
        memory = _cpu.Memory(self.nbytes, huge_pages=self.nbytes >= _cpu.HUGE_PAGE)
        for matrix, form, offset in places:
            form.pack(form.rounded(matrix, "an adapter"), memory, offset)
        self.plan = plan
        self.native = _cpu.Adapter(plan, memory, described)

    def _align(self) -> None:
        self.nbytes = -(-self.nbytes // ALIGNMENT) * ALIGNMENT


def _panel_bytes(matrix: Float32Array, form: FloatForm) -> int:
    return -(-len(matrix) // _cpu.PANEL) * form.panel_bytes(int(matrix.shape[1]))


def _form_of(matrices: Sequence[Float32Array]) -> FloatForm:
    """Return the narrowest form that holds every number exactly: the stored one, or wider."""
    if all(_is_bfloat16(matrix) for matrix in matrices):
        return BFLOAT16
    return FLOAT16 if all(_is_float16(matrix) for matrix in matrices) else FLOAT32


def _is_bfloat16(matrix: Float32Array) -> bool:
    bits = matrix.reshape(-1).view(np.uint32)
    return all(not (part & 0xFFFF).any() for part in (bits[:_FIRST_LOOK], bits[_FIRST_LOOK:]))


def _is_float16(matrix: Float32Array) -> bool:
    flat = matrix.reshape(-1)
    with np.errstate(over="ignore"):
        return all(np.array_equal(part, part.astype(np.float16)) for part in (flat[:_FIRST_LOOK], flat[_FIRST_LOOK:]))
