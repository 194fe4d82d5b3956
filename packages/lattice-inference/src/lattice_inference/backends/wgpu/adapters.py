"""The Vulkan adapters of this machine, and which of them may be used."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from lattice_inference.errors import DeviceUnavailableError

__all__ = ["SOFTWARE_VARIABLE", "Adapter", "list_adapters", "usable_adapter"]

SOFTWARE_VARIABLE = "LATTICE_WGPU_SOFTWARE"
"""Set to 1, adapters that a CPU computes are taken, for tests: they are slower than the CPU backend."""

_NEEDED_STORAGE_BUFFERS = 8
_NEEDED_WORKGROUP_BYTES = 16_384


@dataclass(frozen=True)
class Adapter:
    """One adapter.

    Attributes:
        name: as its driver names it.
        driver: the driver with its version.
        is_software: whether a CPU computes what it should.
        problem: why it is not taken, with the remedy; None for one that is.
        handle: the package's object.
    """

    name: str
    driver: str
    is_software: bool
    problem: str | None
    handle: Any = None

    def describe(self) -> str:
        """Return a line about it: what it is, what it binds, and why it is not taken."""
        software = "software, " if self.is_software else ""
        binds = self.handle.limits["max-storage-buffer-binding-size"]
        subgroups = "with" if "subgroup" in self.handle.features else "without"
        text = f"{self.name} ({software}{self.driver}), binds {binds:,} bytes, {subgroups} subgroups"
        return text if self.problem is None else f"{text}: not taken, {self.problem}"


def software_is_allowed() -> bool:
    """Whether the environment allows adapters that a CPU computes."""
    return os.environ.get(SOFTWARE_VARIABLE) == "1"


def list_adapters() -> list[Adapter]:
    """Return all adapters, those that are best for computing first.

    Raises:
        DeviceUnavailableError: the package or Vulkan is missing.
    """
    if importlib.util.find_spec("wgpu") is None:
        raise DeviceUnavailableError(
            "device 'wgpu' needs the package wgpu, which is not installed: pip install 'lattice-inference[wgpu]'"
        )
    if ctypes.util.find_library("vulkan") is None and not os.path.exists("/usr/lib/libvulkan.1.dylib"):
        raise DeviceUnavailableError(
            "device 'wgpu' needs Vulkan, and libvulkan.so.1 is not installed: install libvulkan1 (Debian, Ubuntu) or "
            "vulkan-loader (Fedora), and the driver of your GPU"
        )
    import wgpu

    found = [_adapter(handle) for handle in wgpu.gpu.enumerate_adapters_sync()]
    order = {"DiscreteGPU": 0, "IntegratedGPU": 1}
    return sorted(found, key=lambda a: (a.problem is not None, order.get(a.handle.info["adapter_type"], 2)))


def usable_adapter() -> Adapter:
    """Return the adapter that is taken.

    Raises:
        DeviceUnavailableError: there is none; the error says what is missing.
    """
    adapters = list_adapters()
    if not adapters:
        raise DeviceUnavailableError(
            "device 'wgpu' found no Vulkan adapter: install the driver of your GPU, such as mesa-vulkan-drivers"
        )
    if adapters[0].problem is not None:
        problems = "; ".join(f"{adapter.name}: {adapter.problem}" for adapter in adapters)
        raise DeviceUnavailableError(f"device 'wgpu' can take no adapter of this machine ({problems})")
    return adapters[0]


def _adapter(handle: Any) -> Adapter:
    info, limits = handle.info, handle.limits
    is_software = info["adapter_type"] == "CPU"
    problem = None
    if info["backend_type"] not in ("Vulkan", "Metal"):
        problem = f"it is of {info['backend_type']}, and only Vulkan is taken: install a Vulkan driver"
    elif is_software and not software_is_allowed():
        problem = f"a CPU computes it, more slowly than device='cpu': set {SOFTWARE_VARIABLE}=1 to take it nevertheless"
    elif limits["max-storage-buffers-per-shader-stage"] < _NEEDED_STORAGE_BUFFERS:
        problem = f"kernels need {_NEEDED_STORAGE_BUFFERS} storage buffers: take another driver"
    elif limits["max-compute-workgroup-storage-size"] < _NEEDED_WORKGROUP_BYTES:
        problem = f"kernels need {_NEEDED_WORKGROUP_BYTES} bytes of workgroup memory: take another driver"
    return Adapter(str(info["device"]), str(info["description"]), is_software, problem, handle)
