"""Every body of the ops of inference: the levels of the CPU, and a GPU.

The GPU is a Mac's by Metal, or WGPU where its package and an adapter are there. With ``LATTICE_METAL_EMULATED=1`` it is the
Metal kernels, run by the CPU (``tools/metal``), and the only body of ops that all bodies compute.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lattice_inference.backends import opening
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.gpu.backend import GpuBackend
from lattice_inference.errors import DeviceUnavailableError

TOOLS = Path(__file__).parents[4] / "tools" / "metal"


@dataclass(frozen=True)
class Body:
    """One body: its name, and what makes its backend."""

    name: str
    backend: Callable[..., Any]

    def __str__(self) -> str:
        return self.name


def has_wgpu() -> bool:
    """Whether tests may use WGPU here. ``LATTICE_REQUIRE_WGPU=1`` makes it an error that they may not."""
    try:
        if importlib.util.find_spec("wgpu") is None:
            raise DeviceUnavailableError("the package wgpu is not installed")
        from lattice_inference.backends.wgpu.adapters import usable_adapter

        usable_adapter()
    except DeviceUnavailableError:
        if os.environ.get("LATTICE_REQUIRE_WGPU") == "1":
            raise
        return False
    return True


def has_metal() -> bool:
    """Whether this is a Mac whose GPU tests may use. ``LATTICE_REQUIRE_METAL_DEVICE=1`` makes it an error that it is not."""
    from lattice_inference.backends.metal.device import open_device

    try:
        open_device()
    except DeviceUnavailableError:
        if os.environ.get("LATTICE_REQUIRE_METAL_DEVICE") == "1":
            raise
        return False
    return True


def _metal(**options: Any) -> Any:
    from lattice_inference.backends.metal import MetalBackend

    return MetalBackend(**options)


def _wgpu(**options: Any) -> Any:
    from lattice_inference.backends.wgpu import WgpuBackend

    return WgpuBackend(**options)


def emulated_metal(**options: Any) -> Any:
    """Return a backend of the Metal kernels that the CPU runs."""
    sys.path.insert(0, str(TOOLS))
    try:
        from emulated_device import emulated_device
    finally:
        sys.path.pop(0)
    return GpuBackend(emulated_device(), **options)


def _open_with_metal(*args: Any, device: str = "cpu", **options: Any) -> Any:
    """Open a backend; the emulation is the device ``"metal"``."""
    if device != "metal":
        return _open_backend(*args, device=device, **options)
    options.pop("input_ranges", None)
    return emulated_metal(**options)


_open_backend = opening.open_backend
IS_METAL_EMULATED = os.environ.get("LATTICE_METAL_EMULATED") == "1"
CPU_BODIES = [Body(isa, partial(CpuBackend, isa=isa)) for isa in _cpu.available_isas()]
if IS_METAL_EMULATED:
    DEVICE = "metal"
    GPU_BODIES = [Body("metal", emulated_metal)]
    BODIES = GPU_BODIES
    for module in list(sys.modules.values()):
        if getattr(module, "open_backend", None) is _open_backend:
            module.open_backend = _open_with_metal  # type: ignore[attr-defined]
elif has_metal():
    DEVICE = "metal"
    GPU_BODIES = [Body("metal", _metal)]
    BODIES = [*CPU_BODIES, *GPU_BODIES]
else:
    DEVICE = "wgpu"
    GPU_BODIES = [Body("wgpu", _wgpu)] if has_wgpu() else []
    BODIES = [*CPU_BODIES, *GPU_BODIES]


def gpu_backend(**options: Any) -> Any:
    """Return a backend of the GPU."""
    return GPU_BODIES[0].backend(**options)
