"""Embeddings from a server with the OpenAI protocol: OpenAI or a compatible endpoint.

    from lattice_embed import RemoteEmbeddingService

    with RemoteEmbeddingService("nomic-embed-text", base_url="http://localhost:11434/v1") as service:
        vectors = service.encode(["first text", "second text"])

Needs the extra: ``pip install 'lattice-embed[remote]'``.

The parts that such a service is made of are public, for other protocols over HTTP: :class:`ServerAddress`,
:class:`Credentials`, :class:`HttpTransport` with :class:`HttpRequest` and :class:`HttpAnswer`, :func:`failure_of`,
:class:`RetryPolicy`, :class:`RateGate` and :class:`Deadline`.
"""

from __future__ import annotations

from lattice_embed.remote.address import ServerAddress, is_offline
from lattice_embed.remote.credentials import Credentials
from lattice_embed.remote.errors import (
    RemoteAuthenticationError,
    RemoteConnectionError,
    RemoteOfflineError,
    RemoteRateLimitError,
    RemoteRequestError,
    RemoteResponseError,
    RemoteServiceError,
    RemoteTimeoutError,
)
from lattice_embed.remote.protocol import HttpAnswer, failure_of
from lattice_embed.remote.retrying import Deadline, RateGate, RetryPolicy, retry_after
from lattice_embed.remote.service import RemoteEmbeddingService
from lattice_embed.remote.transport import HttpRequest, HttpTransport, MissingHttpLibraryError, http_library
from lattice_embed.remote.usage import RemoteUsage

__all__ = [
    "Credentials",
    "Deadline",
    "HttpAnswer",
    "HttpRequest",
    "HttpTransport",
    "MissingHttpLibraryError",
    "RateGate",
    "RemoteAuthenticationError",
    "RemoteConnectionError",
    "RemoteEmbeddingService",
    "RemoteOfflineError",
    "RemoteRateLimitError",
    "RemoteRequestError",
    "RemoteResponseError",
    "RemoteServiceError",
    "RemoteTimeoutError",
    "RemoteUsage",
    "RetryPolicy",
    "ServerAddress",
    "failure_of",
    "http_library",
    "is_offline",
    "retry_after",
]
