"""Work that several threads want at once is done by one of them, and the others take its result."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

__all__ = ["Flight", "SingleFlight"]

Value = TypeVar("Value")


class Flight(Generic[Value]):
    """The work of one thread, its leader, on some keys; others may wait for it.

    Nearly every flight ends without a passenger: what they wait on is made for the first of them.
    """

    __slots__ = ("_landed", "_results")

    def __init__(self) -> None:
        self._landed: threading.Event | None = None
        self._results: dict[bytes, Value] = {}

    def board(self) -> None:
        """Be ready for :meth:`wait`. Under the lock of whoever knows the flight, and before it has landed."""
        if self._landed is None:
            self._landed = threading.Event()

    def wait(self, key: bytes) -> Value | None:
        """Wait for the leader and return its result for ``key``, or None if it failed. After :meth:`board`."""
        if self._landed is not None:
            self._landed.wait()
        return self._results.get(key)

    def land(self, results: dict[bytes, Value]) -> None:
        """Let those who wait go on. Nobody can board any more."""
        self._results = results
        if self._landed is not None:
            self._landed.set()


# The leaders of a process are not in its forked child, where nobody may wait for them.
_live: weakref.WeakSet[SingleFlight[Any]] = weakref.WeakSet()


class SingleFlight(Generic[Value]):
    """Who works on which keys.

    Each caller of :meth:`claim` must :meth:`finish` its flight before it waits for another's: then nobody waits in a
    circle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[bytes, Flight[Value]] = {}
        _live.add(self)

    def claim(self, keys: Iterable[bytes]) -> tuple[Flight[Value], list[bytes], dict[bytes, Flight[Value]]]:
        """Return a flight, the keys that it must work on, and the others' flights by the keys that they work on."""
        flight: Flight[Value] = Flight()
        mine: list[bytes] = []
        theirs: dict[bytes, Flight[Value]] = {}
        with self._lock:
            for key in keys:
                other = self._flights.setdefault(key, flight)
                if other is flight:
                    mine.append(key)
                else:
                    other.board()
                    theirs[key] = other
        return flight, mine, theirs

    def finish(self, flight: Flight[Value], keys: Iterable[bytes], results: dict[bytes, Value]) -> None:
        """End a flight: what is not in ``results`` has failed, and whoever waits for it may try for itself."""
        with self._lock:
            for key in keys:
                if self._flights.get(key) is flight:  # after a fork it may be nobody's, or another's
                    del self._flights[key]
        flight.land(results)


def _forget_leaders_after_fork() -> None:
    for single_flight in _live:
        single_flight._lock = threading.Lock()
        single_flight._flights = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_leaders_after_fork)
