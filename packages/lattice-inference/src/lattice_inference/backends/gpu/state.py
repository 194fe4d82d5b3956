"""Pages of keys and values on a device.

Each layer has a buffer for keys and one for values, which grow as pages come into use.

A page holds [head][token][dimension] in whole words a vector, then, of int8, a scale for each vector. Only GPU
backends share this layout; kernels/kv.wgsl reads and writes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lattice_inference.backends.gpu.device import Bindings, GpuBuffer, GpuDevice, Prepared, Span
from lattice_inference.backends.gpu.slots import GpuSlots
from lattice_inference.errors import DeviceMemoryError, InvalidInputError
from lattice_inference.graph.program import KvSpec, RecurrentSpec
from lattice_inference.process_lock import ProcessLock

__all__ = ["KV_TYPES", "GpuState", "KeptStep"]

KV_TYPES = ("float32", "float16", "bfloat16", "int8")
"""What keys and values are kept as; kernels know a type by its place here."""

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_FIRST_PAGES = 16


@dataclass(frozen=True)
class _Layers:
    """Buffers of so many pages: keys and values of each layer, and their bindings."""

    pages: int
    buffers: tuple[tuple[GpuBuffer, GpuBuffer], ...]
    bindings: tuple[Bindings, ...]


@dataclass(eq=False)
class KeptStep:
    """What a plan keeps of its last step, for later ones that choose the same.

    Attributes:
        choices: what the step chose; None before the first one.
        dispatches: what it ran.
        slots, bound: buffers of recurrent state, and the bindings of each call that has them.
    """

    choices: object = None
    dispatches: Prepared | None = None
    slots: tuple[GpuBuffer, ...] = ()
    bound: dict[int, Bindings] = field(default_factory=dict)


class GpuState:
    """``pages`` pages of ``page_tokens`` tokens for every layer, and slots.

    Layers are those of ``specs``; slots are for recurrent layers.

    Memory is taken as pages come into use: pages are dealt from the lowest number, so buffers of the highest one that was
    used suffice. Thread-safe.
    """

    def __init__(
        self,
        device: GpuDevice,
        specs: Sequence[KvSpec],
        *,
        page_tokens: int,
        pages: int,
        recurrent_specs: Sequence[RecurrentSpec] = (),
        slots: int = 0,
    ) -> None:
        self.specs = tuple(specs)
        self.page_tokens = page_tokens
        self.pages = pages
        self.recurrent: GpuSlots | None = GpuSlots(device, recurrent_specs, slots) if recurrent_specs else None
        self.device = device
        self.kv_types = tuple(KV_TYPES.index(spec.dtype) for spec in self.specs)
        self._page_bytes = tuple(_page_bytes(spec, page_tokens) for spec in self.specs)
        self.page_bytes = 2 * sum(self._page_bytes)
        self._lock = ProcessLock()
        self._layers: _Layers | None = _Layers(0, (), ())
        self._kept: weakref.WeakKeyDictionary[object, KeptStep] = weakref.WeakKeyDictionary()
        device.check()

    @property
    def allocated_pages(self) -> int:
        """Pages that there is memory for."""
        return self._open().pages

    def bindings(self, highest: int) -> tuple[Bindings, ...]:
        """Return the bindings of every layer, for pages up to number ``highest``.

        Raises:
            DeviceMemoryError: there is no room; nothing has changed.
            InvalidInputError: the state is closed.
        """
        with self._lock:
            return self._grown(highest).bindings

    def kept_step(self, plan: object) -> KeptStep:
        """Return what ``plan`` keeps of its last step with this state.

        It holds buffers, so it ends with the state.
        """
        with self._lock:
            if self._layers is None:
                return KeptStep()
            return self._kept.setdefault(plan, KeptStep())

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer over another."""
        with self._lock:
            layers = self._grown(max(source, target))
            copies = []
            for (keys, values), nbytes in zip(layers.buffers, self._page_bytes, strict=True):
                scratch = self.device.buffer(nbytes)  # copies within one buffer are refused
                for buffer in (keys, values):
                    copies.append((Span(buffer, source * nbytes, nbytes), scratch, 0))
                    copies.append((Span(scratch, 0, nbytes), buffer, target * nbytes))
            self.device.copy(copies)

    def export(self, page: int) -> bytes:
        """Return the content of a page."""
        with self._lock:
            layers = self._grown(page)
            spans = [
                Span(buffer, page * nbytes, nbytes)
                for pair, nbytes in zip(layers.buffers, self._page_bytes, strict=True)
                for buffer in pair
            ]
            return self.device.read(spans).tobytes()

    def import_(self, page: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a page."""
        if len(content) != self.page_bytes:
            raise InvalidInputError(f"a page has {self.page_bytes} bytes, not {len(content)}")
        with self._lock:
            layers = self._grown(page)
            begin = 0
            for pair, nbytes in zip(layers.buffers, self._page_bytes, strict=True):
                for buffer in pair:
                    self.device.upload(buffer, np.frombuffer(content, np.uint8, nbytes, begin), page * nbytes)
                    begin += nbytes

    def close(self) -> None:
        """Give the memory back; steps that run keep it until they end."""
        with self._lock:
            self._layers = None
            self._kept.clear()
        if self.recurrent is not None:
            self.recurrent.close()

    def _open(self) -> _Layers:
        if self._layers is None:
            raise InvalidInputError("these pages are closed")
        return self._layers

    def _grown(self, highest: int) -> _Layers:
        layers = self._open()
        if highest < layers.pages:
            return layers
        needed = highest + 1
        largest = max(self._page_bytes, default=4)
        most = self.device.max_binding_bytes // largest
        if needed > most:
            raise DeviceMemoryError(
                f"keys of a layer need {needed * largest} bytes for {needed} pages, and the device binds at most "
                f"{self.device.max_binding_bytes}: open a smaller cache, or one with a smaller dtype"
            )
        pages = min(self.pages, most, max(needed, 2 * layers.pages, _FIRST_PAGES))
        buffers = tuple(
            (self.device.buffer(pages * nbytes), self.device.buffer(pages * nbytes)) for nbytes in self._page_bytes
        )
        self.device.copy(
            [
                (Span(old, 0, layers.pages * nbytes), new, 0)
                for olds, news, nbytes in zip(layers.buffers, buffers, self._page_bytes, strict=False)
                for old, new in zip(olds, news, strict=True)
            ]
        )
        bindings = tuple(self.device.bind("pages", pair) for pair in buffers)
        self._layers = _Layers(pages, buffers, bindings)
        return self._layers


def _page_bytes(spec: KvSpec, page_tokens: int) -> int:
    """Return the bytes of a page of a layer's keys, or of its values."""
    words = -(-spec.head_dim * _ITEM_BYTES[spec.dtype] // 4)
    return 4 * spec.kv_heads * page_tokens * (words + (spec.dtype == "int8"))
