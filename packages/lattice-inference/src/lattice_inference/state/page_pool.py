"""Deals out pages and counts who holds them."""

from __future__ import annotations

from collections.abc import Iterable

from lattice_inference.errors import CacheFullError

__all__ = ["PagePool"]


class PagePool:
    """Numbers 0 to ``pages - 1``, each free or held by one or more.

    Not thread-safe: :class:`~lattice_inference.state.kv_cache.KvCache` holds a lock around it.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._holders = [0] * pages
        # the lowest numbers are dealt first, so that a small use touches little memory
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """Return a free page, held once.

        Raises:
            CacheFullError: there is none.
        """
        if not self._free:
            raise CacheFullError(f"all {self.pages} pages are in use")
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, page: int) -> int:
        """Hold ``page`` once more and return it."""
        assert self._holders[page] > 0, "a free page cannot be shared"
        self._holders[page] += 1
        return page

    def release(self, pages: Iterable[int]) -> None:
        """Hold each of ``pages`` once less; those that nobody holds are free."""
        for page in pages:
            assert self._holders[page] > 0, "a free page cannot be released"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free.append(page)

    def holders(self, page: int) -> int:
        """Return how often ``page`` is held."""
        return self._holders[page]
