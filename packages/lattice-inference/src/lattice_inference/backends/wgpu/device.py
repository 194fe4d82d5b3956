"""A Vulkan device by the package wgpu: buffers, upload, kernels, submit, read back.

Its errors become ours: a device that is lost says so in every later call, and never gives wrong numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.gpu.device import (
    BindingKind,
    Bindings,
    Constants,
    DeviceDescription,
    Dispatch,
    GpuBuffer,
    Kernel,
    Prepared,
    Span,
)
from lattice_inference.backends.gpu.process_device import OpenedOnce, ProcessDevice
from lattice_inference.backends.gpu.record import RECORD
from lattice_inference.backends.wgpu.adapters import usable_adapter
from lattice_inference.backends.wgpu.encoding import PreparedDispatches
from lattice_inference.backends.wgpu.shaders import KERNELS, shader
from lattice_inference.errors import DeviceMemoryError, DeviceUnavailableError
from lattice_inference.process_lock import ProcessLock

__all__ = ["WgpuDevice", "open_device"]

ByteArray = npt.NDArray[np.uint8]

_UPLOAD_BYTES = 32 << 20  # copies of what is written that wait for a submission

# Buffers of each kind of bindings, as WebGPU names their types; the records of a step are found by an offset.
_LAYOUTS: dict[BindingKind, tuple[str, ...]] = {
    "step": ("storage", "read-only-storage", "uniform"),
    "weights": ("read-only-storage",) * 3,
    "pages": ("storage",) * 2,
    "slots": ("storage", "read-only-storage", "read-only-storage"),
}


@dataclass(frozen=True)
class WgpuBuffer:
    """A buffer of a :class:`WgpuDevice`."""

    handle: Any
    nbytes: int


class WgpuReading:
    """Bytes that are on their way; see :class:`~lattice_inference.backends.gpu.device.Reading`."""

    def __init__(self, device: WgpuDevice, staging: WgpuBuffer, nbytes: int) -> None:
        self._device = device
        self._staging = staging
        self._nbytes = nbytes
        self._mapping: Any = None

    def wait(self) -> ByteArray:
        """Return the bytes."""
        device, staging = self._device, self._staging
        with device.translated_errors():
            try:
                if self._mapping is None:  # a wait that was interrupted goes on with the mapping that it began
                    self._mapping = staging.handle.map_async("READ_NOSYNC", 0, staging.nbytes)
                self._mapping.sync_wait()
                read = staging.handle.read_mapped(0, self._nbytes, copy=True) if self._nbytes else b""
                content = np.frombuffer(read, np.uint8)
                staging.handle.unmap()
            except (RuntimeError, AttributeError) as cause:  # the package has taken its device apart
                device.lose(f"it gave no results: {cause}")
        device.check()
        device.give_back(staging)
        return content


class WgpuDevice(ProcessDevice):
    """A device of WebGPU. Use :func:`open_device`.

    See :class:`~lattice_inference.backends.gpu.device.GpuDevice`.

    Args:
        handle: the package's device.
        description: what it is.
    """

    few_columns = 4

    def __init__(self, handle: Any, description: DeviceDescription) -> None:
        import wgpu

        super().__init__(description)
        self.max_binding_bytes = int(
            min(handle.limits["max-storage-buffer-binding-size"], handle.limits["max-buffer-size"])
        )
        self.has_subgroups = "subgroup" in handle.features
        self._handle = handle
        self._lock = ProcessLock()
        self._kernels: dict[tuple[str, Constants], Any] = {}
        self._staging: list[WgpuBuffer] = []
        self._writes: list[tuple[Any, Any, int, int]] = []  # what is written: its copy, where to, the place, the bytes
        self._waiting = 0  # bytes of these copies
        self._memory_error = wgpu.GPUOutOfMemoryError
        self._error = wgpu.GPUError
        self._usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self._uniform = self._usage | wgpu.BufferUsage.UNIFORM
        self._reading = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self._writing = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        with self.translated_errors():
            self._layouts = {kind: self._layout(kind, types) for kind, types in _LAYOUTS.items()}

    def _layout(self, kind: BindingKind, types: tuple[str, ...]) -> Any:
        import wgpu

        entries = [
            {
                "binding": index,
                "visibility": wgpu.ShaderStage.COMPUTE,
                "buffer": {"type": name, "has_dynamic_offset": name == "uniform"},
            }
            for index, name in enumerate(types)
        ]
        return self._handle.create_bind_group_layout(label=kind, entries=entries)

    @contextlib.contextmanager
    def translated_errors(self, nbytes: int = 0) -> Iterator[None]:
        """Raise the package's errors as ours; the block asks the device for ``nbytes``."""
        self.check()
        try:
            yield
        except self._error as cause:
            text = str(cause)
            if isinstance(cause, self._memory_error) or "Not enough memory" in text:
                raise DeviceMemoryError(
                    f"{self.description.name} has no room for {nbytes:,} bytes more: load a smaller model, open a smaller "
                    "cache, or close others"
                ) from cause
            if "lost" in text:
                self.lose(text.strip().splitlines()[-1].strip())  # the last line has the first cause
                self.check()
            if "buffer size" in text.lower():
                raise DeviceMemoryError(
                    f"{self.description.name} has no buffers of {nbytes:,} bytes: open a smaller cache or pass shorter texts"
                ) from cause
            raise

    @contextlib.contextmanager
    def _allocating(self, nbytes: int) -> Iterator[None]:
        """Raise errors as ours in a block that takes memory.

        Without room, what writes hold is let go.
        """
        try:
            with self.translated_errors(nbytes):
                yield
        except DeviceMemoryError:
            with self._lock, self.translated_errors():
                self._send(self._encoder())
            raise

    def buffer(self, nbytes: int) -> WgpuBuffer:
        """Return a buffer of at least ``nbytes``."""
        return self._buffer(nbytes, self._uniform)

    def _buffer(self, nbytes: int, usage: int) -> WgpuBuffer:
        size = max(16, -(-nbytes // 4) * 4)
        with self._allocating(size):
            return WgpuBuffer(self._handle.create_buffer(size=size, usage=usage), size)

    def upload(self, buffer: GpuBuffer, data: ByteArray, offset: int = 0) -> None:
        """Write bytes into a buffer from ``offset`` on.

        The package's own writes lose the device where there is no room for their copies, so copies are made here.
        """
        assert isinstance(buffer, WgpuBuffer)
        for begin in range(0, data.size, _UPLOAD_BYTES):
            part = data[begin : begin + _UPLOAD_BYTES]
            if part.size % 4:
                part = np.concatenate([part, np.zeros(-part.size % 4, np.uint8)])
            assert offset + begin + part.size <= buffer.nbytes  # else every later submission would be refused
            with self._allocating(part.size):
                copy = self._handle.create_buffer(size=part.size, usage=self._writing, mapped_at_creation=True)
                copy.write_mapped(np.ascontiguousarray(part))
                copy.unmap()
            with self._lock, self.translated_errors():
                self._writes.append((copy, buffer.handle, offset + begin, part.size))
                self._waiting += part.size
                if self._waiting >= _UPLOAD_BYTES:
                    self._send(self._encoder())

    def _encoder(self) -> Any:
        """Return an encoder that begins with all writes. The lock is held until :meth:`_send`."""
        encoder = self._handle.create_command_encoder()
        for copy, target, offset, size in self._writes:
            encoder.copy_buffer_to_buffer(copy, 0, target, offset, size)
        return encoder

    def _send(self, encoder: Any) -> None:
        self._handle.queue.submit([encoder.finish()])
        self._writes.clear()  # not earlier: an interrupt would lose them, and what they write
        self._waiting = 0

    def kernel(self, name: str, constants: Constants) -> Kernel:
        """Return a kernel, compiled once."""
        key = (name, constants)
        with self._lock:
            if key not in self._kernels:
                with self.translated_errors():
                    kind = KERNELS[name].bindings
                    layouts = [self._layouts["step"], *([] if kind is None else [self._layouts[kind]])]
                    self._kernels[key] = self._handle.create_compute_pipeline(
                        label=name,
                        layout=self._handle.create_pipeline_layout(bind_group_layouts=layouts),
                        compute={
                            "module": self._handle.create_shader_module(label=name, code=shader(name, constants)),
                            "entry_point": "main",
                        },
                    )
            kernel: Kernel = self._kernels[key]
            return kernel

    def bind(self, kind: BindingKind, buffers: Sequence[GpuBuffer]) -> Bindings:
        """Return bindings of ``buffers``."""
        entries = []
        for index, buffer in enumerate(buffers):
            assert isinstance(buffer, WgpuBuffer)
            size = RECORD.itemsize if _LAYOUTS[kind][index] == "uniform" else buffer.nbytes
            entries.append({"binding": index, "resource": {"buffer": buffer.handle, "offset": 0, "size": size}})
        with self.translated_errors():
            bindings: Bindings = self._handle.create_bind_group(layout=self._layouts[kind], entries=entries)
            return bindings

    def prepare(self, dispatches: Sequence[Dispatch]) -> PreparedDispatches:
        """Return dispatches as :meth:`submit` takes them."""
        return PreparedDispatches(dispatches)

    def submit(self, step: Bindings, dispatches: Prepared, spans: Sequence[Span]) -> WgpuReading:
        """Run kernels one after the other, then read ``spans``."""
        assert isinstance(dispatches, PreparedDispatches)
        nbytes = sum(span.nbytes for span in spans)
        staging = self._take_staging(max(nbytes, 4))
        with self._lock, self.translated_errors():
            encoder = self._encoder()
            if dispatches:
                compute = encoder.begin_compute_pass()
                dispatches.encode(compute, step)
                compute.end()
            offset = 0
            for span in spans:
                assert isinstance(span.buffer, WgpuBuffer)
                encoder.copy_buffer_to_buffer(span.buffer.handle, span.offset, staging.handle, offset, span.nbytes)
                offset += span.nbytes
            self._send(encoder)
        return WgpuReading(self, staging, nbytes)

    def copy(self, copies: Sequence[tuple[Span, GpuBuffer, int]]) -> None:
        """Copy spans into other buffers, in order."""
        with self._lock, self.translated_errors():
            encoder = self._encoder()
            for span, target, offset in copies:
                assert isinstance(span.buffer, WgpuBuffer)
                assert isinstance(target, WgpuBuffer)
                if span.nbytes:
                    encoder.copy_buffer_to_buffer(span.buffer.handle, span.offset, target.handle, offset, span.nbytes)
            self._send(encoder)

    def read(self, spans: Sequence[Span]) -> ByteArray:
        """Return the bytes of ``spans``."""
        nbytes = sum(span.nbytes for span in spans)
        staging = self._take_staging(max(nbytes, 4))
        offset = 0
        copies: list[tuple[Span, GpuBuffer, int]] = []
        for span in spans:
            copies.append((span, staging, offset))
            offset += span.nbytes
        self.copy(copies)
        return WgpuReading(self, staging, nbytes).wait()

    def _take_staging(self, nbytes: int) -> WgpuBuffer:
        """Return a buffer that the host can read.

        An idle one is taken if it is large enough and not far too large.
        """
        with self._lock:
            for index, buffer in enumerate(self._staging):
                if nbytes <= buffer.nbytes <= 4 * nbytes + 4096:
                    return self._staging.pop(index)
        return self._buffer(nbytes, self._reading)

    def give_back(self, staging: WgpuBuffer) -> None:
        """Keep a buffer that the host has read for the next step."""
        with self._lock:
            self._staging.append(staging)
            del self._staging[:-4]

    def destroy(self) -> None:
        """Lose the device, as a driver that crashes does."""
        self._handle.destroy()


def open_device() -> WgpuDevice:
    """Return this process's device: opened once, and anew after it was lost.

    Raises:
        DeviceUnavailableError: there is none; the error names the remedy.
    """
    return _opened.get()


def _open() -> WgpuDevice:
    adapter = usable_adapter()
    limits = {
        name: adapter.handle.limits[name]
        for name in ("max-storage-buffer-binding-size", "max-buffer-size", "max-compute-workgroup-storage-size")
    }
    features = [name for name in ("subgroup",) if name in adapter.handle.features]
    try:
        handle = adapter.handle.request_device_sync(required_features=features, required_limits=limits)
    except Exception as cause:
        raise DeviceUnavailableError(f"device 'wgpu': {adapter.name} cannot be opened: {cause}") from cause
    description = DeviceDescription("wgpu", adapter.name, adapter.driver, adapter.is_software)
    return WgpuDevice(handle, description)


_opened = OpenedOnce(_open)
