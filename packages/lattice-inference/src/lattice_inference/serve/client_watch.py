"""Ends the work on a request when its client leaves or its time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

__all__ = ["ClientWatch", "unless_gone"]

Result = TypeVar("Result")

WATCH_SECONDS = 0.01
"""How old a request is when its client begins to be watched; shorter ones need no task for it."""


class ClientWatch:
    """A context that cancels its task when the client leaves or its time is up, and says why.

    It raises :class:`ClientDisconnect` or ``TimeoutError``. A cancellation from elsewhere stays one, as in
    :func:`asyncio.timeout`.

    Args:
        receive: of the request, whose body has been read.
        seconds: how long the work may take.
    """

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._reason: Exception | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._timer = self._task.get_loop().call_later(min(WATCH_SECONDS, self._seconds), self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._reason is not None and task is not None:
            # another cancellation may have come as well
            is_ours = task.uncancel() <= self._cancelling
            if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise self._reason from error

    def _begin(self) -> None:
        """Watch the client, and set the time that is left."""
        left = self._seconds - WATCH_SECONDS
        if left <= 0:
            self._end(TimeoutError())
            return
        self._watcher = asyncio.ensure_future(self._watch())
        self._timer = asyncio.get_running_loop().call_later(left, self._end, TimeoutError())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientDisconnect())

    def _end(self, reason: Exception) -> None:
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()


async def unless_gone(request: Request, work: Awaitable[Result], seconds: float) -> Result:
    """Return what ``work`` returns; cancel it when the client leaves, or after some seconds.

    Raises:
        ClientDisconnect: the client has left.
        TimeoutError: there was no more time.
    """
    async with ClientWatch(request.receive, seconds):
        return await work
