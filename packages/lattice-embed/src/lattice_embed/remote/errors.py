"""What can go wrong between this process and an embedding server.

The messages name the server, what it said, how often it was asked and what to do. They never hold the API key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lattice_embed.errors import LatticeEmbedError

__all__ = [
    "RemoteAuthenticationError",
    "RemoteConnectionError",
    "RemoteOfflineError",
    "RemoteRateLimitError",
    "RemoteRequestError",
    "RemoteResponseError",
    "RemoteServiceError",
    "RemoteTimeoutError",
]


class RemoteServiceError(LatticeEmbedError, OSError):
    """A server could not be asked, failed, or refused. Base of the others.

    Attributes:
        reason: what happened, as one sentence.
        status: HTTP status of the last answer, or ``None`` if there was none.
        attempts: how many requests were made for the batch that failed.
        retry_after: seconds that the server asked to wait, or ``None``.
        retryable: whether the same request may succeed later.
    """

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        attempts: int = 1,
        retry_after: float | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(reason if attempts <= 1 else f"{reason} (asked {attempts} times)")
        self.reason = reason
        self.status = status
        self.attempts = attempts
        self.retry_after = retry_after
        self.retryable = retryable

    def after(self, attempts: int) -> RemoteServiceError:
        """Return the same error, of the last of ``attempts`` requests."""
        return type(self)(**{**self._fields(), "attempts": attempts})

    def cleaned(self, redact: Callable[[str], str]) -> RemoteServiceError | None:
        """Return the error with ``redact`` applied to its message.

        ``None`` if that changes nothing.
        """
        reason = redact(self.reason)
        return None if reason == self.reason else type(self)(**{**self._fields(), "reason": reason})

    def _fields(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "status": self.status,
            "attempts": self.attempts,
            "retry_after": self.retry_after,
            "retryable": self.retryable,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self._fields()))


class RemoteConnectionError(RemoteServiceError, ConnectionError):
    """No connection to the server could be made, or it broke before the answer was whole."""


class RemoteOfflineError(RemoteConnectionError):
    """``LATTICE_OFFLINE`` is set, and the server is on another machine.

    No connection was opened.
    """


class RemoteTimeoutError(RemoteServiceError, TimeoutError):
    """The server took longer than ``timeout`` allows a request, or ``deadline`` the whole call."""


class RemoteRateLimitError(RemoteServiceError):
    """The server says that it was asked too often (429), or that the account's quota is used up."""


class RemoteAuthenticationError(RemoteServiceError, PermissionError):
    """The server does not accept the API key, or there is none."""


class RemoteRequestError(RemoteServiceError):
    """The server refuses the request itself: unknown model, text too long, body too large."""


class RemoteResponseError(RemoteServiceError):
    """The answer is unusable.

    It is not JSON, far too large or a redirect, or its vectors are missing, doubled or of another length.
    """


def _rebuild(kind: type[Exception], fields: dict[str, Any]) -> Exception:
    return kind(**fields)
