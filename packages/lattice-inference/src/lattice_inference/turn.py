"""Lets one call at a time work on an object that changes; a second call is refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType

from lattice_inference.errors import BusyError

__all__ = ["Turn"]


class Turn:
    """A context manager that one call of an object holds while it runs.

    It does not wait for another one.

    Args:
        what: the object, as an error calls it.
        remedy: what the caller can do instead.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self._what = what
        self._remedy = remedy
        self._lock = threading.Lock()
        self._holder: int | None = None

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise BusyError(f"{self._what} is at work for another call: {self._remedy}")
        self._holder = threading.get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holder = None
        self._lock.release()

    @contextlib.contextmanager
    def waited(self) -> Iterator[None]:
        """Hold the turn once no other thread does.

        Raises:
            BusyError: the calling thread itself holds it, so it would wait for ever.
        """
        if self._holder == threading.get_ident():
            raise BusyError(f"{self._what} is at work for the call that this one is made from: wait until it returns")
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None
