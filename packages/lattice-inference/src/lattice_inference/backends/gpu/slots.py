"""Slots of recurrent layers on a device: a buffer a layer and kind.

Buffers grow as slots come into use.

A slot of a short convolution holds rows: those before the block, then the block's. One of the gated delta rule has, for
each value head, the state at the block's beginning [key][value], then the block's keys, its rows, and its factors.
kernels/short_conv.wgsl and kernels/gated_delta_rule.wgsl read and write them; only GPU backends share these layouts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lattice_inference.backends.gpu.device import GpuBuffer, GpuDevice, Span
from lattice_inference.errors import DeviceMemoryError, InvalidInputError, UnsupportedError
from lattice_inference.graph.program import RecurrentSpec
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK
from lattice_inference.process_lock import ProcessLock

__all__ = ["GpuSlots", "check_state_dim"]

MOST_STATE_DIM = 256
"""Dimensions of a key of the gated delta rule: a token's key and query lie in workgroup memory."""


def check_state_dim(key_dim: int) -> None:
    """Refuse recurrent state whose keys have more dimensions than the kernels take.

    Raises:
        UnsupportedError: they have.
    """
    if key_dim > MOST_STATE_DIM:
        raise UnsupportedError(
            f"GPU backends take keys of recurrent state of at most {MOST_STATE_DIM} dimensions: load the model with "
            "device='cpu'"
        )


class GpuSlots:
    """``slots`` slots, each with one sequence's state of every layer of ``specs``. Thread-safe.

    Raises:
        UnsupportedError: a key is wider than the kernels take.
    """

    def __init__(self, device: GpuDevice, specs: Sequence[RecurrentSpec], slots: int) -> None:
        self.specs: tuple[RecurrentSpec, ...] = tuple(specs)
        self.slots = slots
        self._device = device
        for spec in self.specs:
            if spec.name != "short_conv":
                check_state_dim(spec.shape[1])
        self._sizes = tuple(_slot_bytes(spec) for spec in self.specs)
        self.slot_bytes: int = sum(self._sizes)
        self._lock = ProcessLock()
        self._buffers: tuple[GpuBuffer, ...] | None = ()
        self._held = 0  # slots that there is memory for

    def buffers(self, highest: int) -> tuple[GpuBuffer, ...]:
        """Return the buffer of each spec, for slots up to number ``highest``.

        Raises:
            DeviceMemoryError: there is no room; nothing has changed.
            InvalidInputError: the state is closed.
        """
        with self._lock:
            if self._buffers is None:
                raise InvalidInputError("these slots are closed")
            if highest >= self._held:
                self._grow(highest + 1)
            return self._buffers

    def _grow(self, needed: int) -> None:
        assert self._buffers is not None
        largest = max(self._sizes, default=4)
        most = self._device.max_binding_bytes // largest
        if needed > most:
            raise DeviceMemoryError(
                f"a recurrent layer needs {needed * largest} bytes for {needed} sequences' states, and the device binds at "
                f"most {self._device.max_binding_bytes}: open a cache for fewer sequences"
            )
        held = max(needed, min(self.slots, most, 2 * self._held))
        buffers = tuple(self._device.buffer(held * nbytes) for nbytes in self._sizes)
        self._device.copy(
            [
                (Span(old, 0, self._held * nbytes), new, 0)
                for old, new, nbytes in zip(self._buffers, buffers, self._sizes, strict=False)
            ]
        )
        self._buffers, self._held = buffers, held

    def copy(self, source: int, target: int) -> None:
        """Copy one slot over another."""
        with self._lock:
            copies: list[tuple[Span, GpuBuffer, int]] = []
            for buffer, nbytes in zip(self.buffers(max(source, target)), self._sizes, strict=True):
                scratch = self._device.buffer(nbytes)  # copies within one buffer are refused
                copies.append((Span(buffer, source * nbytes, nbytes), scratch, 0))
                copies.append((Span(scratch, 0, nbytes), buffer, target * nbytes))
            self._device.copy(copies)

    def export(self, slot: int) -> bytes:
        """Return the content of a slot, ``slot_bytes`` long."""
        with self._lock:
            spans = [
                Span(buffer, slot * nbytes, nbytes)
                for buffer, nbytes in zip(self.buffers(slot), self._sizes, strict=True)
            ]
            return self._device.read(spans).tobytes()

    def import_(self, slot: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a slot.

        Raises:
            InvalidInputError: ``content`` has another size than a slot.
        """
        if len(content) != self.slot_bytes:
            raise InvalidInputError(f"a slot has {self.slot_bytes} bytes, not {len(content)}")
        with self._lock:
            begin = 0
            for buffer, nbytes in zip(self.buffers(slot), self._sizes, strict=True):
                self._device.upload(buffer, np.frombuffer(content, np.uint8, nbytes, begin), slot * nbytes)
                begin += nbytes

    def close(self) -> None:
        """Give the memory back; steps that run keep it until they end."""
        with self._lock:
            self._buffers = None


def _slot_bytes(spec: RecurrentSpec) -> int:
    if spec.name == "short_conv":
        columns, taps = spec.shape
        return 4 * columns * (taps - 1 + DELTA_BLOCK)
    heads, key_dim, value_dim = spec.shape
    return 4 * heads * (key_dim * value_dim + DELTA_BLOCK * (key_dim + value_dim + 1))
