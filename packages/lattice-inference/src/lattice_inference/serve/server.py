"""Runs an application on a port, and ends it so that running requests come to their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from lattice_inference.errors import InvalidInputError, LatticeError
from lattice_inference.serve.connection import connection_class
from lattice_inference.serve.state import LOGGER, ServerState, is_loopback

__all__ = ["listen", "run_server", "server_config"]

MOST_CONNECTIONS = 1024
_LOOK_SECONDS = 0.05


def listen(host: str, port: int, *, has_keys: bool) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: a name or an address. Without keys it must be this machine's own (loopback).
        port: 0 takes a free one.
        has_keys: whether requests need a key.

    Raises:
        InvalidInputError: the host is not loopback and there are no keys, or the port is out of its range.
        LatticeError: the address cannot be used.
    """
    if not 0 <= port <= 65535:
        raise InvalidInputError(f"the port is {port}; expected 0 to 65535")
    if not has_keys and not is_loopback(host):
        raise InvalidInputError(f"{host} can be reached from other machines: name a file of keys by --api-key-file")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off the delay of small packets only where the protocol is named
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(MOST_CONNECTIONS)
    except OSError as error:
        made.close()
        raise LatticeError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return made


def run_server(app: Starlette, listener: socket.socket) -> None:
    """Serve an application of :func:`create_app` until SIGTERM or SIGINT.

    Then ``/health/ready`` answers 503 at once, and new requests are refused. The server ends when running requests have
    ended, at the latest after the configuration's ``drain_seconds``, or at a second signal.
    """
    asyncio.run(_DrainingServer(server_config(app), app.state.lattice).serve(sockets=[listener]))


def server_config(app: Starlette) -> uvicorn.Config:
    """Return how uvicorn serves an application of :func:`create_app`."""
    return uvicorn.Config(
        app,
        http=connection_class(app.state.lattice.config),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )


class _DrainingServer(uvicorn.Server):
    """A server that goes on to answer while it drains."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)
        if self._drain is not None:
            self._drain.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; end at once if it is draining."""
        if self._state.is_draining:
            self.should_exit = True
            self.force_exit = self.force_exit or sig == signal.SIGINT
            return
        self._state.is_draining = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain = asyncio.ensure_future(self._drained())

    async def _drained(self) -> None:
        LOGGER.info('{"event": "draining", "in_flight": %d}', self._state.in_flight)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._state.config.drain_seconds):
                while self._state.in_flight:
                    await asyncio.sleep(_LOOK_SECONDS)
        self.should_exit = True
