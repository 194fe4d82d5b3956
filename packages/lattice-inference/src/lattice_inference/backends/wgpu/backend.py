"""The GPU backend on a Vulkan device."""

from __future__ import annotations

from lattice_inference.backends.gpu.backend import GpuBackend
from lattice_inference.backends.wgpu.device import open_device
from lattice_inference.precision import Activations, Precision

__all__ = ["WgpuBackend"]


class WgpuBackend(GpuBackend):
    """Runs programs on this machine's Vulkan device.

    See :class:`~lattice_inference.backends.gpu.backend.GpuBackend`.

    Raises:
        DeviceUnavailableError: there is none; the error names the remedy.
        UnsupportedError, InvalidInputError: as for every GPU.
    """

    def __init__(
        self,
        *,
        fused: bool = True,
        threads: int | None = None,
        precision: Precision = "float32",
        activations: Activations | None = None,
        max_binding_bytes: int | None = None,
        subgroups: bool | None = None,
    ) -> None:
        super().__init__(
            open_device(),
            fused=fused,
            threads=threads,
            precision=precision,
            activations=activations,
            max_binding_bytes=max_binding_bytes,
            subgroups=subgroups,
        )
