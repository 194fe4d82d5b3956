"""Programs of one op of the reverse pass, run by the reference and by every level of this machine's CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.reference_reverse import ReferenceSite
from lattice_inference.backends.reference_training import run_training
from lattice_inference.backends.training_protocol import SiteFactors
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import Program, View
from lattice_inference.graph.program_writer import ProgramWriter
from lattice_inference.graph.training_batch import TrainingBatch

from .programs import Tensors


@dataclass
class ReverseCase:
    """A program that feeds rows to ops of the reverse pass, and what it runs over.

    Rows are tensors that ``embed_rows`` reads by the number of the token. ``rank`` and ``site`` give factors.
    """

    lengths: Sequence[int]
    tensors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    site: tuple[int, int, int] | None = None
    writer: ProgramWriter = field(default_factory=ProgramWriter)
    outputs: dict[str, View] = field(default_factory=dict)

    def rows(self, name: str, array: np.ndarray[Any, Any]) -> View:
        """Feed an array, a row a token."""
        self.tensors[name] = array.astype(np.float32)
        weights = {"table": GraphBuilder.weight(name, array.shape, use="rows")}
        return self.writer.append("embed_rows", (), weights, {"ids": "token_ids"})[0]

    def weight(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        """Add a weight, and return its name and place."""
        self.tensors[name] = array.astype(np.float32)
        return GraphBuilder.weight(name, array.shape, use="vector" if array.ndim == 1 else "linear")

    def batch(self, **given: Any) -> TrainingBatch:
        """Return a batch whose token ids count its rows."""
        total = sum(self.lengths)
        bounds = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        return TrainingBatch(np.arange(total, dtype=np.int32), bounds, **given)

    @property
    def program(self) -> Program:
        """The program so far."""
        return Program(tuple(self.writer.ops), self.outputs)

    def factors(self, seed: int = 0) -> ReferenceSite:
        """Draw factors and gradients that are not zero."""
        assert self.site is not None
        rank, inputs, outputs = self.site
        rng = np.random.default_rng(seed)
        shapes = [(rank, inputs), (outputs, rank)] * 2
        return ReferenceSite(*[rng.standard_normal(shape).astype(np.float32).astype(np.float64) for shape in shapes])

    def expected(self, batch: TrainingBatch) -> dict[str, np.ndarray[Any, Any]]:
        """Return the reference's outputs in float64, and the gradients of the site."""
        weights = {name: array.astype(np.float64) for name, array in self.tensors.items()}
        sites = {} if self.site is None else {"s": self.factors()}
        results, _ = run_training(self.program, weights, batch, sites)
        return results if self.site is None else results | {"da": sites["s"].da, "db": sites["s"].db}

    def results(self, batch: TrainingBatch, backend: CpuBackend, source: Any = None) -> dict[str, np.ndarray[Any, Any]]:
        """Return the CPU's outputs, and the gradients of the site."""
        sizes = {} if self.site is None else {"s": SiteFactors(*self.site)}
        compiled = backend.compile_training({"p": self.program}, source or Tensors(self.tensors), sizes)
        if self.site is not None:
            given = self.factors()
            for own, array in zip(compiled.factors._arrays["s"], (given.a, given.b, given.da, given.db), strict=True):
                own[:] = array
        results = dict(compiled.run("p", batch))
        if self.site is not None:
            results["da"], results["db"] = compiled.factors.gradients("s")
        return results


def check(case: ReverseCase, batch: TrainingBatch, tolerances: Mapping[str, Any], **options: Any) -> None:
    """Compare every level, with one thread and with several, to the reference; levels with FMA give the same bits."""
    expected = case.expected(batch)
    bits: dict[str, dict[str, bytes]] = {}
    for isa in _cpu.available_isas():
        runs = [case.results(batch, CpuBackend(isa=isa, threads=threads, **options)) for threads in (1, 2)]
        for name, tolerance in tolerances.items():
            error = np.abs(runs[0][name] - expected[name])
            assert (error <= tolerance).all(), f"{name} on {isa} is off by {error.max():.3g}"
            assert runs[0][name].tobytes() == runs[1][name].tobytes(), f"{name} on {isa} depends on threads"
        if isa != "baseline":
            bits[isa] = {name: runs[0][name].tobytes() for name in tolerances}
    assert all(given == next(iter(bits.values())) for given in bits.values())
