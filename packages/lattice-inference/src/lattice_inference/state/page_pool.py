"""A pool of pages with reference counts."""

from __future__ import annotations

from collections.abc import Iterable

from lattice_inference.errors import CacheFullError

__all__ = ["PagePool"]


class PagePool:
    """The page numbers 0 to ``pages - 1``; each is free or has one or more holders.

    Not thread-safe: :class:`~lattice_inference.state.kv_cache.KvCache` holds a lock around it.

    Attributes:
        idle: how many watched pages have one holder, who watches them.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._holders = [0] * pages
        # the lowest numbers are taken first, so that a few pages touch little memory
        self._free = list(range(pages - 1, -1, -1))
        self._watched = bytearray(pages)
        self.idle = 0

    @property
    def free(self) -> int:
        """The number of free pages."""
        return len(self._free)

    def take(self) -> int:
        """Take a free page and return it; it then has one holder.

        Raises:
            CacheFullError: no page is free.
        """
        if not self._free:
            raise CacheFullError(f"all {self.pages} pages are in use")
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, page: int) -> int:
        """Add a holder to ``page`` and return it."""
        assert self._holders[page] > 0, "a free page cannot be shared"
        self._holders[page] += 1
        if self._watched[page] and self._holders[page] == 2:
            self.idle -= 1
        return page

    def release(self, pages: Iterable[int]) -> None:
        """Remove a holder from each of ``pages``; a page without holders is free."""
        for page in pages:
            assert self._holders[page] > 0, "a free page cannot be released"
            self._holders[page] -= 1
            if self._watched[page] and self._holders[page] == 1:
                self.idle += 1
            if self._holders[page] == 0:
                self._free.append(page)

    def watch(self, page: int) -> None:
        """Count a held page in :attr:`idle` while it has no other holder than the caller."""
        assert self._holders[page] > 0
        assert not self._watched[page], "a page is watched once"
        self._watched[page] = 1
        self.idle += self._holders[page] == 1

    def unwatch(self, page: int) -> None:
        """Stop to watch a page, before the caller releases it."""
        self._watched[page] = 0
        self.idle -= self._holders[page] == 1

    def holders(self, page: int) -> int:
        """Return how many holders ``page`` has."""
        return self._holders[page]
