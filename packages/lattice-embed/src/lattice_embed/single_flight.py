"""Work that several threads want at once is done by one of them, and the others take its result."""

from __future__ import annotations

import os
import weakref

from lattice_embed import _text_cache

__all__ = ["SingleFlight"]

# The leaders of a process are not in its forked child, where nobody may wait for them.
_live: weakref.WeakSet[SingleFlight] = weakref.WeakSet()


class SingleFlight(_text_cache.SingleFlight):
    """Who works on which keys, in this process."""

    def __init__(self) -> None:
        _live.add(self)


def _forget_leaders_after_fork() -> None:
    for single_flight in _live:
        single_flight.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_leaders_after_fork)
