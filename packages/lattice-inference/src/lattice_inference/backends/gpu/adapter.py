"""An adapter on a GPU: A and B of each site, in the fewest bits that hold them exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.gpu.device import Bindings, Dispatch, GpuDevice, sorted_constants
from lattice_inference.backends.gpu.kernel_call import WORKGROUP, Launch
from lattice_inference.backends.gpu.launches import groups
from lattice_inference.backends.gpu.weights import upload_pieces
from lattice_inference.backends.protocol import LowRankFactors
from lattice_inference.checkpoint.dtypes import bfloat16_bits

__all__ = ["GpuAdapter"]

Float32Array = npt.NDArray[np.float32]

_FORMS = ("float32", "bfloat16", "float16")  # kernels know them by their place


@dataclass(frozen=True)
class _Site:
    """What one linear gets: A and B in bindings, each beside the header.

    Also the rank, the outputs and the form of both.
    """

    down: Bindings
    up: Bindings
    rank: int
    outputs: int
    form: int


class GpuAdapter:
    """What one adapter adds to the linears of a program. Immutable.

    Args:
        device: what keeps it.
        owner: the program that it is for.
        number: the name that its rows have in a step, from 1 on.
        factors: A, B and scale by site; they fit.

    Attributes:
        owner, number: as given.
        most_rank: the largest rank of a site.
        nbytes: what the matrices take.
    """

    def __init__(self, device: GpuDevice, owner: object, number: int, factors: Mapping[str, LowRankFactors]) -> None:
        self.owner = owner
        self.number = number
        self.most_rank = max([len(site.a) for site in factors.values()], default=0)
        self.nbytes = 0
        self._device = device
        self._sites = {name: self._site(site) for name, site in factors.items()}

    def _site(self, factors: LowRankFactors) -> _Site:
        form = _form_of([factors.a, factors.b])
        header = np.array([self.number, len(factors.a), factors.scale], np.float32)
        scales = upload_pieces(self._device, header.nbytes, [header.view(np.uint8)])
        down, up = (
            self._device.bind("weights", [upload_pieces(self._device, data.size, [data]), scales, scales])
            for data in (_bytes(factors.a, form), _bytes(factors.b, form))
        )
        self.nbytes += (factors.a.size + factors.b.size) * (4 if form == 0 else 2)
        return _Site(down, up, len(factors.a), len(factors.b), form)

    def dispatches(self, site: str, launch: Launch, record: int) -> Iterator[Dispatch]:
        """Yield what adds this adapter's part to ``launch.groups`` rows of a linear.

        Yield nothing if it has none.
        """
        part = self._sites.get(site)
        if part is None:
            return
        constants = sorted_constants({**dict(launch.constants), "FORM": part.form})
        down, up = (self._device.kernel(f"{launch.kernel}_{way}", constants) for way in ("down", "up"))
        yield Dispatch(down, part.down, record, launch.groups * part.rank)
        yield Dispatch(up, part.up, record, groups(launch.groups * part.outputs, WORKGROUP))


def _form_of(matrices: Sequence[Float32Array]) -> int:
    """Return the narrowest form that holds every number exactly: the file's, or wider."""
    if all(not (matrix.reshape(-1).view(np.uint32) & 0xFFFF).any() for matrix in matrices):
        return _FORMS.index("bfloat16")
    with np.errstate(over="ignore"):
        is_half = all(np.array_equal(matrix, matrix.astype(np.float16)) for matrix in matrices)
    return _FORMS.index("float16" if is_half else "float32")


def _bytes(matrix: Float32Array, form: int) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(_WRITERS[_FORMS[form]](matrix)).view(np.uint8).reshape(-1)


_WRITERS: dict[str, Callable[[Float32Array], npt.NDArray[Any]]] = {
    "float32": np.ascontiguousarray,
    "bfloat16": bfloat16_bits,
    "float16": lambda matrix: matrix.astype(np.float16),
}
