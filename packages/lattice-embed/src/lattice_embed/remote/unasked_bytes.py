"""Closes a kept connection on which bytes follow an answer.

The next request would take them for its own answer.

The HTTP library looks at the socket before it uses a connection again, but not at what it has read from it already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["AnswerWatch"]

_CLOSING = "http11.response_closed.started"
"""The event of the HTTP library after an answer, and before its connection can be used again."""

_TO_CONNECTION = ("stream", "_stream", "_httpcore_stream", "_stream", "_connection")
"""Attributes from a response to its connection. The HTTP library has no public way."""


class AnswerWatch:
    """Watches one request; ``response`` is set as soon as there is one.

    ``trace`` and ``atrace`` are for the library.
    """

    def __init__(self) -> None:
        self.response: Any = None

    @property
    def trace(self) -> Callable[[str, Any], None]:
        """The extension ``trace`` of a request from a thread."""
        return self._look

    @property
    def atrace(self) -> Callable[[str, Any], Awaitable[None]]:
        """The extension ``trace`` of a request on an asyncio loop."""

        async def look(event: str, info: Any) -> None:
            self._look(event, info)

        return look

    def _look(self, event: str, info: Any) -> None:
        if event != _CLOSING or self.response is None:
            return
        found = self.response
        for name in _TO_CONNECTION:
            found = getattr(found, name, None)
        state = getattr(found, "_h11_state", None)
        if state is not None and state.trailing_data[0]:
            state.send_failed()  # what is not done in its state is closed, and not kept
