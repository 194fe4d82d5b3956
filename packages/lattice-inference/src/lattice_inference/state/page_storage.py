"""What a backend's store of pages offers to the cache that deals them out."""

from __future__ import annotations

from typing import Protocol

from lattice_inference.graph.program import KvSpec

__all__ = ["PageStorage"]


class PageStorage(Protocol):
    """``pages`` pages, each with room for ``page_tokens`` tokens of every layer of ``specs``.

    Made by a backend's ``open_state``. A page is named by its number; what it holds before it is written is of no meaning.
    """

    @property
    def specs(self) -> tuple[KvSpec, ...]:
        """What every layer keeps."""
        ...

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""
        ...

    @property
    def pages(self) -> int:
        """How many pages there are."""
        ...

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers together."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page over another."""
        ...

    def export(self, page: int) -> bytes:
        """Return the content of a page, ``page_bytes`` long."""
        ...

    def import_(self, page: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a page.

        Raises:
            InvalidInputError: ``content`` has another size than a page.
        """
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...
