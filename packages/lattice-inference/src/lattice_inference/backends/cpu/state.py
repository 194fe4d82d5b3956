"""The pages of keys and values, and the slots of recurrent layers, as the CPU keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from lattice_inference.backends.cpu import _cpu
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.graph.program import KvSpec, RecurrentSpec

__all__ = ["CpuSlots", "CpuState", "slot_bytes"]


def slot_bytes(specs: Sequence[RecurrentSpec]) -> int:
    """Return the bytes of a slot with these states."""
    return _cpu.slot_offsets([(spec.name, spec.shape) for spec in specs])[1]


class CpuSlots:
    """``slots`` slots, each with one sequence's state of every recurrent layer of ``specs``.

    Memory is taken as slots are written.

    Raises:
        UnsupportedError: a head is wider than the kernels take.
    """

    def __init__(self, specs: Sequence[RecurrentSpec], slots: int) -> None:
        self.specs: tuple[RecurrentSpec, ...] = tuple(specs)
        self.slots = slots
        if any(max(spec.shape[1:]) > _cpu.MAX_HEAD_DIM for spec in self.specs):
            raise UnsupportedError(f"heads of recurrent state have at most {_cpu.MAX_HEAD_DIM} dimensions here")
        self._native: _cpu.RecurrentSlots | None = _cpu.RecurrentSlots(
            [(spec.name, spec.shape) for spec in self.specs], slots
        )
        self.slot_bytes: int = self._native.slot_bytes

    @property
    def native(self) -> _cpu.RecurrentSlots:
        """What the kernels are given.

        Raises:
            InvalidInputError: the slots are closed.
        """
        if self._native is None:
            raise InvalidInputError("these slots are closed")
        return self._native

    def copy(self, source: int, target: int) -> None:
        """Copy one slot over another."""
        self.native.copy(source, target)

    def export(self, slot: int) -> bytes:
        """Return the content of a slot, ``slot_bytes`` long."""
        return self.native.export(slot)

    def import_(self, slot: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a slot.

        Raises:
            InvalidInputError: ``content`` has another size than a slot.
        """
        if len(content) != self.slot_bytes:
            raise InvalidInputError(f"a slot has {self.slot_bytes} bytes, not {len(content)}")
        self.native.import_(slot, content)

    def close(self) -> None:
        """Give the memory back; a run that goes on keeps it until it ends."""
        self._native = None


class CpuState:
    """``pages`` pages, each with room for ``page_tokens`` tokens of every layer of ``specs``.

    For a program with recurrent layers it also has slots. Address space for all pages is reserved at once, memory is
    taken as they are written. A page that is free keeps its memory for the next one who takes it. Several threads may
    work on different pages at once.

    Raises:
        UnsupportedError: a head is wider than the kernels take.
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
        self.page_tokens = page_tokens
        self.pages = pages
        layers = [(spec.kv_heads, spec.head_dim, spec.dtype) for spec in self.specs]
        if any(head_dim > _cpu.MAX_HEAD_DIM for _, head_dim, _ in layers):
            raise UnsupportedError(f"heads of keys and values have at most {_cpu.MAX_HEAD_DIM} dimensions here")
        self._kv: _cpu.KvPages | None = _cpu.KvPages(layers, page_tokens, pages)
        self.page_bytes: int = self._kv.page_bytes
        self.recurrent: CpuSlots | None = CpuSlots(recurrent_specs, slots) if recurrent_specs else None

    @property
    def kv(self) -> _cpu.KvPages:
        """What the kernels are given.

        Raises:
            InvalidInputError: the state is closed.
        """
        if self._kv is None:
            raise InvalidInputError("these pages are closed")
        return self._kv

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer over another."""
        self.kv.copy_page(source, target)

    def export(self, page: int) -> bytes:
        """Return the content of a page, ``page_bytes`` long."""
        return self.kv.export(page)

    def import_(self, page: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a page.

        Raises:
            InvalidInputError: ``content`` has another size than a page.
        """
        if len(content) != self.page_bytes:
            raise InvalidInputError(f"a page has {self.page_bytes} bytes, not {len(content)}")
        self.kv.import_(page, content)

    def close(self) -> None:
        """Give the memory back; a run that goes on keeps it until it ends."""
        self._kv = None
        if self.recurrent is not None:  # others hold it, and must not hold its memory
            self.recurrent.close()
