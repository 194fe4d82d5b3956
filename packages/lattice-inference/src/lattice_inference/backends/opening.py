"""The backends by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

from lattice_inference.argument_checks import check_choice
from lattice_inference.backends.protocol import AdaptingProgram, Backend, BackendProgram
from lattice_inference.errors import UnsupportedError
from lattice_inference.precision import Activations, Precision

if TYPE_CHECKING:
    from lattice_inference.calibration import InputRange

__all__ = ["BackendName", "as_adapting", "check_backend", "open_backend"]

BackendName = Literal["cpu", "reference"]
"""``"cpu"``: C kernels. ``"reference"``: NumPy in float64, slow and readable, to compare results with."""


def check_backend(name: object) -> None:
    """Raise UnsupportedError if there is no backend of that name."""
    check_choice("backend", name, get_args(BackendName), UnsupportedError)


def as_adapting(program: BackendProgram) -> AdaptingProgram:
    """Return ``program``, whose sequences may have adapters.

    Raises:
        UnsupportedError: adapters are not built for its backend.
    """
    if not isinstance(program, AdaptingProgram):
        raise UnsupportedError(
            f"adapters are not built for {type(program).__name__}: load the model on the CPU, or merge the adapter"
        )
    return program


def open_backend(
    name: BackendName = "cpu",
    *,
    threads: int | None = None,
    precision: Precision = "float32",
    activations: Activations = "int8",
    input_ranges: Mapping[str, InputRange] | None = None,
) -> Backend:
    """Return a backend.

    Args:
        name: which one.
        threads: the most threads a step may use; by default all of the process's pool.
        precision: what weights are kept in.
        activations: what quantized weights are multiplied by.
        input_ranges: fixed ranges for the inputs of int8 linears, by a weight's name.

    Raises:
        UnsupportedError: there is no such backend, or it has no such option.
    """
    check_backend(name)
    if name == "reference":
        from lattice_inference.backends.reference_backend import ReferenceBackend

        return ReferenceBackend(threads=threads, precision=precision, activations=activations)
    from lattice_inference.backends.cpu import CpuBackend

    return CpuBackend(threads=threads, precision=precision, activations=activations, input_ranges=input_ranges)
