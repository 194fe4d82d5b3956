"""A Metal device: buffers that it shares with the CPU, mapped files, kernels, steps.

The GPU and the CPU share memory. Results are read where they lie, and a weight whose file is mapped is used there. What the
CPU writes while steps are in flight is written beside and copied by the GPU, in order.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

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
from lattice_inference.backends.gpu.record import RECORD_STRIDE
from lattice_inference.backends.metal.kernel_source import THREADS, assembled_source, function_of
from lattice_inference.backends.metal.mapped_pages import MappedPages
from lattice_inference.errors import DeviceLostError, DeviceMemoryError, DeviceUnavailableError, UnsupportedError
from lattice_inference.process_lock import ProcessLock

if TYPE_CHECKING:
    from lattice_inference.backends.metal import _metal

__all__ = ["MetalDevice", "open_device"]

ByteArray = npt.NDArray[np.uint8]
Place = tuple["_metal.Buffer", int]
"""A buffer of the module, and where in it something begins."""

_MOST_WORDS = (1 << 32) - 1  # kernels count words of arena, pages and slots in 32 bits


class MetalBuffer:
    """Bytes of a buffer of a :class:`MetalDevice`."""

    def __init__(self, handle: _metal.Buffer, offset: int, nbytes: int) -> None:
        self.handle = handle
        self.offset = offset
        self.nbytes = nbytes

    def bytes(self, first: int, nbytes: int) -> ByteArray:
        """Return ``nbytes`` from ``first`` on as an array over the memory itself."""
        return np.frombuffer(memoryview(self.handle), np.uint8, nbytes, self.offset + first)


class MetalReading:
    """Bytes of a step; see :class:`~lattice_inference.backends.gpu.device.Reading`.

    They lie where the step wrote them until :meth:`wait`, or until another step is about to run and may write there.
    """

    def __init__(self, device: MetalDevice, commands: _metal.Commands, spans: Sequence[Span]) -> None:
        self._device = device
        self._commands = commands
        self._spans: Sequence[Span] | None = spans
        self._content = np.empty(0, np.uint8)
        self._problem: Exception | None = None
        self._lock = ProcessLock()

    def settle(self) -> None:
        """Wait for the step and take its bytes; what went wrong is kept for :meth:`wait`."""
        with self._lock:
            if self._spans is None:
                return
            try:
                self._device.finish(self._commands)
                self._content = _content(self._spans)
            except (DeviceLostError, DeviceMemoryError) as problem:
                self._problem = problem
            self._spans = None

    def wait(self) -> ByteArray:
        """Return the bytes."""
        self._device.check()
        self._device.finish(self._commands, is_told=True)  # without the lock of the device, so that others may submit
        self._device.settle(self)
        if self._problem is not None:
            raise self._problem
        return self._content


class PreparedCalls:
    """Dispatches as the module takes them."""

    def __init__(self, calls: _metal.Calls) -> None:
        self.calls = calls


class MetalDevice(ProcessDevice):
    """A device of Metal. Use :func:`open_device`.

    See :class:`~lattice_inference.backends.gpu.device.GpuDevice`.

    Args:
        handle: the module's device.

    Attributes:
        description: what it is.
        max_binding_bytes: as all devices have it.
        working_set_bytes: what the system recommends to use at most.
        library: which kernels serve: those compiled when the package was built, or the source, and then why.
    """

    has_subgroups = True
    few_columns = 8  # two simdgroups, four columns each

    def __init__(self, handle: _metal.Device) -> None:
        from lattice_inference.backends.metal import _metal

        super().__init__(DeviceDescription("metal", handle.name, handle.system))
        self.max_binding_bytes = min(handle.most_buffer_bytes, 4 * _MOST_WORDS) // 4 * 4
        self.working_set_bytes = handle.working_set_bytes
        self.library = handle.library
        self._module = _metal
        self._handle = handle
        self._lock = ProcessLock()
        self._kernels: dict[tuple[str, Constants], _metal.Kernel] = {}
        self._in_flight: list[tuple[_metal.Commands, bool]] = []
        self._unread: weakref.WeakSet[MetalReading] = weakref.WeakSet()
        self._pages = MappedPages(handle, _metal.Buffer, handle.most_buffer_bytes)

    def describe(self) -> str:
        """Return a line about it: what it is, what it may use, and which kernels serve."""
        return (
            f"{self.description.name} ({self.description.driver}), binds {self.max_binding_bytes:,} bytes, working set "
            f"{self.working_set_bytes:,} bytes, {self.library}"
        )

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise the module's errors as ours."""
        try:
            yield
        except self._module.MetalError as cause:
            if cause.status == self._module.NO_MEMORY:
                raise DeviceMemoryError(
                    f"{self.description.name} has no room: load a smaller model, open a smaller cache, or close others "
                    f"({cause})"
                ) from cause
            if cause.status in (self._module.REFUSED, self._module.UNSUITED):
                raise DeviceUnavailableError(f"device 'metal' has no such kernel: {cause}") from cause
            self.lose(str(cause))
            self.check()

    def finish(self, commands: _metal.Commands, *, is_told: bool = False) -> None:
        """Wait for commands.

        Raises:
            DeviceMemoryError, DeviceLostError: they ended in an error; with ``is_told`` only by :meth:`settle`.
        """
        try:
            with self._translated_errors():
                commands.wait()
        except (DeviceMemoryError, DeviceLostError):
            if not is_told:
                raise

    def settle(self, reading: MetalReading) -> None:
        """Take a reading's bytes before another step may run."""
        with self._lock:
            reading.settle()
            self._unread.discard(reading)
            self._let_go()

    def buffer(self, nbytes: int) -> MetalBuffer:
        """Return a buffer of at least ``nbytes``."""
        self.check()
        size = max(16, -(-nbytes // 4) * 4)
        used = self._handle.allocated_bytes()
        if used + size > self.working_set_bytes:
            raise DeviceMemoryError(
                f"{self.description.name} has no room for {size:,} bytes more: {used:,} are in use, and macOS recommends "
                f"at most {self.working_set_bytes:,}: load a smaller model, open a smaller cache, or close others"
            )
        with self._translated_errors():
            return MetalBuffer(self._module.Buffer(self._handle, size, keep=True), 0, size)

    def map_bytes(self, data: ByteArray) -> MetalBuffer | None:
        """Return a buffer over bytes of a mapped file; None if they do not lie in one.

        The buffer keeps the mapping.

        Raises:
            DeviceMemoryError: the device cannot address so much.
        """
        self.check()
        with self._lock, self._translated_errors():
            found = self._pages.place(data)
        return None if found is None else MetalBuffer(*found, data.size)

    def upload(self, buffer: GpuBuffer, data: ByteArray, offset: int = 0) -> None:
        """Write bytes into a buffer from ``offset`` on."""
        assert isinstance(buffer, MetalBuffer)
        if not data.size:
            return
        with self._lock:
            self._let_go()
            self.check()
            if not self._in_flight:
                buffer.bytes(offset, data.size)[:] = data
                return
            size = -(-data.size // 4) * 4
            beside = self.buffer(size)
            beside.bytes(0, data.size)[:] = data
            self.copy([(Span(beside, 0, size), buffer, offset)])

    def kernel(self, name: str, constants: Constants) -> Kernel:
        """Return a kernel, compiled once."""
        key = (name, constants)
        with self._lock:
            self.check()
            if key not in self._kernels:
                try:
                    function, values = function_of(name, constants)
                except ValueError as cause:
                    raise UnsupportedError(f"device 'metal': {cause}") from cause
                with self._translated_errors():
                    self._kernels[key] = self._handle.kernel(function, values, THREADS)
            kernel: Kernel = self._kernels[key]
            return kernel

    def bind(self, kind: BindingKind, buffers: Sequence[GpuBuffer]) -> Bindings:
        """Return bindings of ``buffers``."""
        self.check()
        places: list[Place] = []
        for buffer in buffers:
            assert isinstance(buffer, MetalBuffer)
            places.append((buffer.handle, buffer.offset))
        return tuple(places)

    def prepare(self, dispatches: Sequence[Dispatch]) -> PreparedCalls:
        """Return dispatches as :meth:`submit` takes them."""
        rows: list[Any] = [
            (kernel, bindings or (), record * RECORD_STRIDE, groups) for kernel, bindings, record, groups in dispatches
        ]
        return PreparedCalls(self._module.Calls(rows))

    def submit(self, step: Bindings, dispatches: Prepared, spans: Sequence[Span]) -> MetalReading:
        """Run kernels one after the other, then read ``spans``."""
        assert isinstance(dispatches, PreparedCalls)
        assert isinstance(step, tuple)
        (arena, _), (words, _), (records, _) = step
        with self._lock:
            self.check()
            with self._translated_errors():
                commands = dispatches.calls.encode(arena, words, records, THREADS)
            for reading in list(self._unread):  # what they read may be written over by these calls
                self.settle(reading)
            self._commit(commands, is_step=True)
            reading = MetalReading(self, commands, spans)
            self._unread.add(reading)
            return reading

    def copy(self, copies: Sequence[tuple[Span, GpuBuffer, int]]) -> None:
        """Copy spans into other buffers, in order."""
        rows = []
        for span, target, offset in copies:
            assert isinstance(span.buffer, MetalBuffer)
            assert isinstance(target, MetalBuffer)
            if span.nbytes:
                begin = span.buffer.offset + span.offset
                rows.append((span.buffer.handle, begin, target.handle, target.offset + offset, span.nbytes))
        with self._lock:
            self.check()
            if rows:
                with self._translated_errors():
                    commands = self._handle.copy(rows)
                self._commit(commands, is_step=False)

    def read(self, spans: Sequence[Span]) -> ByteArray:
        """Return the bytes of ``spans``."""
        with self._lock:
            self.check()
            for commands, _ in self._in_flight:
                self.finish(commands, is_told=True)
            self._let_go()
            self.check()
            return _content(spans)

    def _commit(self, commands: _metal.Commands, *, is_step: bool) -> None:
        self._let_go()
        self.check()
        commands.commit()
        self._in_flight.append((commands, is_step))  # so that what they use stays, pages of a file too

    def _let_go(self) -> None:
        """Let go of what has ended.

        What a copy that failed should have written is missing, so the device is lost.
        """
        ended = [each for each in self._in_flight if each[0].has_ended]
        self._in_flight = [each for each in self._in_flight if each not in ended]
        for commands, is_step in ended:
            try:
                commands.wait()
            except self._module.MetalError as error:
                if not is_step or error.status != self._module.NO_MEMORY:
                    self.lose(str(error))


def _content(spans: Sequence[Span]) -> ByteArray:
    """Return a copy of the bytes of ``spans``, whose steps have ended."""
    parts = []
    for span in spans:
        assert isinstance(span.buffer, MetalBuffer)
        parts.append(span.buffer.bytes(span.offset, span.nbytes))
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def open_device() -> MetalDevice:
    """Return this process's device: opened once, and anew after it was lost.

    Raises:
        DeviceUnavailableError: there is none; the error names the remedy.
    """
    return _opened.get()


def _open() -> MetalDevice:
    module = _module()
    library = files(__package__) / "lattice.metallib"
    try:
        handle = module.Device(str(library) if library.is_file() else None, assembled_source())
    except module.MetalError as cause:
        raise DeviceUnavailableError(f"device 'metal': {cause}: pass device='cpu'") from cause
    return MetalDevice(handle)


def _module() -> Any:
    """Return the module that calls Metal.

    Raises:
        DeviceUnavailableError: it is not built here.
    """
    try:
        from lattice_inference.backends.metal import _metal
    except ImportError as cause:
        if sys.platform != "darwin":
            raise DeviceUnavailableError(
                "device 'metal' needs a Mac with one of Apple's own processors: pass device='wgpu' or device='cpu'"
            ) from cause
        raise DeviceUnavailableError(
            "device 'metal' is not in this build of lattice-inference, which Macs with Intel's processors never have: "
            "install a wheel for macOS arm64, or build with Xcode, or pass device='cpu'"
        ) from cause
    return _metal


_opened = OpenedOnce(_open)
