"""Functions that an engine's thread runs between its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["EngineCalls"]

Returned = TypeVar("Returned")


class EngineCalls:
    """A queue of functions with their future results; any thread may add to it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(self, function: Callable[[], Returned]) -> Future[Returned]:
        """Queue a function; cancelling its future drops it."""
        future: Future[Returned] = Future()
        self._waiting.append((function, future))
        return future

    def run_next(self) -> None:
        """Run the next one that was not cancelled, if there is one."""
        while self._waiting:
            function, future = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                value = function()
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                future.set_result(value)
            return

    def fail_all(self, error: BaseException) -> None:
        """Give all that wait an error."""
        while self._waiting:
            _, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
