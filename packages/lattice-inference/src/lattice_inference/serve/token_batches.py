"""Runs the texts of many requests in common calls of a model, as they queue."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Schedule", "TokenBatches"]

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Rows = npt.NDArray[np.float32]
Schedule = Callable[[Callable[[], None]], "Future[None]"]

TURN_SECONDS = 0.1
"""How long a call should take whose thread also runs the steps of an engine."""

FIRST_TOKENS = 512
"""The tokens of such a call before any was measured."""


class _Job(Generic[Item, Key]):
    def __init__(self, items: Sequence[Item], tokens: Sequence[int], key: Key) -> None:
        self.items = items
        self.tokens = tokens
        self.key = key
        self.place = 0
        self.parts: list[Rows] = []
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Rows] = self.loop.create_future()

    def fitting(self, room: int, whatever: bool) -> int:
        """Return how many of the next items fit into ``room`` tokens; one anyway if ``whatever``."""
        count = 0
        for tokens in self.tokens[self.place :]:
            if tokens > room and (count or not whatever):
                break
            count, room = count + 1, room - tokens
        return count


class TokenBatches(Generic[Item, Key]):
    """Calls ``run`` with items of waiting requests, up to a number of tokens.

    It waits for nothing: what has queued while a call ran goes into the next one. A long request goes on in several calls,
    and those that come meanwhile take turns with it. Each item's row has the same bits whatever else is in the call.

    Args:
        run: returns a row for each item, given the key that all of them have.
        most_tokens: of a call; a single longer item is run alone.
        schedule: has a function run in the thread of an engine, between two steps. Calls are then kept so short that they
            take about :data:`TURN_SECONDS`. By default there is a thread for the calls alone.
    """

    def __init__(
        self, run: Callable[[Sequence[Item], Key], Rows], most_tokens: int, schedule: Schedule | None = None
    ) -> None:
        self._run = run
        self._most_tokens = most_tokens
        self._thread: ThreadPoolExecutor | None = None
        self._tokens_of_turn = min(FIRST_TOKENS, most_tokens)
        if schedule is None:
            self._thread = ThreadPoolExecutor(1, "lattice-batches")
            schedule, self._tokens_of_turn = self._thread.submit, most_tokens
        self._schedule: Schedule = schedule
        self._jobs: deque[_Job[Item, Key]] = deque()
        self._lock = threading.RLock()
        self._turn: Future[None] | None = None
        self._is_closed = False

    def submit(self, items: Sequence[Item], tokens: Sequence[int], key: Key) -> asyncio.Future[Rows]:
        """Queue a request of the running event loop; cancelling its future drops what was not run.

        Args:
            items: at least one.
            tokens: the number of tokens of each.
            key: how they are run; items of other keys are not in the same call.
        """
        job = _Job(items, tokens, key)
        with self._lock:
            if self._is_closed:
                job.future.cancel()
            else:
                self._jobs.append(job)
                if self._turn is None:
                    self._take_turn()
        return job.future

    @property
    def waiting(self) -> int:
        """How many requests wait for a call, or for their next one."""
        return len(self._jobs)

    def close(self) -> None:
        """Cancel what waits, and return after the present call."""
        with self._lock:
            self._is_closed = True
            jobs, turn = list(self._jobs), self._turn
            self._jobs.clear()
        self._settle([(job, None) for job in jobs])
        if turn is not None:
            with contextlib.suppress(BaseException):
                turn.result()
        if self._thread is not None:
            self._thread.shutdown()

    def _take_turn(self) -> None:
        """Have the next call made; the lock is held."""
        try:
            self._turn = turn = self._schedule(self._next_call)
        except Exception as error:
            self._fail(error)
            return
        turn.add_done_callback(self._after_turn)

    def _after_turn(self, turn: Future[None]) -> None:
        with self._lock:
            self._turn = None
            error = turn.exception()
            if error is not None:  # the engine has ended
                self._fail(error)
            elif self._jobs:
                self._take_turn()

    def _fail(self, error: BaseException) -> None:
        jobs = list(self._jobs)
        self._jobs.clear()
        self._settle([(job, error) for job in jobs])

    def _settle(self, ended: Sequence[tuple[_Job[Item, Key], Rows | BaseException | None]]) -> None:
        """Have the loop of each request told its rows or its error; None cancels.

        A loop is woken once for all of its requests: each wake lets its thread run, and this one wait.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Rows], Rows | BaseException | None]]] = {}
        for job, outcome in ended:
            by_loop.setdefault(job.loop, []).append((job.future, outcome))
        for loop, outcomes in by_loop.items():
            with contextlib.suppress(RuntimeError):  # it has been closed; none of its tasks wait
                loop.call_soon_threadsafe(_tell, outcomes)

    def _next_call(self) -> None:
        with self._lock:
            batch = self._next_batch()
        if not batch:
            return
        tokens = sum(sum(job.tokens[job.place : job.place + count]) for job, count in batch)
        started = time.perf_counter()
        self._call(batch)
        if self._thread is None:
            rate = tokens / max(time.perf_counter() - started, 1e-6)
            self._tokens_of_turn = max(1, min(self._most_tokens, int(rate * TURN_SECONDS)))

    def _next_batch(self) -> list[tuple[_Job[Item, Key], int]]:
        """Return jobs, and how many items of each come now."""
        batch: list[tuple[_Job[Item, Key], int]] = []
        room, kept = self._tokens_of_turn, []
        while self._jobs:
            job = self._jobs.popleft()
            if job.future.cancelled():
                continue
            if batch and job.key != batch[0][0].key:
                kept.append(job)
                continue
            count = job.fitting(room, not batch)
            if not count:
                kept.append(job)
                break
            batch.append((job, count))
            room -= sum(job.tokens[job.place : job.place + count])
        self._jobs.extendleft(reversed(kept))
        return batch

    def _call(self, batch: Sequence[tuple[_Job[Item, Key], int]]) -> None:
        items = [item for job, count in batch for item in job.items[job.place : job.place + count]]
        try:
            rows = self._run(items, batch[0][0].key)
        except Exception as error:
            if len(batch) == 1:
                self._settle([(batch[0][0], error)])
            else:  # only the request that caused it fails
                for one in batch:
                    self._call([one])
            return
        place = 0
        ended: list[tuple[_Job[Item, Key], Rows | BaseException | None]] = []
        with self._lock:
            for job, count in batch:
                job.parts.append(rows[place : place + count])
                job.place += count
                place += count
                if job.place == len(job.items):
                    ended.append((job, np.concatenate(job.parts) if len(job.parts) > 1 else job.parts[0]))
                elif self._is_closed:
                    ended.append((job, None))
                else:
                    self._jobs.append(job)
        self._settle(ended)


def _tell(outcomes: Sequence[tuple[asyncio.Future[Rows], Rows | BaseException | None]]) -> None:
    """Settle futures, in the thread of their loop."""
    for future, outcome in outcomes:
        if future.done():  # cancelled
            continue
        if outcome is None:
            future.cancel()
        elif isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
