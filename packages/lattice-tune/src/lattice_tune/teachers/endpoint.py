"""Which servers may be asked: the whole host is compared, nothing of an address is guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from lattice_tune.errors import ConfigError, shown

__all__ = ["Endpoint", "EndpointSecurity"]

_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]*:[0-9a-f:.]*")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
MOST_CHARACTERS = 2000

API_HOSTS = ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Endpoint:
    """The address of a server.

    Attributes:
        url: the address, without a slash at its end.
        host: in lower case, without the port.
        is_encrypted: whether it is ``https://``.
    """

    url: str
    host: str
    is_encrypted: bool

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine as written: localhost, 127.0.0.0/8 or ::1."""
        return self.host in LOOPBACK_HOSTS or bool(re.fullmatch(r"127(\.(0|[1-9]\d{0,2})){3}", self.host))


@dataclass(frozen=True)
class EndpointSecurity:
    """What an endpoint must be.

    An address with a user name, a query or a fragment is refused in any case.
    >>> EndpointSecurity.default_secure().check("https://api.openai.com/v1").host
    'api.openai.com'

    Attributes:
        require_tls: refuse ``http://`` but to this machine.
        allowed_hosts: hosts that may be asked, each compared whole; empty for any.

    Raises:
        ConfigError: a field makes no sense.
    """

    require_tls: bool = True
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.require_tls, bool):
            raise ConfigError(f"require_tls is {shown(self.require_tls)}; it must be True or False")
        if isinstance(self.allowed_hosts, str) or not isinstance(self.allowed_hosts, (tuple, list)):  # type: ignore[unreachable]
            raise ConfigError(f"allowed_hosts is {shown(self.allowed_hosts)}; pass a tuple of hosts")
        hosts = tuple(self.allowed_hosts)
        for host in hosts:
            if not isinstance(host, str) or not _HOST.fullmatch(host):
                raise ConfigError(
                    f"allowed_hosts has {shown(host)}; a host is written in lower case, without port and path"
                )
        object.__setattr__(self, "allowed_hosts", hosts)

    @classmethod
    def default_secure(cls) -> EndpointSecurity:
        """Allow the servers of Anthropic, OpenAI and Google alone."""
        return cls(allowed_hosts=API_HOSTS)

    @classmethod
    def for_local(cls) -> EndpointSecurity:
        """Allow this machine alone."""
        return cls(allowed_hosts=LOOPBACK_HOSTS)

    def check(self, endpoint: object) -> Endpoint:
        """Return an address that may be asked.

        Raises:
            ConfigError: it is no plain address, is not encrypted, or its host is not allowed.
        """
        if not isinstance(endpoint, str):
            raise ConfigError(f"endpoint is {shown(endpoint)}; it must be like https://host/v1")
        if not _VISIBLE.fullmatch(endpoint) or "\\" in endpoint or not len(endpoint) <= MOST_CHARACTERS:
            raise ConfigError(
                f"endpoint is {shown(endpoint)}; an address is at most {MOST_CHARACTERS:,} visible ASCII characters, no \\"
            )
        try:
            parts = urlsplit(endpoint)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"endpoint is no address: {error}") from None
        if "@" in parts.netloc:
            raise ConfigError(
                "endpoint holds a user name or password before an @, which hides the host that would be asked: name the "
                "environment variable of the key with api_key_env"
            )
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or port == 0:
            raise ConfigError(f"endpoint is {shown(endpoint)}; it must be like https://host/v1")
        if parts.query or parts.fragment or endpoint.rstrip("/").endswith(("?", "#")):
            raise ConfigError("endpoint has a query or a fragment: pass the address before the method's own path")
        found = Endpoint(endpoint.rstrip("/"), host, parts.scheme == "https")
        if self.allowed_hosts and host not in self.allowed_hosts:
            raise ConfigError(f"endpoint names the host {host}, and allowed are {', '.join(self.allowed_hosts)}")
        if self.require_tls and not found.is_encrypted and not found.is_loopback:
            raise ConfigError(
                f"endpoint is {found.url}: texts and key would go to {host} unencrypted. Use https://, or pass "
                "EndpointSecurity(require_tls=False) for a network that you trust"
            )
        return found
