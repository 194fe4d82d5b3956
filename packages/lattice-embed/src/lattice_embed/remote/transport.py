"""Sends requests over HTTP, from threads and from asyncio, on connections that are kept.

The HTTP library is httpx2, the maintained continuation of httpx; where only httpx is installed, that is used. Proxies and
certificates are its own: HTTPS_PROXY, HTTP_PROXY, NO_PROXY, SSL_CERT_FILE.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from lattice_embed.errors import LatticeEmbedError, ServiceClosedError
from lattice_embed.remote.errors import RemoteConnectionError, RemoteResponseError, RemoteTimeoutError
from lattice_embed.remote.protocol import SHOWN_CHARACTERS, HttpAnswer
from lattice_embed.remote.request_watch import RequestWatch, reading_until

if TYPE_CHECKING:
    import ssl

    import httpx2

__all__ = ["HttpRequest", "HttpTransport", "MissingHttpLibraryError", "http_library"]

LIBRARIES = ("httpx2", "httpx")
MOST_DIGITS = 18
"""Of a length that is converted to a number."""

ERROR_BYTES = 64 << 10
"""Read of the body of an answer that is no success."""


class MissingHttpLibraryError(LatticeEmbedError, ImportError):
    """The extra that brings the HTTP library is not installed."""


@dataclass(frozen=True)
class HttpRequest:
    """One request.

    Attributes:
        headers: its headers, secrets included.
        body: what is sent.
        limit: bytes that the body of a success may have.
        seconds: time that the whole exchange may take.
        direct: not through the environment's proxies.
        proxy: the proxy that it goes through, for messages.
    """

    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    limit: int
    seconds: float
    direct: bool = False
    proxy: str | None = None


class _Head(Protocol):
    status_code: int
    headers: Mapping[str, str]


def http_library() -> Any:
    """Return the module httpx2, or else httpx, whose interface is the same.

    Raises:
        MissingHttpLibraryError: neither is installed.
    """
    for name in LIBRARIES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise MissingHttpLibraryError("remote models need an HTTP library: pip install 'lattice-embed[remote]'")


@lru_cache
def _certificates(library: Any) -> ssl.SSLContext:
    """Return the root certificates that all clients of the process share.

    Reading them takes 0.1 s.
    """
    context: ssl.SSLContext = library.create_ssl_context()
    return context


class HttpTransport:
    """Posts to one address. Thread-safe.

    Each asyncio loop has separate connections, which are closed with it.

    Args:
        url: the address.
        server: what messages call it.
        count_again: called when a request is sent again because its kept connection had been closed.
    """

    def __init__(self, url: str, server: str, count_again: Callable[[], object] = lambda: None) -> None:
        self._url = url
        self._server = server
        self._count_again = count_again
        self._closed = False
        self._renew()
        _live_transports.add(self)

    def _renew(self) -> None:
        """Begin without connections."""
        self._lock = threading.Lock()
        self._clients: dict[bool, httpx2.Client] = {}  # by whether they are direct
        self._lent = 0
        self._keepers: dict[
            tuple[asyncio.AbstractEventLoop, bool], tuple[AsyncGenerator[Any, None], httpx2.AsyncClient]
        ] = {}

    # Threads

    def post(self, request: HttpRequest) -> HttpAnswer:
        """Send a request and return the answer.

        Raises:
            RemoteConnectionError, RemoteTimeoutError: there was none, or it broke off.
            RemoteResponseError: a success with a body over the limit, or one that cannot be decoded.
            ServiceClosedError: the transport was closed.
        """
        end = time.monotonic() + request.seconds
        while True:
            watch = RequestWatch()
            try:
                with (
                    self._sync_client(request.direct) as client,
                    reading_until(end),
                    self._stream(client, request, watch.trace) as response,
                ):
                    watch.response = response
                    collected = _Body(response, request, self._server)
                    for chunk in response.iter_bytes():
                        self._check_open()
                        if not time.monotonic() < end:
                            raise self._timeout(request)
                        if collected.add(chunk):
                            break
                    return collected.answer()
            except Exception as error:
                if self._goes_again(watch, error, end):
                    continue
                failure = self._translated(error, request)
            raise failure  # here, where the library's error is no longer its context: that holds the request, and so the key

    def _goes_again(self, watch: RequestWatch, error: Exception, end: float) -> bool:
        """Whether to send a request again at once, because its connection had been closed before it."""
        if self._closed or time.monotonic() >= end or not watch.met_closed_connection(error, http_library()):
            return False
        self._count_again()
        return True

    def _stream(self, client: Any, request: HttpRequest, trace: object) -> Any:
        options = {"timeout": http_library().Timeout(request.seconds), "extensions": {"trace": trace}}
        return client.stream("POST", self._url, content=request.body, headers=dict(request.headers), **options)

    @contextmanager
    def _sync_client(self, direct: bool) -> Iterator[httpx2.Client]:
        """Lend the client.

        If :meth:`close` was called meanwhile, the last borrower closes it.
        """
        with self._lock:
            self._check_open()
            client = self._clients.get(direct)
            if client is None:
                library = http_library()
                client = _opened(library.Client, direct)
                self._clients[direct] = client
            self._lent += 1
        try:
            yield client
        finally:
            with self._lock:
                self._lent -= 1
            self._close_unused()

    def _close_unused(self) -> None:
        """Close the client if it is no longer used."""
        with self._lock:
            if not self._closed or self._lent:
                return
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    # asyncio

    async def apost(self, request: HttpRequest) -> HttpAnswer:
        """Do :meth:`post` on the running loop; cancelling it closes the connection."""
        end = time.monotonic() + request.seconds
        while True:
            client = await self._async_client(request.direct)
            watch = RequestWatch()
            try:
                async with (
                    asyncio.timeout(end - time.monotonic()),
                    self._stream(client, request, watch.atrace) as response,
                ):
                    watch.response = response
                    collected = _Body(response, request, self._server)
                    async for chunk in response.aiter_bytes():
                        if collected.add(chunk):
                            break
                    return collected.answer()
            except Exception as error:
                if self._goes_again(watch, error, end):
                    continue
                failure = self._translated(error, request)
            raise failure

    async def _async_client(self, direct: bool) -> httpx2.AsyncClient:
        self._check_open()
        loop = asyncio.get_running_loop()
        held = self._keepers.get((loop, direct))
        if held is None:
            for other in [other for other in list(self._keepers) if other[0].is_closed()]:
                self._keepers.pop(other, None)
            keeper = self._keep(loop, direct)
            held = self._keepers[loop, direct] = (keeper, await anext(keeper))
        return held[1]

    async def _keep(self, loop: asyncio.AbstractEventLoop, direct: bool) -> AsyncGenerator[httpx2.AsyncClient, None]:
        """Hold a client of a loop.

        ``asyncio.run`` finishes open generators before it closes the loop, and so this one.
        """
        client = _opened(http_library().AsyncClient, direct)
        try:
            yield client
        finally:
            self._keepers.pop((loop, direct), None)
            await client.aclose()

    # Closing

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the connections, or let the last request close them.

        Those of a running loop are closed by that loop.
        """
        self._closed = True
        self._close_unused()
        for (loop, _), (keeper, _) in list(self._keepers.items()):
            if loop.is_running():
                loop.call_soon_threadsafe(_finish, loop, keeper)

    async def aclose(self) -> None:
        """Close the connections, those of the running loop at once."""
        for direct in (False, True):
            held = self._keepers.get((asyncio.get_running_loop(), direct))
            if held is not None:
                await held[0].aclose()
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ServiceClosedError:
        return ServiceClosedError(f"the service for {self._server} was closed: make a new one")

    def _translated(self, error: Exception, request: HttpRequest) -> Exception:
        """Return our error for an error of the library.

        An error that is not the library's is returned unchanged.
        """
        library = http_library()
        if isinstance(error, LatticeEmbedError):
            return error
        if self._closed and isinstance(error, library.TransportError | RuntimeError):  # closed under this request
            return self._closed_error()
        if isinstance(error, library.TimeoutException | TimeoutError):
            return self._timeout(request, _reason(error))
        if isinstance(error, library.DecodingError):
            return RemoteResponseError(f"{self._server} answered with a body that cannot be unpacked: {_reason(error)}")
        if isinstance(error, library.TransportError) and request.proxy is not None:
            connected = not isinstance(error, library.ConnectError | library.ProxyError)
            what = f"no answer from {self._server} by way of" if connected else "no connection through"
            return RemoteConnectionError(
                f"{what} the environment's proxy {request.proxy}, for {self._server}: {_reason(error)}: check HTTPS_PROXY, "
                "HTTP_PROXY and ALL_PROXY, or name the server in NO_PROXY",
                retryable="CERTIFICATE_VERIFY_FAILED" not in str(error),
            )
        if isinstance(error, library.TransportError):
            return RemoteConnectionError(
                f"no answer from {self._server}: {_reason(error)}",
                retryable="CERTIFICATE_VERIFY_FAILED" not in str(error),
            )
        return error

    def _timeout(self, request: HttpRequest, reason: str = "") -> RemoteTimeoutError:
        detail = f" ({reason})" if reason else ""
        if request.proxy is not None:
            detail += f", by way of the environment's proxy {request.proxy}"
        return RemoteTimeoutError(
            f"no whole answer from {self._server} within {request.seconds:.3g} s{detail}", retryable=True
        )


class _Body:
    """Collects a body up to its limit."""

    def __init__(self, response: _Head, request: HttpRequest, server: str) -> None:
        self._response = response
        self._succeeded = 200 <= response.status_code < 300
        self._limit = request.limit if self._succeeded else ERROR_BYTES
        self._server = server
        self._parts: list[bytes] = []
        self._size = 0
        announced = response.headers.get("content-length", "")
        if self._succeeded and announced.isascii() and announced.isdecimal():
            size = announced.lstrip("0")[:MOST_DIGITS]  # Python refuses to convert thousands of digits
            if int(size or "0") > self._limit:
                raise self._too_large()

    def add(self, chunk: bytes) -> bool:
        """Take a part; return whether no more is wanted."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size <= self._limit:
            return False
        if self._succeeded:
            raise self._too_large()
        return True

    def answer(self) -> HttpAnswer:
        """Return what was collected."""
        headers = {name.lower(): value for name, value in self._response.headers.items()}
        return HttpAnswer(self._response.status_code, headers, b"".join(self._parts)[: self._limit])

    def _too_large(self) -> RemoteResponseError:
        return RemoteResponseError(
            f"{self._server} answered with more than {self._limit:,} bytes, which is more than an answer to this "
            "request can be",
            status=self._response.status_code,
        )


def _opened(kind: Any, direct: bool) -> Any:
    """Return a new client of a kind.

    Raises:
        RemoteConnectionError: the environment names a proxy that is no address, or of an unknown kind.
    """
    library = http_library()
    try:
        return kind(follow_redirects=False, verify=_certificates(library), trust_env=not direct)
    except (ValueError, ImportError, library.InvalidURL) as error:
        raise RemoteConnectionError(
            f"the environment's proxy cannot be used: {_reason(error)}: check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY"
        ) from None


def _reason(error: BaseException) -> str:
    """Return an error's words in one line; the HTTP library's may quote all of a bad header."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= SHOWN_CHARACTERS else f"{words[:SHOWN_CHARACTERS]}..."


def _finish(loop: asyncio.AbstractEventLoop, keeper: AsyncGenerator[Any, None]) -> None:
    async def finish() -> None:
        await keeper.aclose()

    task = loop.create_task(finish())
    _finishing.add(task)
    task.add_done_callback(_finishing.discard)


_finishing: set[asyncio.Task[None]] = set()
_live_transports: weakref.WeakSet[HttpTransport] = weakref.WeakSet()


_connections_of_the_parent: list[object] = []
"""Kept in a child after a fork: finishing them would speak on the parent's sockets."""


def _forget_connections_after_fork() -> None:
    for transport in _live_transports:
        _connections_of_the_parent.append((transport._clients, transport._keepers))
        transport._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections_after_fork)
