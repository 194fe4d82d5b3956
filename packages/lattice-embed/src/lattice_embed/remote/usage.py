"""What a remote service has asked of its server so far."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

__all__ = ["RemoteUsage", "UsageCounter"]


@dataclass(frozen=True)
class RemoteUsage:
    """Counts since the service was made.

    Attributes:
        requests: requests sent, those that failed included.
        retries: how many of them repeated a request that had failed.
        texts: texts whose vectors the server delivered.
        prompt_tokens: tokens that the server says it read; only as good as its answers, 0 where it does not say.
    """

    requests: int = 0
    retries: int = 0
    texts: int = 0
    prompt_tokens: int = 0


class UsageCounter:
    """Adds up, from any thread."""

    def __init__(self) -> None:
        self._usage = RemoteUsage()
        self._lock = threading.Lock()

    def add(self, *, requests: int = 0, retries: int = 0, texts: int = 0, prompt_tokens: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self._usage = replace(
                self._usage,
                requests=self._usage.requests + requests,
                retries=self._usage.retries + retries,
                texts=self._usage.texts + texts,
                prompt_tokens=self._usage.prompt_tokens + prompt_tokens,
            )

    def snapshot(self) -> RemoteUsage:
        """Return the counts as they are now."""
        return self._usage
