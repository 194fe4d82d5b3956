"""The backends by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

from lattice_inference.argument_checks import check_choice
from lattice_inference.backends.protocol import AdaptingProgram, Backend, BackendProgram
from lattice_inference.device_name import DeviceName
from lattice_inference.errors import DeviceUnavailableError, UnsupportedError
from lattice_inference.precision import Activations, Precision

if TYPE_CHECKING:
    from lattice_inference.backends.tensor_source import TensorSource
    from lattice_inference.calibration import InputRange
    from lattice_inference.graph.program import Program

__all__ = [
    "BackendName",
    "DeviceName",
    "as_adapting",
    "check_backend",
    "default_activations",
    "open_backend",
    "token_bytes",
]

BackendName = Literal["cpu", "reference"]
"""``"cpu"``: C kernels. ``"reference"``: NumPy in float64, slow and readable, to compare results with."""


def check_backend(name: object, device: object = "cpu") -> None:
    """Raise UnsupportedError unless a backend and a device are known and fit each other."""
    check_choice("backend", name, get_args(BackendName), UnsupportedError)
    check_choice("device", device, get_args(DeviceName), UnsupportedError)
    if name == "reference" and device != "cpu":
        raise UnsupportedError(f"the reference backend computes on the CPU: leave out device={device!r}")


def default_activations(device: str) -> Activations:
    """Return what quantized weights are multiplied by on a device, by default."""
    return "int8" if device == "cpu" else "float32"


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


def token_bytes(program: Program, source: TensorSource, precision: Precision) -> int:
    """Return the bytes that a token of a step takes in the CPU's arena.

    It reads no weight. The scratch of threads comes on top.
    """
    from lattice_inference.backends.cpu import CpuBackend

    return CpuBackend(precision=precision).token_bytes(program, source)


def open_backend(
    name: BackendName = "cpu",
    *,
    device: DeviceName = "cpu",
    threads: int | None = None,
    precision: Precision = "float32",
    activations: Activations | None = None,
    input_ranges: Mapping[str, InputRange] | None = None,
) -> Backend:
    """Return a backend.

    Args:
        name: which one, of the CPU's.
        device: what computes.
        threads: the most threads a step may use; by default all of the process's pool.
        precision: what weights are kept in.
        activations: what quantized weights are multiplied by; by default what the device does best.
        input_ranges: fixed ranges for the inputs of int8 linears, by a weight's name.

    Raises:
        UnsupportedError: there is no such backend, or it has no such option.
        DeviceUnavailableError: the device cannot be used here.
    """
    check_backend(name, device)
    if activations is not None:
        check_choice("activations", activations, get_args(Activations), UnsupportedError)
    if name == "reference":
        from lattice_inference.backends.reference_backend import ReferenceBackend

        return ReferenceBackend(threads=threads, precision=precision, activations=activations)
    if device == "auto":
        device = _best_device() if precision != "int8" and activations != "int8" else "cpu"
    if device != "cpu" and input_ranges is not None:
        raise UnsupportedError("a calibration fixes ranges of integers, which GPUs do not multiply: leave it out")
    if device == "metal":
        from lattice_inference.backends.metal import MetalBackend

        return MetalBackend(threads=threads, precision=precision, activations=activations)
    if device == "wgpu":
        from lattice_inference.backends.wgpu import WgpuBackend

        return WgpuBackend(threads=threads, precision=precision, activations=activations)
    from lattice_inference.backends.cpu import CpuBackend

    return CpuBackend(
        threads=threads, precision=precision, activations=activations or "int8", input_ranges=input_ranges
    )


def _best_device() -> DeviceName:
    """Return the GPU that can be used and is no software, or the CPU."""
    from lattice_inference.backends.metal.device import open_device
    from lattice_inference.backends.wgpu.adapters import usable_adapter

    try:
        open_device()
    except DeviceUnavailableError:
        pass
    else:
        return "metal"
    try:
        return "cpu" if usable_adapter().is_software else "wgpu"
    except DeviceUnavailableError:
        return "cpu"
