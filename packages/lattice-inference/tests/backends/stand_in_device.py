"""A GPU device that computes nothing: for faults that no driver gives on demand, and for what happens before a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lattice_inference.backends.gpu.device import DeviceDescription
from lattice_inference.errors import DeviceLostError, DeviceMemoryError


@dataclass(eq=False)
class StandInBuffer:
    content: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.content.size


@dataclass(eq=False)
class StandInReading:
    device: StandInDevice
    content: np.ndarray

    def wait(self) -> np.ndarray:
        self.device.check()
        return self.content


@dataclass
class StandInDevice:
    """Buffers are bytes of the host; kernels change nothing. ``room`` is what it has; ``is_lost`` loses it."""

    room: int = 1 << 40
    max_binding_bytes: int = 1 << 30
    has_subgroups: bool = True
    few_columns: int = 4
    description: DeviceDescription = field(default_factory=lambda: DeviceDescription("wgpu", "stand-in", "none"))
    is_lost: bool = False
    submitted: list[Any] = field(default_factory=list)
    uploads: list[int] = field(default_factory=list)

    def check(self) -> None:
        if self.is_lost:
            raise DeviceLostError("the stand-in was lost: load the model again")

    def buffer(self, nbytes: int) -> StandInBuffer:
        self.check()
        if nbytes > self.room:
            raise DeviceMemoryError(f"the stand-in has no room for {nbytes:,} bytes more")
        self.room -= nbytes
        return StandInBuffer(np.zeros(max(16, -(-nbytes // 4) * 4), np.uint8))

    def upload(self, buffer: StandInBuffer, data: np.ndarray, offset: int = 0) -> None:
        self.check()
        assert offset % 4 == 0
        self.uploads.append(data.size)
        buffer.content[offset : offset + data.size] = data

    def kernel(self, name: str, constants: Any) -> Any:
        self.check()
        return name, constants

    def bind(self, kind: str, buffers: Any) -> Any:
        self.check()
        return kind, tuple(buffers)

    def prepare(self, dispatches: Any) -> Any:
        self.check()
        return list(dispatches)

    def submit(self, step: Any, dispatches: Any, spans: Any) -> StandInReading:
        self.check()
        self.submitted.append([(kernel[0], groups) for kernel, _, _, groups in dispatches])
        return StandInReading(self, self._bytes(spans))

    def copy(self, copies: Any) -> None:
        self.check()
        for span, target, offset in copies:
            assert target is not span.buffer, "copies within one buffer are refused"
            target.content[offset : offset + span.nbytes] = span.buffer.content[span.offset : span.offset + span.nbytes]

    def read(self, spans: Any) -> np.ndarray:
        self.check()
        return self._bytes(spans)

    @staticmethod
    def _bytes(spans: Any) -> np.ndarray:
        parts = [span.buffer.content[span.offset : span.offset + span.nbytes] for span in spans]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)
