"""Programs for training in NumPy: slow, readable, and by default in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.batch_checks import (
    check_ids,
    check_inputs,
    id_tables,
    input_shapes,
    refuse_closed,
    refuse_non_finite,
)
from lattice_inference.backends.protocol import Outputs
from lattice_inference.backends.reference import compute
from lattice_inference.backends.reference_reverse import REVERSE_KERNELS, ReferenceSite, site_op
from lattice_inference.backends.training_protocol import SiteFactors
from lattice_inference.graph.program import Buffer, Program
from lattice_inference.graph.training_batch import TrainingBatch

__all__ = ["ReferenceFactors", "ReferenceTraining", "run_training"]

Array = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]


def run_training(
    program: Program, weights: Mapping[str, Array], batch: TrainingBatch, sites: Mapping[str, ReferenceSite]
) -> tuple[dict[str, Array], int]:
    """Run a program for training; return its outputs, and the most bytes of rows at a time.

    Args:
        program: as :func:`~lattice_inference.graph.backward.differentiate` makes it.
        weights: checkpoint tensors by name, of the type of all computations.
        batch: the batch.
        sites: the factors; ops add to their gradients.
    """
    last_read = {view.buffer: index for index, op in enumerate(program.ops) for view in op.inputs}
    last_read |= {view.buffer: len(program.ops) for view in program.outputs.values()}
    values: dict[Buffer, Array] = {}
    most = 0
    for index, op in enumerate(program.ops):
        inputs = [values[view.buffer] for view in op.inputs]
        if "site" in op.attributes:
            output = site_op(op, inputs, sites[str(op.attributes["site"])], batch)
            outputs = [] if output is None else [output]
        else:
            tensors = {
                name: np.concatenate([weights[source] for source in ref.sources]) for name, ref in op.weights.items()
            }
            kernel = REVERSE_KERNELS.get(op.kind)
            outputs = kernel(op, inputs, tensors, batch) if kernel else [compute(op, inputs, tensors, batch)]
        values |= {view.buffer: rows for view, rows in zip(op.outputs, outputs, strict=False)}
        most = max(most, sum(rows.nbytes for rows in values.values()))
        values = {buffer: rows for buffer, rows in values.items() if last_read.get(buffer, -1) > index}
    return {name: values[view.buffer] for name, view in program.outputs.items()}, most


class ReferenceFactors:
    """Factors and gradients in float64.

    See :class:`~lattice_inference.backends.training_protocol.Factors`.
    """

    def __init__(self, sizes: Mapping[str, SiteFactors]) -> None:
        self.sites: dict[str, ReferenceSite] = {}
        for name, size in sizes.items():
            a, b = (size.rank, size.inputs), (size.outputs, size.rank)
            self.sites[name] = ReferenceSite(np.zeros(a), np.zeros(b), np.zeros(a), np.zeros(b))

    @property
    def nbytes(self) -> int:
        """The size of all factors and gradients in bytes."""
        return sum(2 * (site.a.nbytes + site.b.nbytes) for site in self.sites.values())

    def write(self, site: str, a: Float32Array, b: Float32Array) -> None:
        """Set A and B of a site."""
        self.sites[site].a[:], self.sites[site].b[:] = a, b

    def read(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return A and B of a site."""
        return self.sites[site].a.astype(np.float32), self.sites[site].b.astype(np.float32)

    def zero_gradients(self) -> None:
        """Set all gradients to 0."""
        for site in self.sites.values():
            site.da[:], site.db[:] = 0, 0

    def gradients(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return dA and dB of a site."""
        return self.sites[site].da.astype(np.float32), self.sites[site].db.astype(np.float32)


class ReferenceTraining:
    """Programs that share weights and factors.

    See :class:`~lattice_inference.backends.training_protocol.CompiledTraining`.

    Args:
        programs: the programs by name.
        weights: the weights by tensor name, float32.
        factors: the sizes of each site.
    """

    def __init__(
        self, programs: Mapping[str, Program], weights: Mapping[str, Float32Array], factors: Mapping[str, SiteFactors]
    ) -> None:
        self.factors: ReferenceFactors = ReferenceFactors(factors)
        self._programs = dict(programs)
        self._tables = {name: id_tables(program) for name, program in programs.items()}
        self._inputs = {name: input_shapes(program) for name, program in programs.items()}
        self._weights: dict[str, Array] | None = {name: array.astype(np.float64) for name, array in weights.items()}
        self._fixed = sum(array.nbytes for array in self._weights.values()) + self.factors.nbytes
        self._most = 0

    @property
    def peak_bytes(self) -> int:
        """The most memory that weights, factors and one run have taken together so far."""
        return self._fixed + self._most

    def run(self, name: str, batch: TrainingBatch) -> Outputs:
        """Run the program with this name."""
        if self._weights is None:
            refuse_closed()
        check_ids(batch, self._tables[name])
        check_inputs(self._inputs[name], batch)
        with np.errstate(all="ignore"):  # an overflow is refused in the results
            results, most = run_training(self._programs[name], self._weights, batch, self.factors.sites)
        self._most = max(self._most, most)
        outputs = {key: np.ascontiguousarray(rows, np.float32) for key, rows in results.items()}
        refuse_non_finite(outputs)
        return outputs

    def close(self) -> None:
        """Release the weights and the factors."""
        self._weights = None
        self.factors = ReferenceFactors({})
