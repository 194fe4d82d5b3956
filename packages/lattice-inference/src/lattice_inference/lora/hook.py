"""What a model asks of anything that it attaches as an adapter: a trainer's live one, say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lattice_inference.lora.adapter import LoraSite

__all__ = ["LoraHook"]


@runtime_checkable
class LoraHook(Protocol):
    """The source of an adapter's matrices. :class:`LoraAdapter` is one.

    A model asks once, when the hook is attached, and keeps copies: what changes later is seen when it is attached again.
    """

    @property
    def sites(self) -> Iterable[str]:
        """Paths of the linears that it changes, as transformers has them.

        For example, ``model.layers.0.self_attn.q_proj``.
        """
        ...

    def factors(self, site: str) -> LoraSite:
        """Return A, B and scale of one of :attr:`sites`, as they are now."""
        ...

    def validate_against(self, linears: Mapping[str, tuple[int, int]]) -> None:
        """Raise InvalidInputError if the adapter is not for a model with these linears.

        ``linears`` holds (outputs, inputs) by path.

        The model compares paths and shapes itself; this is for what only the hook knows.
        """
        ...
