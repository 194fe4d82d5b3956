"""What a device offers to GPU backends, and no more: buffers, kernels, submit, read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "BindingKind",
    "Bindings",
    "Constants",
    "DeviceDescription",
    "Dispatch",
    "GpuBuffer",
    "GpuDevice",
    "Kernel",
    "Prepared",
    "Reading",
    "Span",
    "sorted_constants",
]

ByteArray = npt.NDArray[np.uint8]

Constants = tuple[tuple[str, int | str], ...]
"""What a kernel is specialised for: names and values, sorted."""

BindingKind = Literal["step", "weights", "pages", "slots"]
"""Which buffers a set of bindings holds: arena, inputs and records; weight, scales and bias; keys and values; a layer's
slots and two vectors."""


@dataclass(frozen=True)
class DeviceDescription:
    """What a device is.

    Attributes:
        kind: the backend, such as ``"wgpu"``.
        name: the device, as its driver names it.
        driver: the driver with its version.
        is_software: whether a CPU computes what the device should.
    """

    kind: str
    name: str
    driver: str
    is_software: bool = False

    @property
    def identity(self) -> str:
        """Text that enters fingerprints: the last bits of results depend on device and driver."""
        software = ":software" if self.is_software else ""
        return f"{self.kind}{software}:{self.name}:{self.driver}".replace("\n", " ")


class GpuBuffer(Protocol):
    """Memory of the device."""

    @property
    def nbytes(self) -> int:
        """Its bytes, a multiple of four."""
        ...


class Kernel(Protocol):
    """A kernel that is compiled for some constants."""


class Bindings(Protocol):
    """Buffers that kernels are given together."""


class Dispatch(NamedTuple):
    """One kernel call of a step.

    It has a kernel, the call's bindings, the number of its record, and how many workgroups it has.
    """

    kernel: Kernel
    bindings: Bindings | None
    record: int
    groups: int


class Prepared(Protocol):
    """Dispatches as a device takes them again and again."""


class Span(NamedTuple):
    """Some bytes of a buffer."""

    buffer: GpuBuffer
    offset: int
    nbytes: int


class Reading(Protocol):
    """Bytes that are on their way from the device."""

    def wait(self) -> ByteArray:
        """Return them; called once.

        Raises:
            DeviceLostError: the device was lost meanwhile.
        """
        ...


class GpuDevice(Protocol):
    """A device. Thread-safe.

    Every method raises DeviceLostError once the device is lost, and DeviceUnavailableError in a forked child.

    Attributes of all devices: what they are, the most bytes that a kernel can be given of a buffer, whether kernels may
    add up over subgroups, and the columns that a workgroup of a linear of few rows has.
    """

    @property
    def description(self) -> DeviceDescription:
        """What it is."""
        ...

    @property
    def max_binding_bytes(self) -> int:
        """The most bytes that a kernel can be given of one buffer."""
        ...

    @property
    def has_subgroups(self) -> bool:
        """Whether kernels may add up over subgroups."""
        ...

    @property
    def few_columns(self) -> int:
        """Columns that a workgroup has of a linear of few rows."""
        ...

    def check(self) -> None:
        """Raise what every method would: the device is lost, or another process's."""
        ...

    def buffer(self, nbytes: int) -> GpuBuffer:
        """Return a buffer of at least ``nbytes``.

        Raises:
            DeviceMemoryError: the device has no room.
        """
        ...

    def upload(self, buffer: GpuBuffer, data: ByteArray, offset: int = 0) -> None:
        """Write bytes into a buffer from ``offset`` on, which is a multiple of four.

        The write is done before all steps that are submitted later.
        """
        ...

    def kernel(self, name: str, constants: Constants) -> Kernel:
        """Return a kernel, compiled once."""
        ...

    def bind(self, kind: BindingKind, buffers: Sequence[GpuBuffer]) -> Bindings:
        """Return bindings of ``buffers``, in the order that the kind says."""
        ...

    def prepare(self, dispatches: Sequence[Dispatch]) -> Prepared:
        """Return dispatches as :meth:`submit` takes them.

        What does not change from step to step is done once.
        """
        ...

    def submit(self, step: Bindings, dispatches: Prepared, spans: Sequence[Span]) -> Reading:
        """Run kernels one after the other, then read ``spans``, one after the other."""
        ...

    def copy(self, copies: Sequence[tuple[Span, GpuBuffer, int]]) -> None:
        """Copy spans into other buffers, each from an offset on, in order."""
        ...

    def read(self, spans: Sequence[Span]) -> ByteArray:
        """Return the bytes of ``spans``, one after the other."""
        ...


def sorted_constants(constants: Mapping[str, int | str]) -> Constants:
    """Return constants in the form that kernels are known by."""
    return tuple(sorted(constants.items()))
