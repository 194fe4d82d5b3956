"""An answer that comes as server-sent events, and ends when its reader leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lattice_inference.serve.api_errors import run_error_of
from lattice_inference.serve.client_watch import ClientWatch

__all__ = ["EventStream"]


class EventStream(Response):
    """Sends events, then ``[DONE]``; after an error the error, and no end.

    Args:
        events: the JSON values. It is closed when the client has left.
        failed: is told the error, if there is one.
        seconds: how long it may take in all; then the connection is closed.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[dict[str, Any], None], failed: Callable[[BaseException], None], seconds: float
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._failed = failed
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with ClientWatch(receive, self._seconds):
                await self._send_all(send)
        except (ClientDisconnect, TimeoutError) as error:
            self._failed(error)
        except asyncio.CancelledError as error:  # the server ends, and its task with it
            self._failed(error)
            await _write(send, json.dumps(run_error_of(error).body()), more=False)

    async def _send_all(self, send: Send) -> None:
        try:
            async with contextlib.aclosing(self._events) as events:
                try:
                    async for event in events:
                        try:
                            await _write(send, json.dumps(event, ensure_ascii=False))
                        except OSError as error:
                            raise ClientDisconnect from error
                except ClientDisconnect:
                    raise
                except Exception as error:
                    self._failed(error)
                    await _write(send, json.dumps(run_error_of(error).body()), more=False)
                    return
                await _write(send, "[DONE]", more=False)
        except OSError as error:
            raise ClientDisconnect from error


async def _write(send: Send, data: str, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": more})
