"""The cache of an engine as its scheduler sees it: the sequences of requests, by name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from lattice_inference.errors import CacheFullError

if TYPE_CHECKING:
    from lattice_inference.generate.engine_request import EngineRequest
    from lattice_inference.state import CachedSequence, KvCache

__all__ = ["EngineRoom"]


class EngineRoom:
    """A :class:`~lattice_inference.generate.scheduler.CacheRoom` of a cache.

    Sequences share whole pages only. So a page is never copied, and a request alone may use every page of the cache.

    Args:
        cache: where keys, values and states are.
        requests: the requests by name.

    Attributes:
        sequences: the sequences of the requests that run.
    """

    def __init__(self, cache: KvCache, requests: Mapping[Hashable, EngineRequest]) -> None:
        self._cache = cache
        self._requests = requests
        self.sequences: dict[Hashable, CachedSequence] = {}

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""
        return self._cache.page_tokens

    @property
    def pages(self) -> int:
        """All pages."""
        return self._cache.storage.pages

    @property
    def free_pages(self) -> int:
        """The pages that nothing holds."""
        return self._cache.free_pages

    @property
    def forgettable_pages(self) -> int:
        """The most pages that :meth:`forget` might free."""
        return self._cache.forgettable_pages

    @property
    def free_slots(self) -> int | None:
        """How many more sequences may run; None for any number."""
        most = self._cache.most_sequences
        return None if most is None else max(0, most - len(self.sequences))

    def start(self, name: Hashable) -> int:
        """Begin a request's sequence with remembered pages, or those of its leader."""
        request = self._requests[name]
        context = list(request.context())
        page = self.page_tokens
        sequence = self._cache.start(context, adapter=request.adapter)
        if sequence.length % page:
            sequence.rewind(sequence.length - sequence.length % page)
        leader, request.leader = request.leader, None
        held = None if leader is None else self.sequences.get(leader.name)
        if held is not None:
            shared = min(request.shared_tokens, held.length // page * page)
            if shared > sequence.length and held.token_ids[:shared] == tuple(context[:shared]):
                try:
                    fork = held.fork()
                    fork.rewind(shared)
                except CacheFullError:  # the sequence runs these tokens itself
                    pass
                else:
                    sequence.close()
                    sequence = fork
        self.sequences[name] = sequence
        return sequence.length

    def pages_for(self, name: Hashable, tokens: int) -> int:
        """Return how many free pages a sequence takes for ``tokens`` further tokens."""
        return self.sequences[name].pages_wanted(tokens)

    def forget(self, pages: int) -> None:
        """Free up to ``pages`` pages of remembered prefixes."""
        self._cache.forget(pages)

    def release(self, name: Hashable) -> None:
        """Free the pages and the slot of a sequence."""
        self.sequences.pop(name).close()
        self._requests[name].decodes = False
