"""How much may be asked: at once, in a minute, for how much money, until when."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from lattice_tune.arguments import number, whole
from lattice_tune.errors import ConfigError, LabelStoreError, TeacherApiError
from lattice_tune.teachers.config import TeacherPrices

__all__ = ["Budget", "MinuteWindow", "RequestLimits", "Reservation", "Stop", "StoppedError"]

MINUTE = 60.0
MOST_CONCURRENCY = 100
"""The HTTP library keeps as many connections."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits of one labelling, each checked before a request is sent.

    Attributes:
        concurrency: requests under way at once, 1 to 100.
        requests_per_minute: requests sent within any 60 s; ``None`` for any number.
        tokens_per_minute: tokens read and written within any 60 s. A request under way counts as the most that it can be.
        max_cost: what all requests may cost, in the currency of the prices. A request is sent only if even the longest
            answer stays within this. One with an unknown bill counts as that much.
        max_tokens_total: tokens read and written by all requests, counted in the same way.
        deadline: seconds until no more is asked; a request under way is broken off then.
        max_failures: texts that fail one after another, after all retries, before the labelling gives up.

    Raises:
        ConfigError: a limit makes no sense.
    """

    concurrency: int = 8
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_cost: float | None = None
    max_tokens_total: int | None = None
    deadline: float | None = None
    max_failures: int = 10

    def __post_init__(self) -> None:
        whole(self.concurrency, "concurrency", least=1, most=MOST_CONCURRENCY, refusal=ConfigError)
        for name in ("requests_per_minute", "tokens_per_minute"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), name, least=1, most=10**12, refusal=ConfigError)
        if self.max_cost is not None:
            number(self.max_cost, "max_cost", least=0.0, most=1e12, refusal=ConfigError)
        if self.max_tokens_total is not None:
            whole(self.max_tokens_total, "max_tokens_total", least=0, most=10**15, refusal=ConfigError)
        if self.deadline is not None:
            number(self.deadline, "deadline", least=0.001, most=1e9, refusal=ConfigError)
        whole(self.max_failures, "max_failures", least=1, most=10**9, refusal=ConfigError)


class StoppedError(Exception):
    """Nothing more may be asked. Never leaves this package."""


class Stop:
    """Why nothing more is asked, once that is so; sleepers wake up at once. For one event loop.

    Attributes:
        reason: a word such as ``"max_cost"`` or ``"deadline"``, or ``None`` while requests may be sent.
        error: the error that ended the labelling, if it was one.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.error: TeacherApiError | LabelStoreError | None = None
        self._event = asyncio.Event()

    def set(self, reason: str, error: TeacherApiError | LabelStoreError | None = None) -> None:
        """Let nothing more be asked. The first reason stays."""
        if self.reason is None:
            self.reason, self.error = reason, error
        self._event.set()

    def check(self) -> None:
        """Raise StoppedError if nothing more may be asked."""
        if self.reason is not None:
            raise StoppedError(self.reason)

    async def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            StoppedError: nothing more may be asked.
        """
        self.check()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._event.wait()
        except TimeoutError:
            return
        self.check()


class MinuteWindow:
    """What was asked within the last 60 s.

    Args:
        requests: how many are allowed; ``None`` for any number.
        tokens: how many are allowed; ``None`` for any number.
        clock: returns seconds.
    """

    def __init__(
        self, requests: int | None, tokens: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests = requests
        self._tokens = tokens
        self._clock = clock
        self._entries: deque[list[float]] = deque()  # of the moment and the tokens
        self._sum = 0.0

    def delay(self, tokens: int) -> float:
        """Return the seconds until a request of so many tokens may be sent; 0 for now.

        One that is larger than the limit by itself may be sent when nothing else was within the last minute.
        """
        now = self._clock()
        while self._entries and self._entries[0][0] <= now - MINUTE:
            self._sum -= self._entries.popleft()[1]
        wait = 0.0
        if self._requests is not None and len(self._entries) >= self._requests:
            wait = self._entries[len(self._entries) - self._requests][0] + MINUTE - now
        if self._tokens is not None:
            left = self._sum
            for moment, spent in self._entries:
                if left + tokens <= self._tokens:
                    break
                wait = max(wait, moment + MINUTE - now)
                left -= spent
        return wait

    def add(self, tokens: int) -> list[float]:
        """Note a request and return its entry, for :meth:`correct`."""
        entry = [self._clock(), float(tokens)]
        self._entries.append(entry)
        self._sum += tokens
        return entry

    def correct(self, entry: list[float], tokens: int) -> None:
        """Note how many tokens a request really had."""
        if self._entries and entry[0] >= self._entries[0][0]:  # it is still within the minute
            self._sum += tokens - entry[1]
            entry[1] = float(tokens)


@dataclass
class Reservation:
    """The most that a request can cost, held until its bill is known."""

    input_tokens: int
    output_tokens: int
    cost: Fraction
    entry: list[float]


class Budget:
    """What a labelling has spent, and may still spend. For one event loop.

    Attributes:
        requests: sent so far.
        input_tokens, output_tokens: those that the server told of.
        cost: what they cost.
        unknown_cost: the most that requests without a told bill can have cost.
    """

    def __init__(
        self,
        limits: RequestLimits,
        prices: TeacherPrices | None,
        stop: Stop,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if limits.max_cost is not None and prices is None:
            raise ConfigError("max_cost is given and the teacher's prices are not: pass TeacherConfig(prices=...)")
        self._limits = limits
        self._prices = prices or TeacherPrices(0.0, 0.0)
        self._most_cost = None if limits.max_cost is None else Fraction(str(limits.max_cost))
        self._stop = stop
        self._window = MinuteWindow(limits.requests_per_minute, limits.tokens_per_minute, clock=clock)
        self._clock = clock
        self._end = math.inf if limits.deadline is None else clock() + limits.deadline
        self._held_cost, self._held_tokens, self._held = Fraction(0), 0, 0
        self._changed = asyncio.Event()
        self.output_tokens: int
        self.input_tokens: int
        self.unknown_tokens: int
        self.requests: int
        self.requests = self.input_tokens = self.output_tokens = self.unknown_tokens = 0
        self.cost: Fraction
        self.unknown_cost: Fraction
        self.cost = self.unknown_cost = Fraction(0)

    def remaining(self) -> float:
        """Return the seconds until the deadline; infinity without one."""
        return self._end - self._clock()

    async def reserve(self, input_tokens: int, output_tokens: int) -> Reservation:
        """Wait until a request of at most so many tokens may be sent, and hold its price.

        Raises:
            StoppedError: it may never be sent; the stop says why.
        """
        cost = self._prices.cost(input_tokens, output_tokens)
        tokens = input_tokens + output_tokens
        while True:
            self._stop.check()
            if not self.remaining() > 0:
                self._stop.set("deadline")
                continue
            if (limit := self._exceeded(cost, tokens)) is not None:
                if not self._held:
                    self._stop.set(limit)
                    continue
                await self._settled()  # what is under way may cost less than is held for it
                continue
            if (wait := self._window.delay(tokens)) > 0:
                await self._stop.sleep(min(wait, max(0.0, self.remaining())))
                continue
            self._held_cost += cost
            self._held_tokens += tokens
            self._held += 1
            self.requests += 1
            return Reservation(input_tokens, output_tokens, cost, self._window.add(tokens))

    def settle(self, held: Reservation, input_tokens: int | None, output_tokens: int | None) -> None:
        """Replace what was held by a bill; one that is not known (``None``) counts as the most."""
        self._let_go(held)
        if input_tokens is None or output_tokens is None:
            self.unknown_cost += held.cost
            self.unknown_tokens += held.input_tokens + held.output_tokens
            return
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost += self._prices.cost(input_tokens, output_tokens)
        self._window.correct(held.entry, input_tokens + output_tokens)

    def release(self, held: Reservation) -> None:
        """Give back what was held for a request that the server refused to begin."""
        self._let_go(held)
        self._window.correct(held.entry, 0)

    def _let_go(self, held: Reservation) -> None:
        self._held_cost -= held.cost
        self._held_tokens -= held.input_tokens + held.output_tokens
        self._held -= 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _exceeded(self, cost: Fraction, tokens: int) -> str | None:
        if (
            self._most_cost is not None
            and not self.cost + self.unknown_cost + self._held_cost + cost <= self._most_cost
        ):
            return "max_cost"
        spent = self.input_tokens + self.output_tokens + self.unknown_tokens + self._held_tokens
        most = self._limits.max_tokens_total
        return "max_tokens_total" if most is not None and not spent + tokens <= most else None

    async def _settled(self) -> None:
        await self._changed.wait()
