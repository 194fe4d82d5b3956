"""Checks a server's address: is it valid, is it this machine, what may be sent to it.

An address is this machine only as it is written: ``localhost``, 127.0.0.0/8 in four decimal numbers, or ``::1``. Names that
resolve to it, and other spellings of the numbers, are not: what they mean is decided elsewhere.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from lattice_embed.errors import InvalidInputError
from lattice_embed.remote.errors import RemoteOfflineError

__all__ = ["OFFLINE_VARIABLE", "PLAIN_HTTP_VARIABLE", "ServerAddress", "is_offline"]

OFFLINE_VARIABLE = "LATTICE_OFFLINE"
"""Environment variable that forbids connections to other machines."""

PLAIN_HTTP_VARIABLE = "LATTICE_ALLOW_PLAIN_HTTP"
"""Environment variable that allows keys over ``http://`` to other machines, where the caller does not say."""

_UNSET = ("", "0", "false", "no", "off")


def is_offline() -> bool:
    """Whether ``LATTICE_OFFLINE`` forbids connections to servers on other machines."""
    return _is_set(OFFLINE_VARIABLE)


@dataclass(frozen=True)
class ServerAddress:
    """The address before ``/embeddings``.

    Attributes:
        url: the address, without a slash at its end.
        server: host and port, as messages name it.
        is_encrypted: whether it is ``https://``.
        is_loopback: whether it is this machine as written.
    """

    url: str
    server: str
    is_encrypted: bool
    is_loopback: bool

    @classmethod
    def parse(cls, base_url: object, library: Any) -> ServerAddress:
        """Read an address.

        ``library`` is the HTTP library, which must understand it in the same way.

        Raises:
            InvalidInputError: it is none, or holds a user name, a query or a fragment.
        """
        if not isinstance(base_url, str):
            raise InvalidInputError(f"base_url is a {type(base_url).__name__}, not a str")
        written = base_url.strip()
        try:
            parts = urlsplit(written)
            named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError as error:
            raise InvalidInputError(f"base_url is no address: {error}") from None
        if parts.username is not None or parts.password is not None:
            raise InvalidInputError("base_url holds a user name or password: pass api_key or headers instead")
        if parts.scheme not in ("http", "https") or not named:
            raise InvalidInputError(f"base_url is {base_url!r}; it must be like https://host/v1")
        if parts.query or parts.fragment:
            raise InvalidInputError("base_url has a query or a fragment; it must be the address before /embeddings")
        try:
            asked = library.URL(written)
        except (library.InvalidURL, ValueError) as error:
            raise InvalidInputError(f"base_url is no address: {error}") from None
        if asked.host.lower() != parts.hostname or asked.userinfo:
            raise InvalidInputError(f"base_url is {base_url!r}, which names no single host: write it plainly")
        return cls(written.rstrip("/"), parts.netloc, parts.scheme == "https", is_loopback(parts.hostname or ""))

    def check_key(self, allow_plain_http: bool | None, *, has_key: bool) -> None:
        """Refuse a key over an unencrypted connection to another machine, unless it is allowed.

        Args:
            allow_plain_http: whether it is allowed; ``None`` for what ``LATTICE_ALLOW_PLAIN_HTTP`` says.
            has_key: whether a key, or a header of the caller, is sent.

        Raises:
            InvalidInputError: it is not allowed.
        """
        if not isinstance(allow_plain_http, bool | None):
            raise InvalidInputError(f"allow_plain_http is {allow_plain_http!r}; it must be True, False or None")
        if not has_key or self.is_encrypted or self.is_loopback:
            return
        if not (_is_set(PLAIN_HTTP_VARIABLE) if allow_plain_http is None else allow_plain_http):
            raise InvalidInputError(
                f"base_url is {self.url}: a key or header would go to {self.server} unencrypted, for all on the way to "
                f"read. Use https://, or allow it with allow_plain_http=True, --allow-plain-http or {PLAIN_HTTP_VARIABLE}=1"
            )

    def check_online(self) -> None:
        """Make sure that a connection may be opened.

        Raises:
            RemoteOfflineError: ``LATTICE_OFFLINE`` is set, and this is not this machine.
        """
        if is_offline() and not self.is_loopback:
            raise RemoteOfflineError(
                f"{OFFLINE_VARIABLE} is set: no connection to {self.server} is opened (only localhost, 127.0.0.0/8 and ::1 "
                "are asked); unset it, or use a model that runs here"
            )

    def is_direct(self, *, has_key: bool) -> bool:
        """Whether a request must not go through the environment's proxies.

        So it is for this machine when offline, and for a key over ``http://``, which a proxy elsewhere would read.
        """
        if not self.is_loopback:
            return False
        return is_offline() or (has_key and not self.is_encrypted and not _has_proxy_on_loopback())

    def proxy(self, *, has_key: bool) -> str | None:
        """Return host and port of the environment's proxy for a request, or None."""
        if self.is_direct(has_key=has_key):
            return None
        proxies = urllib.request.getproxies()
        proxy = proxies.get("https" if self.is_encrypted else "http") or proxies.get("all")
        if not proxy or urllib.request.proxy_bypass(self.server):
            return None
        return proxy.rpartition("@")[2].rpartition("://")[2].partition("/")[0]  # a password is not shown

    def described(self, *, has_key: bool) -> str:
        """The address that is asked, and the proxy on the way, in words."""
        proxy = self.proxy(has_key=has_key)
        return f"{self.url}/embeddings" + ("" if proxy is None else f", by way of the environment's proxy {proxy}")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine as written."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_loopback  # four decimal numbers without leading zeros: ipaddress reads nothing else
    return address == ipaddress.IPv6Address("::1") and address.scope_id is None


def _has_proxy_on_loopback() -> bool:
    proxies = urllib.request.getproxies()
    found = [proxies[name] for name in ("http", "all") if proxies.get(name)]
    try:
        return bool(found) and all(is_loopback(_split_proxy(proxy).hostname or "") for proxy in found)
    except ValueError:
        return False


def _split_proxy(proxy: str) -> SplitResult:
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in _UNSET
