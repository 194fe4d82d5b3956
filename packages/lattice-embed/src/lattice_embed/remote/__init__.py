"""Embeddings from a server that speaks the OpenAI protocol: OpenAI itself, or any compatible endpoint.

    from lattice_embed import RemoteEmbeddingService

    with RemoteEmbeddingService("nomic-embed-text", base_url="http://localhost:11434/v1") as service:
        vectors = service.encode(["first text", "second text"])

Needs the extra: ``pip install 'lattice-embed[remote]'``.
"""

from __future__ import annotations

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
from lattice_embed.remote.retrying import RetryPolicy
from lattice_embed.remote.service import RemoteEmbeddingService
from lattice_embed.remote.usage import RemoteUsage

__all__ = [
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
]
