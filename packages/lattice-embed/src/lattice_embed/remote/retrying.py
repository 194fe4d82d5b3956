"""When a failed request is sent again: growing delays with jitter, and the server's wish."""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from lattice_embed.argument_checks import check_integer, check_number
from lattice_embed.errors import InvalidInputError
from lattice_embed.validation import check_limit

__all__ = ["Deadline", "RateGate", "RetryPolicy", "check_seconds", "retry_after"]


def check_seconds(name: str, value: object) -> float:
    """Return ``value`` if it is a positive, finite number of seconds.

    Raises:
        InvalidInputError: it is not.
    """
    seconds = check_number(name, value)
    if not seconds > 0:
        raise InvalidInputError(f"{name} is {value!r}; it must be a positive number of seconds")
    return seconds


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and after which delays, a request is made again.

    Retried are lost connections, timeouts, 408, 425, 429 and every status from 500; nothing else is. The n-th delay
    is ``initial_delay * 2**n`` seconds, at most ``max_delay``. It is shortened by a random part of up to a half, so
    that many clients do not retry together. A ``Retry-After`` of the server is waited for in full. A request on a kept
    connection that the server has closed is sent again at once, on another connection, whatever ``max_retries`` is.

    Args:
        max_retries: requests after the first; 0 for none.
        initial_delay: seconds before the first retry.
        max_delay: longest delay between retries, in seconds.
        max_retry_after: longest ``Retry-After`` that is waited for, in seconds; a longer one is an error at once.

    Raises:
        InvalidInputError: a number is out of range.
    """

    max_retries: int = 5
    initial_delay: float = 0.5
    max_delay: float = 20.0
    max_retry_after: float = 60.0

    def __post_init__(self) -> None:
        check_limit("max_retries", self.max_retries, lowest=0)
        for name in ("initial_delay", "max_delay", "max_retry_after"):
            object.__setattr__(self, name, check_seconds(name, getattr(self, name)))

    def delay(self, retry: int) -> float:
        """Return the seconds to wait before retry number ``retry``, counted from 0."""
        retry = check_integer("retry", retry, lowest=0, highest=sys.maxsize)
        longest = min(self.max_delay, self.initial_delay * 2.0 ** min(retry, 60))
        return longest * random.uniform(0.5, 1.0)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait.

    ``None`` if it does not say, or the value makes no sense. Read are ``retry-after-ms``, and ``Retry-After`` as
    seconds or as a date.
    """
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * scale
        except ValueError:
            continue
        if 0 <= seconds < math.inf:
            return seconds
    moment = _date(headers.get("retry-after", ""))
    if moment is None:
        return None
    # by the server's clock, if it tells the time: this machine's may be wrong
    now = _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (moment - now).total_seconds())


def _date(text: str) -> datetime | None:
    """Return the moment that a header names, or ``None``."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class Deadline:
    """The moment by which a whole call must be done.

    Args:
        seconds: time from now; ``None`` for all the time in the world.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds that are left.

        0 or less when the time is up, infinity without a deadline.
        """
        return self._end - time.monotonic()


class RateGate:
    """Holds back all calls of one service while its server wants to be left alone."""

    def __init__(self) -> None:
        self._open_at = -math.inf
        self._lock = threading.Lock()

    def hold(self, seconds: float) -> None:
        """Let no call pass for ``seconds``."""
        with self._lock:
            self._open_at = max(self._open_at, time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds until the gate opens; 0 or less when it is open."""
        return self._open_at - time.monotonic()
