"""An API key, and other headers that only the server may see."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NoReturn

from lattice_embed.argument_checks import shown
from lattice_embed.errors import InvalidInputError
from lattice_embed.remote.errors import RemoteAuthenticationError

__all__ = ["Credentials", "check_one_key"]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_KEY = re.compile(r"[\x21-\x7e]+")

BEARER_HEADER = "authorization"
"""Header whose value is ``Bearer`` and the key."""

HIDDEN = "[hidden]"
SHORTEST_SECRET = 6
"""Characters from which a header's value is searched for in messages: shorter ones would blot out plain words."""


class Credentials:
    """The secret that authorises requests.

    Its repr hides it, it does not pickle, and :meth:`redact` removes it from texts.

    Args:
        key: the API key; ``None`` reads ``variable`` at each request.
        variable: environment variable that holds the key; ``None`` for an endpoint that needs none.
        headers: further headers of each request, treated as secrets too.
        key_header: the header that carries the key: ``Bearer`` and the key in ``authorization``, the key alone in any other,
            such as ``x-api-key``.

    Raises:
        InvalidInputError: a key or header that HTTP cannot carry. The message does not show it.
    """

    __slots__ = ("_headers", "_key", "_key_header", "variable")

    def __init__(
        self,
        key: str | None,
        variable: str | None,
        headers: Mapping[str, str] | None,
        *,
        key_header: str = BEARER_HEADER,
    ) -> None:
        self._key = None if key is None else _check_key(key, "api_key")
        self.variable: str | None = variable
        self._headers = _check_headers(headers or {})
        if not isinstance(key_header, str) or not _HEADER_NAME.fullmatch(key_header):
            raise InvalidInputError(f"key_header is {shown(key_header)}, which is no name of a header")
        self._key_header = key_header.lower()

    @property
    def has_headers(self) -> bool:
        """Whether the caller added headers."""
        return bool(self._headers)

    @property
    def hint(self) -> str:
        """What to look at when the key is not accepted."""
        return "api_key" if self._key is not None or self.variable is None else self.variable

    def headers(self, server: str) -> dict[str, str]:
        """Return the headers of a request.

        Raises:
            RemoteAuthenticationError: a key is needed and the environment variable is not set.
        """
        key = self._find_key()
        if key is None and self.variable is not None and self._key_header not in self._headers:
            raise RemoteAuthenticationError(f"no API key for {server}: set {self.variable} in the environment")
        if key is None:
            return dict(self._headers)
        return {self._key_header: f"Bearer {key}" if self._key_header == BEARER_HEADER else key} | self._headers

    def redact(self, text: str) -> str:
        """Return ``text`` with every secret in it replaced."""
        for secret in self._secrets():
            text = text.replace(secret, HIDDEN)
        return text

    def redact_bytes(self, body: bytes) -> bytes:
        """Do :meth:`redact` on what a server sent, before any of it is cut off or shown."""
        for secret in self._secrets():
            body = body.replace(secret.encode(), HIDDEN.encode())
        return body

    def _secrets(self) -> list[str]:
        found = (self._find_key(), *self._headers.values())
        return [secret for secret in found if secret is not None and len(secret) >= SHORTEST_SECRET]

    def _find_key(self) -> str | None:
        if self._key is not None or self.variable is None:
            return self._key
        value = os.environ.get(self.variable, "").strip()
        return _check_key(value, self.variable) if value else None

    def __repr__(self) -> str:
        return f"<Credentials {HIDDEN}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled: the copy of a service reads its key from the environment")


def check_one_key(key: str | None, variable: str | None, headers: Mapping[str, str] | None) -> None:
    """Refuse a key beside an ``Authorization`` header, which would be sent in its place.

    Raises:
        InvalidInputError: both are given.
    """
    if any(isinstance(name, str) and name.lower() == "authorization" for name in headers or ()):
        for name, value in (("api_key", key), ("api_key_variable", variable)):
            if value is not None:
                raise InvalidInputError(f"{name} and an Authorization header are given: pass one of them")


def _check_key(key: object, name: str) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidInputError(f"{name} holds no API key: a key is visible ASCII characters without spaces")
    return key


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidInputError(f"headers: {name!r} is no name of a header")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidInputError(f"headers: the value of {name} cannot be sent: it must be one line of ASCII")
        if name.lower() in checked:
            raise InvalidInputError(f"headers: {name} is given twice, in two spellings")
        checked[name.lower()] = value
    return checked
