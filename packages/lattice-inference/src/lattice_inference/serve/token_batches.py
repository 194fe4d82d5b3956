"""Runs the texts of many requests in common calls of a model, as they queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["TokenBatches"]

Item = TypeVar("Item")
Rows = npt.NDArray[np.float32]


class _Job(Generic[Item]):
    def __init__(self, items: Sequence[Item], tokens: Sequence[int], adapter: str | None) -> None:
        self.items = items
        self.tokens = tokens
        self.adapter = adapter
        self.place = 0
        self.parts: list[Rows] = []
        self.future: Future[Rows] = Future()

    def fitting(self, room: int, whatever: bool) -> int:
        """Return how many of the next items fit into ``room`` tokens; one anyway if ``whatever``."""
        count = 0
        for tokens in self.tokens[self.place :]:
            if tokens > room and (count or not whatever):
                break
            count, room = count + 1, room - tokens
        return count


class TokenBatches(Generic[Item]):
    """A thread that calls ``run`` with items of waiting requests, up to a number of tokens.

    It waits for nothing: what has queued while a call ran goes into the next one. A long request goes on in several calls,
    and those that come meanwhile take turns with it. Each item's row has the same bits whatever else is in the call.

    Args:
        run: returns a row for each item, given the name of an adapter.
        most_tokens: of a call; a single longer item is run alone.
    """

    def __init__(self, run: Callable[[Sequence[Item], str | None], Rows], most_tokens: int) -> None:
        self._run = run
        self._most_tokens = most_tokens
        self._jobs: deque[_Job[Item]] = deque()
        self._has_work = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="lattice-batches", daemon=True)
        self._thread.start()

    def submit(self, items: Sequence[Item], tokens: Sequence[int], adapter: str | None = None) -> Future[Rows]:
        """Queue a request; cancelling its future drops what was not run.

        Args:
            items: at least one.
            tokens: the number of tokens of each.
            adapter: with which they are run.
        """
        job = _Job(items, tokens, adapter)
        with self._has_work:
            if self._is_closed:
                job.future.cancel()
            else:
                self._jobs.append(job)
                self._has_work.notify()
        return job.future

    @property
    def waiting(self) -> int:
        """How many requests wait for a call, or for their next one."""
        return len(self._jobs)

    def close(self) -> None:
        """End the thread after its present call, and cancel what waits."""
        with self._has_work:
            self._is_closed = True
            self._has_work.notify()
        self._thread.join()
        for job in self._jobs:
            job.future.cancel()

    def _loop(self) -> None:
        while True:
            with self._has_work:
                while not self._jobs and not self._is_closed:
                    self._has_work.wait()
                if self._is_closed:
                    return
                batch = self._next_batch()
            if batch:
                self._call(batch)

    def _next_batch(self) -> list[tuple[_Job[Item], int]]:
        """Return jobs, and how many items of each come now."""
        batch: list[tuple[_Job[Item], int]] = []
        room, kept = self._most_tokens, []
        while self._jobs:
            job = self._jobs.popleft()
            if job.future.cancelled():
                continue
            if batch and job.adapter != batch[0][0].adapter:
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

    def _call(self, batch: Sequence[tuple[_Job[Item], int]]) -> None:
        items = [item for job, count in batch for item in job.items[job.place : job.place + count]]
        try:
            rows = self._run(items, batch[0][0].adapter)
        except Exception as error:
            if len(batch) == 1:
                _settle(batch[0][0].future, error=error)
            else:  # only the request that caused it fails
                for one in batch:
                    self._call([one])
            return
        place = 0
        for job, count in batch:
            job.parts.append(rows[place : place + count])
            job.place += count
            place += count
            if job.place < len(job.items):
                with self._has_work:
                    self._jobs.append(job)
            else:
                _settle(job.future, np.concatenate(job.parts))


def _settle(future: Future[Any], value: Any = None, error: Exception | None = None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
