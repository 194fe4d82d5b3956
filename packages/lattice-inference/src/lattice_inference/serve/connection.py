"""Connections with a deadline for headers, and room for new ones where many are idle."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from lattice_inference.serve.api_errors import ApiError
from lattice_inference.serve.config import ServeConfig

__all__ = ["connection_class"]

MOST_HEAD_BYTES = 2**16
"""Longest head of a request."""

READ_SECONDS = 60.0
"""How long a client may read nothing while an answer waits for it."""

SPARE_FILES = 128
"""Files besides connections that a server may have open."""


def connection_class(config: ServeConfig) -> type[H11Protocol]:
    """Return the class of a server's connections.

    It has the configuration's ``header_seconds`` and ``max_connections``, fewer if the process may not open so many files.
    """
    most = min(config.max_connections, _open_files(config.max_connections + SPARE_FILES) - SPARE_FILES)
    members = {"idle": {}, "most": max(most, 1), "header_seconds": config.header_seconds}
    return type("Connection", (_Connection,), members)


class _JoinedHead(h11.Connection):
    """HTTP/1.1 that sends the head with the body, if the head tells the body's length.

    Such a body follows at once, and a write less saves time.
    """

    _head = b""

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        """Return the bytes of an event, and those kept before it."""
        data = super().send(event)
        if data is None:
            return None
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head = data
            return b""
        if self._head:
            data, self._head = self._head + data, b""
        return data


class _Connection(H11Protocol):
    """A connection; it is idle while no request is worked on."""

    idle: dict[_Connection, None]
    """All idle ones of a server, the one that has been idle for longest first."""
    most: int
    header_seconds: float
    _timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.conn = _JoinedHead(h11.SERVER, MOST_HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; if there are too many, end the one that was idle for longest."""
        super().connection_made(transport)
        self.idle[self] = None
        if len(self.connections) > self.most:
            oldest = next(iter(self.idle))
            self.idle.pop(oldest)
            oldest.transport.abort()
            if oldest is self:
                return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self.idle.pop(self, None)
        self._stop_timer()
        self._stop_reader_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._stop_timer()
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Watch whether the client reads, as much of an answer waits for it."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Send what comes next."""
        self._stop_reader_timer()
        super().resume_writing()

    def _await_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(READ_SECONDS, self._look_after_reader, unread)

    def _look_after_reader(self, unread: int) -> None:
        """End the connection if nothing has been read: it may hold a request and its memory."""
        if self.transport.get_write_buffer_size() < unread:
            self._await_reader()
        else:
            self.transport.abort()

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: a client that offers HTTP/2 is answered by HTTP/1.1."""

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(ApiError(400, "invalid_http", msg))

    def _watch(self) -> None:
        """Start the time of headers once a request begins; stop it when they are there."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle.pop(self, None)
            self._stop_timer()
            return
        self.idle.setdefault(self)
        # after a refusal the rest of a body may still come, as slowly as that of a request
        has_begun = self.cycle is None or self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])
        if has_begun and self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._headers_are_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _headers_are_late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            text = f"the headers took over {self.header_seconds:g} seconds"
            self._refuse(ApiError(408, "header_timeout", text))
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Send an error and close."""
        body = json.dumps(error.body()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        events: list[Any] = [
            h11.Response(status_code=error.status, headers=[*headers, (b"connection", b"close")]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(self.conn.send(event))
        self.transport.close()


def _open_files(wanted: int) -> int:
    """Return how many files this process may open.

    The limit is raised towards ``wanted`` where that is allowed.
    """
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
