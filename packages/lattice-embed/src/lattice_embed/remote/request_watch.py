"""Watches one request at the HTTP library's connection, by the library's trace of its steps.

* A kept connection that the server has closed costs no more than sending again. ``met_closed_connection`` tells it from a
  server that fails.
* A connection on which bytes follow an answer is closed. The next request would take them for its own answer. The library
  looks at the socket before it uses a connection again, but not at what it has read from it already.
* A thread reads until its moment, not for so many seconds at each read. A head, or a compressed body, may come byte by byte.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["RequestWatch", "reading_until"]

_ANSWERED = "http11.receive_response_headers.complete"
_CLOSING = "http11.response_closed.started"
"""The event of the HTTP library after an answer, and before its connection can be used again."""

_OPENED = ("connect_tcp.complete", "start_tls.complete")
"""Ends of events that tell of a new connection, with its stream."""

_TO_CONNECTION = ("stream", "_stream", "_httpcore_stream", "_stream", "_connection")
"""Attributes from a response to its connection. The HTTP library has no public way."""


class _Reading(threading.local):
    end = math.inf


_reading = _Reading()


@contextmanager
def reading_until(end: float) -> Iterator[None]:
    """End this thread's reads at a moment of the monotonic clock, by TimeoutError."""
    _reading.end = end
    try:
        yield
    finally:
        _reading.end = math.inf


class RequestWatch:
    """Watches one request; ``response`` is set as soon as there is one.

    ``trace`` and ``atrace`` are for the library.
    """

    def __init__(self) -> None:
        self.response: Any = None
        self._opened = self._answered = False

    @property
    def trace(self) -> Callable[[str, Any], None]:
        """The extension ``trace`` of a request from a thread."""

        def look(event: str, info: Any) -> None:
            self._look(event)
            if event.endswith(_OPENED):
                _limit_reads(info["return_value"])

        return look

    @property
    def atrace(self) -> Callable[[str, Any], Awaitable[None]]:
        """The extension ``trace`` of a request on an asyncio loop."""

        async def look(event: str, info: Any) -> None:
            self._look(event)

        return look

    def met_closed_connection(self, error: Exception, library: Any) -> bool:
        """Whether the request went out on a kept connection that ended without an answer."""
        lost = isinstance(error, library.ReadError | library.WriteError | library.RemoteProtocolError)
        return lost and not self._opened and not self._answered

    def _look(self, event: str) -> None:
        if event.endswith(_OPENED):
            self._opened = True
        elif event == _ANSWERED:
            self._answered = True
        elif event == _CLOSING and self.response is not None:
            self._close_if_bytes_follow()

    def _close_if_bytes_follow(self) -> None:
        found = self.response
        for name in _TO_CONNECTION:
            found = getattr(found, name, None)
        state = getattr(found, "_h11_state", None)
        if state is not None and state.trailing_data[0]:
            state.send_failed()  # what is not done in its state is closed, and not kept


def _limit_reads(stream: Any) -> None:
    """Have every later read of a new connection end at its thread's moment."""
    read = stream.read

    def limited(max_bytes: int, timeout: float | None = None) -> bytes:
        left = _reading.end - time.monotonic()
        if not left > 0:
            raise TimeoutError
        data: bytes = read(max_bytes, timeout=left if timeout is None else min(left, timeout))
        return data

    stream.read = limited
