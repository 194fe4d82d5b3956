"""Work that several threads need is done by one of them; the others take its result."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator

from lattice_embed import _text_cache
from lattice_inference.cancellation import cancellation

__all__ = ["SingleFlight"]

# A process's leaders do not exist in its forked child, which must not wait for them.
_live: weakref.WeakSet[SingleFlight] = weakref.WeakSet()


class SingleFlight(_text_cache.SingleFlight):
    """Who works on which keys, and who waits for whose work, in this process.

    A leader whose own task is cancelled goes on while somebody who waits wants the result.
    """

    def __init__(self) -> None:
        self._clear()
        _live.add(self)

    def forget(self) -> None:
        """Forget every flight and all who wait: they are not in a forked child."""
        super().forget()
        self._clear()

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Callable[[], bool]]] = {}

    @contextlib.contextmanager
    def aboard(self, flight: _text_cache.Flight) -> Iterator[None]:
        """Count the caller among those who wait for ``flight``."""
        cancelled = cancellation() or _never
        with self._lock:
            self._waiting.setdefault(id(flight), []).append(cancelled)
        try:
            yield
        finally:
            with self._lock:
                waiting = self._waiting[id(flight)]
                waiting.remove(cancelled)
                if not waiting:
                    del self._waiting[id(flight)]

    def is_wanted(self, flight: _text_cache.Flight) -> bool:
        """Whether somebody who is not cancelled waits for ``flight``."""
        with self._lock:
            return any(not cancelled() for cancelled in self._waiting.get(id(flight), ()))


def _never() -> bool:
    return False


def _forget_leaders_after_fork() -> None:
    for single_flight in _live:
        single_flight.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_leaders_after_fork)
