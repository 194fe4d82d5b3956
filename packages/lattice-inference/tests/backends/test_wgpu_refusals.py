"""WGPU's adapters and devices that cannot be used, or fail: a stand-in for the package plays what no driver does."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lattice_inference.backends.gpu.device import DeviceDescription
from lattice_inference.backends.gpu.process_device import OpenedOnce
from lattice_inference.backends.wgpu import adapters
from lattice_inference.backends.wgpu import device as wgpu_device
from lattice_inference.backends.wgpu.device import WgpuBuffer, WgpuDevice, WgpuReading
from lattice_inference.errors import DeviceLostError, DeviceMemoryError, DeviceUnavailableError

ENOUGH = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16_384,
    "max-storage-buffer-binding-size": 1 << 27,
    "max-buffer-size": 1 << 28,
}


USES = ("STORAGE", "COPY_SRC", "COPY_DST", "UNIFORM", "MAP_READ", "MAP_WRITE")


class GPUError(Exception):
    """As the package's."""


class GPUOutOfMemoryError(GPUError):
    """As the package's."""


def adapter_of(name="A", kind="DiscreteGPU", backend="Vulkan", request=None, **limits):
    info = {"adapter_type": kind, "backend_type": backend, "device": name, "description": "1.0"}
    limits = ENOUGH | {key.replace("_", "-"): value for key, value in limits.items()}
    return SimpleNamespace(info=info, limits=limits, features={"subgroup"}, request_device_sync=request)


@pytest.fixture
def present(monkeypatch):
    """Make the package and Vulkan present, with adapters that a test appends."""
    found: list[Any] = []
    usage = {name: 1 << index for index, name in enumerate(USES)}
    package = SimpleNamespace(
        gpu=SimpleNamespace(enumerate_adapters_sync=lambda: found),
        BufferUsage=SimpleNamespace(**usage),
        ShaderStage=SimpleNamespace(COMPUTE=4),
        GPUError=GPUError,
        GPUOutOfMemoryError=GPUOutOfMemoryError,
    )
    monkeypatch.setitem(sys.modules, "wgpu", package)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: f"lib{name}.so.1")
    monkeypatch.delenv(adapters.SOFTWARE_VARIABLE, raising=False)
    monkeypatch.setattr(wgpu_device, "_opened", OpenedOnce(wgpu_device._open))
    return found


def test_without_the_vulkan_library_its_package_is_named(present, monkeypatch):
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.setattr("os.path.exists", lambda path: False)
    with pytest.raises(DeviceUnavailableError, match="install libvulkan1"):
        adapters.usable_adapter()


def test_without_an_adapter_a_driver_is_named(present):
    with pytest.raises(DeviceUnavailableError, match="found no Vulkan adapter: install the driver of your GPU"):
        wgpu_device.open_device()


@pytest.mark.parametrize(
    ("adapter", "problem"),
    [
        (adapter_of(backend="OpenGL"), "it is of OpenGL, and only Vulkan is taken"),
        (adapter_of(kind="CPU"), "set LATTICE_WGPU_SOFTWARE=1"),
        (adapter_of(max_storage_buffers_per_shader_stage=4), "kernels need 8 storage buffers"),
        (adapter_of(max_compute_workgroup_storage_size=8_192), "kernels need 16384 bytes of workgroup memory"),
    ],
)
def test_an_adapter_that_is_not_taken_says_why(present, adapter, problem):
    present.append(adapter)
    with pytest.raises(DeviceUnavailableError, match=rf"can take no adapter of this machine \(A: .*{problem}"):
        wgpu_device.open_device()
    assert problem in adapters.list_adapters()[0].describe()


def test_the_best_adapter_that_can_be_used_is_taken(present, monkeypatch):
    present += [adapter_of("slow", "IntegratedGPU"), adapter_of("other", backend="OpenGL"), adapter_of("fast")]
    present.append(adapter_of("software", "CPU"))
    assert adapters.usable_adapter().name == "fast"
    assert [each.name for each in adapters.list_adapters()[:2]] == ["fast", "slow"]
    del present[:3]
    monkeypatch.setenv(adapters.SOFTWARE_VARIABLE, "1")
    assert adapters.usable_adapter().is_software
    assert "software" in DeviceDescription("wgpu", "llvmpipe", "1.0", True).identity


def test_an_adapter_that_gives_no_device_is_told(present):
    def request(**options):
        raise RuntimeError("Parent device is lost")

    present.append(adapter_of(request=request))
    with pytest.raises(DeviceUnavailableError, match="A cannot be opened: Parent device is lost"):
        wgpu_device.open_device()


class Handle:
    """The package's device; its next call raises ``fails``."""

    def __init__(self):
        self.limits, self.features, self.fails, self.submitted = ENOUGH, set(), None, 0
        self.queue = self

    def _called(self):
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure

    def create_bind_group_layout(self, **options):
        return options

    def create_buffer(self, size, usage, mapped_at_creation=False):
        self._called()
        return SimpleNamespace(size=size, write_mapped=lambda data: None, unmap=lambda: None)

    def create_command_encoder(self):
        return SimpleNamespace(copy_buffer_to_buffer=lambda *arguments: None, finish=lambda: None)

    def submit(self, commands):
        self._called()
        self.submitted += 1


@pytest.fixture
def device(present):
    return WgpuDevice(Handle(), DeviceDescription("wgpu", "A", "1.0", False))


def uses_of(device):
    """Calls that ask the device for something: an allocation, an upload, a copy of a page."""
    source, target = device.buffer(1_000_000), device.buffer(64)
    return {
        "buffer": lambda: device.buffer(1_000_000),
        "upload": lambda: device.upload(source, np.zeros(1_000_000, np.uint8)),
        "copy": lambda: device.copy([(wgpu_device.Span(source, 0, 16), target, 0)]),
    }


@pytest.mark.parametrize("use", ["buffer", "upload"])
def test_memory_that_is_not_there_is_told_in_bytes_and_the_device_goes_on(device, use):
    uses = uses_of(device)
    for failure in (GPUOutOfMemoryError("none"), GPUError("Validation Error\n\nCaused by:\n  Not enough memory left.")):
        device._handle.fails = failure
        with pytest.raises(DeviceMemoryError, match="A has no room for 1,000,000 bytes more"):
            uses[use]()
    assert not device.is_lost
    uses[use]()
    device._handle.fails = GPUError("Buffer size 1000000 is greater than the maximum buffer size")
    with pytest.raises(DeviceMemoryError, match="no buffers of 1,000,000 bytes"):
        uses[use]()
    device._handle.fails = GPUError("another error")
    with pytest.raises(GPUError, match="another error"):
        uses[use]()


@pytest.mark.parametrize("use", ["buffer", "upload", "copy"])
def test_a_device_that_is_lost_in_a_call_is_lost_in_every_later_one(device, use):
    uses = uses_of(device)
    device._handle.fails = GPUError("Validation Error\n\nCaused by:\n  Parent device is lost\n")
    for call in (use, *uses):
        with pytest.raises(DeviceLostError, match=r"A was lost \(Parent device is lost\): load the model again"):
            uses[call]()
    with pytest.raises(DeviceLostError):
        device.read([])


class Mapping:
    """What map_async gives: it is interrupted, or fails, as often as it is told to."""

    def __init__(self, *failures):
        self.failures = list(failures)

    def sync_wait(self):
        if self.failures:
            raise self.failures.pop(0)


def reading_of(device, *failures):
    """Eight bytes on their way, and how often a mapping was begun."""
    begun = []

    def map_async(*arguments):
        begun.append(arguments)
        return Mapping(*failures)

    content = SimpleNamespace(
        map_async=map_async, read_mapped=lambda offset, size, copy: bytes(range(size)), unmap=lambda: None
    )
    return WgpuReading(device, WgpuBuffer(content, 16), 8), begun


def test_a_wait_that_was_interrupted_goes_on_with_its_mapping(device):
    reading, begun = reading_of(device, KeyboardInterrupt(), KeyboardInterrupt())
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            reading.wait()
    assert reading.wait().tolist() == list(range(8))
    assert len(begun) == 1
    assert not device.is_lost


@pytest.mark.parametrize("failure", [GPUError("device lost"), RuntimeError("Buffer is destroyed")])
def test_a_device_that_is_lost_in_a_wait_gives_no_numbers(device, failure):
    reading, _ = reading_of(device, failure)
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="load the model again"):
            reading.wait()
    with pytest.raises(DeviceLostError):
        device.buffer(16)


def test_a_forked_child_is_refused_in_every_call(device, monkeypatch):
    uses = uses_of(device)
    reading, _ = reading_of(device)
    monkeypatch.setattr("os.getpid", lambda: -1)
    for call in (*uses.values(), reading.wait, device.check):
        with pytest.raises(DeviceUnavailableError, match=r"forked.*'spawn'"):
            call()


def test_a_child_of_a_process_that_opened_a_device_opens_none(present, monkeypatch):
    """Also when that device was lost, and while another thread was opening it, whose lock the child would wait for."""
    present.append(adapter_of(request=lambda **options: Handle()))
    wgpu_device.open_device().lose("gone")
    assert not wgpu_device.open_device().is_lost
    wgpu_device.open_device().lose("gone")
    with wgpu_device._opened._lock, monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: -1)
        with pytest.raises(DeviceUnavailableError, match=r"forked.*'spawn'"):
            wgpu_device.open_device()


def test_a_child_may_open_a_device_where_the_parent_found_none(present, monkeypatch):
    with pytest.raises(DeviceUnavailableError, match="found no Vulkan adapter"):
        wgpu_device.open_device()
    present.append(adapter_of(request=lambda **options: Handle()))
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert wgpu_device.open_device().description.name == "A"
