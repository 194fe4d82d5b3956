"""A GPU device that runs the Metal kernels on the CPU, for tests.

Its name says EMULATED, and no option chooses it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from build import build_library

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
from lattice_inference.backends.gpu.record import RECORD_STRIDE
from lattice_inference.backends.metal.kernel_source import CONSTANTS, FOUND_BUFFERS, function_of
from lattice_inference.errors import UnsupportedError

__all__ = ["EmulatedDevice", "EmulatedKernelError", "emulated_device"]

ByteArray = npt.NDArray[np.uint8]

_UNSET = 0xFFC0DEAD  # a constant that a kernel must not use


class EmulatedKernelError(AssertionError):
    """A kernel did what a GPU does not define: threads that wait for others that never come."""


class _Call(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_int32),
        ("groups", ctypes.c_uint32),
        ("seed", ctypes.c_uint32),
        ("constant_count", ctypes.c_uint32),
        ("constants", ctypes.POINTER(ctypes.c_uint32)),
        ("buffers", ctypes.c_void_p * 6),
    )


@dataclass(eq=False)
class EmulatedBuffer:
    """Memory of the host; ``content`` is a view of it."""

    content: ByteArray

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.content.size

    @property
    def address(self) -> int:
        """Where it lies."""
        return int(self.content.ctypes.data)


class EmulatedKernel(NamedTuple):
    """A function of the library, by its number, and its constants."""

    number: int
    constants: Any


@dataclass(frozen=True)
class EmulatedReading:
    """Bytes that are there already."""

    content: ByteArray

    def wait(self) -> ByteArray:
        """Return the bytes."""
        return self.content


class EmulatedDevice:
    """Memory and kernels of the CPU: every step runs to its end in :meth:`submit`.

    See :class:`~lattice_inference.backends.gpu.device.GpuDevice`.

    Args:
        library: of :func:`build.build_library`.
        seed: of the order in which threads run, which differs between kernel calls, and in which simdgroups add up.
    """

    max_binding_bytes = 1 << 30
    has_subgroups = True
    few_columns = 8

    def __init__(self, library: Path, seed: int = 0) -> None:
        self.description = DeviceDescription("metal", "EMULATED by the CPU", library.stem)
        self.seed = seed
        self._library = ctypes.CDLL(str(library))
        self._library.emulated_allocate.restype = ctypes.c_void_p
        self._library.emulated_allocate.argtypes = (ctypes.c_uint64,)
        self._library.emulated_release.argtypes = (ctypes.c_void_p,)
        self._library.emulated_dispatch.argtypes = (ctypes.POINTER(_Call), ctypes.c_char_p, ctypes.c_uint64)
        assert self._library.emulated_constant_count() == len(CONSTANTS)
        self._lock = threading.RLock()

    def check(self) -> None:
        """Do nothing: the CPU is never lost."""

    def buffer(self, nbytes: int) -> EmulatedBuffer:
        """Return a buffer of at least ``nbytes``, full of NaN."""
        return self.exact_buffer(max(16, -(-nbytes // 4) * 4))

    def exact_buffer(self, nbytes: int) -> EmulatedBuffer:
        """Return a buffer of exactly ``nbytes``, which AddressSanitizer guards."""
        address = self._library.emulated_allocate(nbytes)
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        content = np.frombuffer(memory, np.uint8)
        content[:] = 0xFF
        buffer = EmulatedBuffer(content)
        _release_with(buffer, self._library, address)
        return buffer

    def map_bytes(self, data: ByteArray) -> EmulatedBuffer:
        """Return a buffer over bytes of a mapped file where they lie."""
        return EmulatedBuffer(data)

    def upload(self, buffer: GpuBuffer, data: ByteArray, offset: int = 0) -> None:
        """Write bytes into a buffer."""
        assert isinstance(buffer, EmulatedBuffer)
        assert offset % 4 == 0
        buffer.content[offset : offset + data.size] = data

    @functools.cache  # noqa: B019 - a device lives as long as the tests
    def kernel(self, name: str, constants: Constants) -> Kernel:
        """Return a kernel."""
        try:
            function, values = function_of(name, constants)
        except ValueError as cause:
            raise UnsupportedError(str(cause)) from cause
        number = self._library.emulated_function(function.encode())
        assert number >= 0, function
        array = (ctypes.c_uint32 * len(CONSTANTS))(*[_UNSET] * len(CONSTANTS))
        for index, value in values:
            array[index] = value
        return EmulatedKernel(number, array)

    def bind(self, kind: BindingKind, buffers: Sequence[GpuBuffer]) -> Bindings:
        """Return bindings of ``buffers``."""
        return tuple(buffers)

    def prepare(self, dispatches: Sequence[Dispatch]) -> Prepared:
        """Return dispatches as :meth:`submit` takes them."""
        return tuple(dispatches)

    def submit(self, step: Bindings, dispatches: Prepared, spans: Sequence[Span]) -> EmulatedReading:
        """Run kernels one after the other, then read ``spans``."""
        assert isinstance(step, tuple)
        assert isinstance(dispatches, tuple)
        arena, words, records = step
        with self._lock:
            for place, (kernel, bindings, record, groups) in enumerate(dispatches):
                buffers = (ctypes.c_void_p * 6)()
                found = [arena.address, words.address, records.address + record * RECORD_STRIDE]
                found += [buffer.address for buffer in (bindings or ())]
                for index, address in enumerate(found):
                    buffers[index] = address
                assert len(found) in (FOUND_BUFFERS, FOUND_BUFFERS + 2, FOUND_BUFFERS + 3)
                self.dispatch(kernel, groups, buffers, (self.seed << 16 | place & 0xFFFF) & 0xFFFFFFFF)
            return EmulatedReading(self._bytes(spans))

    def dispatch(self, kernel: EmulatedKernel, groups: int, buffers: Any, seed: int) -> None:
        """Run one kernel.

        Raises:
            EmulatedKernelError: some threads do not come where others wait; the error names file and line.
        """
        call = _Call(kernel.number, groups, seed, len(CONSTANTS), kernel.constants, buffers)
        error = ctypes.create_string_buffer(2000)
        if self._library.emulated_dispatch(ctypes.byref(call), error, 2000):
            raise EmulatedKernelError(error.value.decode())

    def copy(self, copies: Sequence[tuple[Span, GpuBuffer, int]]) -> None:
        """Copy spans into other buffers."""
        for span, target, offset in copies:
            assert isinstance(target, EmulatedBuffer)
            assert target is not span.buffer, "copies within one buffer are refused"
            target.content[offset : offset + span.nbytes] = self._bytes([span])

    def read(self, spans: Sequence[Span]) -> ByteArray:
        """Return the bytes of ``spans``."""
        with self._lock:
            return self._bytes(spans)

    @staticmethod
    def _bytes(spans: Sequence[Span]) -> ByteArray:
        parts = [span.buffer.content[span.offset : span.offset + span.nbytes] for span in spans]  # type: ignore[attr-defined]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def _release_with(buffer: EmulatedBuffer, library: Any, address: int) -> None:
    import weakref

    weakref.finalize(buffer, library.emulated_release, address).atexit = False


@functools.cache
def emulated_device() -> EmulatedDevice:
    """Return the device of this process.

    ``LATTICE_METAL_SEED`` is its seed; with ``LATTICE_METAL_SANITIZED=1`` its library is for AddressSanitizer.
    """
    library = build_library(sanitize=os.environ.get("LATTICE_METAL_SANITIZED") == "1")
    return EmulatedDevice(library, int(os.environ.get("LATTICE_METAL_SEED", "0")))
