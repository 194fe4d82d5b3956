"""Pages of keys and values in NumPy: a readable form of the CPU backend's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.reference_recurrent import ReferenceSlots
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.program import KvSpec, RecurrentSpec

__all__ = ["ReferenceState"]

Array = npt.NDArray[Any]
Int32Array = npt.NDArray[np.int32]

SMALLEST_INT8_VECTOR = 1e-30
"""A vector whose largest element is below this is stored as zeros."""


@dataclass(frozen=True)
class _Layer:
    """Keys and values of one layer, and their scales if they are int8.

    Keys are [page][kv_head][dim][token], values [page][kv_head][token][dim], scales [page][kv_head][token].
    """

    keys: Array
    values: Array
    key_scales: Array
    value_scales: Array


class ReferenceState:
    """``pages`` pages of ``page_tokens`` tokens for every layer of ``specs``, and slots.

    A bfloat16 value is kept as float32, because NumPy has no bfloat16.
    """

    def __init__(
        self,
        specs: Sequence[KvSpec],
        *,
        page_tokens: int,
        pages: int,
        recurrent_specs: Sequence[RecurrentSpec] = (),
        slots: int = 0,
    ) -> None:
        self.specs: tuple[KvSpec, ...] = tuple(specs)
        self.recurrent: ReferenceSlots | None = ReferenceSlots(recurrent_specs, slots) if recurrent_specs else None
        self.page_tokens = page_tokens
        self.pages = pages
        self._layers = [self._layer(spec) for spec in self.specs]

    def _layer(self, spec: KvSpec) -> _Layer:
        stored = np.float32 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
        heads, tokens = (self.pages, spec.kv_heads), self.page_tokens
        return _Layer(
            np.zeros((*heads, spec.head_dim, tokens), stored),
            np.zeros((*heads, tokens, spec.head_dim), stored),
            np.ones((*heads, tokens), np.float32),
            np.ones((*heads, tokens), np.float32),
        )

    def write(self, layer: int, pages: Int32Array, position: int, keys: Array, values: Array) -> None:
        """Store ``keys`` and ``values``, (tokens, kv_heads, head_dim), in a sequence with ``pages``.

        The first token is at ``position`` of the sequence.
        """
        store, dtype = self._layers[layer], self.specs[layer].dtype
        for token, (key, value) in enumerate(zip(keys, values, strict=True), position):
            page, slot = pages[token // self.page_tokens], token % self.page_tokens
            store.keys[page, :, :, slot], store.key_scales[page, :, slot] = _stored(key, dtype)
            store.values[page, :, slot], store.value_scales[page, :, slot] = _stored(value, dtype)

    def read(self, layer: int, pages: Int32Array, length: int, dtype: npt.DTypeLike) -> tuple[Array, Array]:
        """Return the first ``length`` keys and values of a sequence as ``dtype``.

        Each array is (length, kv_heads, head_dim).
        """
        store = self._layers[layer]
        tokens = np.arange(length)
        page, slot = pages[tokens // self.page_tokens], tokens % self.page_tokens
        keys = store.keys[page, :, :, slot].astype(dtype) * store.key_scales[page, :, slot, None]
        values = store.values[page, :, slot].astype(dtype) * store.value_scales[page, :, slot, None]
        return keys, values

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers together."""
        return sum(array[0].nbytes for array in self._arrays())

    def export(self, page: int) -> bytes:
        """Return the content of a page."""
        return b"".join(array[page].tobytes() for array in self._arrays())

    def import_(self, page: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a page."""
        if len(content) != self.page_bytes:
            raise InvalidInputError(f"a page has {self.page_bytes} bytes, not {len(content)}")
        for array in self._arrays():
            part, content = content[: array[page].nbytes], content[array[page].nbytes :]
            array[page] = np.frombuffer(part, array.dtype).reshape(array[page].shape)

    def close(self) -> None:
        """Release the memory."""
        self._layers = []
        if self.recurrent is not None:
            self.recurrent.close()

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer over another."""
        for array in self._arrays():
            array[target] = array[source]

    def _arrays(self) -> Iterator[Array]:
        for layer in self._layers:
            yield from (layer.keys, layer.values, layer.key_scales, layer.value_scales)


def _stored(vectors: Array, dtype: str) -> tuple[Array, Array | float]:
    """Return ``vectors`` (kv_heads, head_dim) as they are stored, and their scales."""
    exact = vectors.astype(np.float32)
    if dtype == "int8":
        most = np.abs(exact).max(axis=1)
        usable = most >= SMALLEST_INT8_VECTOR
        factor = np.divide(np.float32(127), most, out=np.zeros_like(most), where=usable)
        return np.rint(exact * factor[:, None]).astype(np.int8), np.where(usable, most / np.float32(127), 0)
    if dtype == "bfloat16":
        bits = exact.view(np.uint32)
        return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32), 1.0
    return exact.astype(dtype), 1.0
