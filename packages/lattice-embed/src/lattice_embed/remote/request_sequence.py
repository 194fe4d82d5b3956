"""The state of one call, without I/O: the next request, when to wait, when to give up.

The sequence is a generator. It yields a :class:`Send` and is sent the answer, or yields a :class:`Wait` and is sent nothing;
threads and asyncio drive the same one. ``delivered`` always holds what the server has delivered. So nothing that was
paid for is lost when a later request fails or the call is cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from lattice_embed.remote.errors import RemoteRequestError, RemoteServiceError, RemoteTimeoutError
from lattice_embed.remote.protocol import HttpAnswer, Vectors, failure_of
from lattice_embed.remote.retrying import Deadline, RateGate, RetryPolicy
from lattice_embed.remote.usage import UsageCounter
from lattice_embed.result import Float32Array

__all__ = ["RequestSequence", "Send", "Step", "Wait"]

TOO_LARGE = 413


@dataclass(frozen=True)
class Send:
    """Ask the server for the vectors of ``texts`` within ``seconds``."""

    texts: Sequence[str]
    seconds: float


@dataclass(frozen=True)
class Wait:
    """Do nothing for ``seconds``."""

    seconds: float


Step = Send | Wait


class RequestSequence:
    """The requests of one call, as a generator of steps.

    Args:
        batches: the texts, cut into requests. No text twice.
        read: turns a success for these texts into vectors, or raises.
        server: what errors call the server.
        credential: what to change where the server does not accept the key.
        policy: when to ask again.
        gate: shared by all calls of a service.
        deadline: of the call.
        timeout: seconds of one request.
        usage: where requests are counted.

    Attributes:
        delivered: the vector of each text for which the server has been paid.
        tokens: the tokens of each text that was alone in a request, if the server told.
    """

    def __init__(
        self,
        batches: Sequence[Sequence[str]],
        *,
        read: Callable[[HttpAnswer, Sequence[str]], Vectors],
        server: str,
        credential: str,
        asked: str,
        policy: RetryPolicy,
        gate: RateGate,
        deadline: Deadline,
        timeout: float,
        usage: UsageCounter,
    ) -> None:
        self.delivered: dict[str, Float32Array] = {}
        self.tokens: dict[str, int] = {}
        self._waiting = deque(batches)
        self._read = read
        self._server = server
        self._credential = credential
        self._asked = asked
        self._policy = policy
        self._gate = gate
        self._deadline = deadline
        self._timeout = timeout
        self._usage = usage

    def steps(self) -> Generator[Step, HttpAnswer | None, None]:
        """Yield what to do next, until every text has its vector.

        Raises:
            RemoteServiceError: a batch failed for good.
            NonFiniteVectorError: the server delivered NaN or infinity.
        """
        while self._waiting:
            batch = self._waiting.popleft()
            try:
                answer = yield from self._ask(batch)
            except RemoteRequestError as error:
                if error.status != TOO_LARGE or len(batch) == 1:
                    raise
                middle = len(batch) // 2
                self._waiting.extendleft((batch[middle:], batch[:middle]))
                continue
            delivered = self._read(answer, batch)
            self.delivered.update(zip(batch, delivered.vectors, strict=True))
            if len(batch) == 1 and delivered.prompt_tokens is not None:
                self.tokens[batch[0]] = delivered.prompt_tokens
            self._usage.add(texts=len(batch), prompt_tokens=delivered.prompt_tokens or 0)

    def _ask(self, batch: Sequence[str]) -> Generator[Step, HttpAnswer | None, HttpAnswer]:
        """Send one request until it succeeds or fails for good.

        It also ends when the retries or the time are used up.
        """
        retries = 0
        while True:
            while (held := self._gate.remaining()) > 0:
                yield self._wait(held, None)
            self._usage.add(requests=1, retries=min(retries, 1))
            try:
                answer = yield Send(batch, min(self._timeout, self._time_left(None)))
            except RemoteServiceError as error:
                failure = error
            else:
                assert answer is not None, "a Send is answered with an HttpAnswer"
                if 200 <= answer.status < 300:
                    return answer
                failure = failure_of(answer, self._server, self._credential, self._asked)
            failure = failure.after(retries + 1)
            if not failure.retryable or retries >= self._policy.max_retries:
                raise failure
            yield self._wait(self._pause(failure, retries), failure)
            retries += 1

    def _pause(self, failure: RemoteServiceError, retries: int) -> float:
        delay = self._policy.delay(retries)
        asked = failure.retry_after
        if asked is None:
            return delay
        if asked > self._policy.max_retry_after:
            raise failure
        self._gate.hold(asked)
        return max(delay, asked)

    def _wait(self, seconds: float, failure: RemoteServiceError | None) -> Wait:
        if seconds >= self._time_left(failure):
            raise failure or self._too_late()
        return Wait(seconds)

    def _time_left(self, failure: RemoteServiceError | None) -> float:
        left = self._deadline.remaining()
        if left <= 0:
            raise failure or self._too_late()
        return left

    def _too_late(self) -> RemoteTimeoutError:
        return RemoteTimeoutError(
            f"{self._server} did not deliver all vectors within the deadline of {self._deadline.seconds:g} s: "
            "raise deadline, or embed fewer texts in a call"
        )
